"""`baton restart`: transactions end, the server restarts, and clients that can wait see no error."""

from __future__ import annotations

import subprocess
import threading
import time
import traceback

import pytest
from harness.cluster import HOST
from harness.doctor import command
from harness.health import assert_healthy, hold_for, wait_until
from harness.wire import Wire

pytestmark = pytest.mark.pool_only


@pytest.fixture
def cluster(make_cluster):
    cluster = make_cluster(parameters={"pg_baton.max_backends": 4, "pg_baton.hold_sessions": "60s"})
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.sql("CREATE TABLE kept (client int, n int)")
    yield cluster
    hold_for(cluster, "0")


def restart(cluster, *more: str) -> subprocess.CompletedProcess[str]:
    """The server is this process's child: the command ends it, and it is started from here."""
    pid, process = cluster.postmaster_pid(), cluster.process
    ends = f"kill -INT {pid}; while kill -0 {pid} 2>/dev/null; do sleep 0.02; done"
    arguments = command(cluster, "--command", ends, *more, name="restart")
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(arguments, text=True, **pipes) as program:
        while program.poll() is None and process.poll() is None:
            time.sleep(0.02)
        if process.poll() is not None:
            cluster.start(wait_for_pool=False)
        out, errors = program.communicate(timeout=120)
    return subprocess.CompletedProcess(arguments, program.returncode, out, errors)


def test_clients_with_transactions_see_no_error(cluster):
    """Transactions of some statements; each that a client has seen committed is there once."""
    over = threading.Event()
    failures: list[str] = []
    done = [0] * 12

    def live(number: int) -> None:
        try:
            with Wire.login(HOST, cluster.pool_port, timeout_s=60) as wire:
                wire.query(f"SET my.number = '{number}'")
                while not over.is_set():
                    wire.query("BEGIN")
                    wire.query(f"INSERT INTO kept VALUES (current_setting('my.number')::int, {done[number]})")
                    time.sleep(0.01)
                    wire.query("COMMIT")
                    done[number] += 1
        except BaseException:
            failures.append(traceback.format_exc(limit=4))

    threads = [threading.Thread(target=live, args=(number,)) for number in range(len(done))]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            time.sleep(0.5)
            ran = restart(cluster)
            assert ran.returncode == 0, ran.stdout + ran.stderr
            assert f"{len(done)} shared sessions go on" in ran.stdout and "The server is back after" in ran.stdout
        time.sleep(0.5)
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    assert failures == []
    rows = cluster.sql("SELECT client, count(*), count(DISTINCT n), max(n) FROM kept GROUP BY 1 ORDER BY 1")
    assert rows == [(number, count, count, count - 1) for number, count in enumerate(done)]
    assert_healthy(cluster)


def test_sessions_that_would_end_are_listed_by_cause_and_asked_for(cluster):
    shared = Wire.login(HOST, cluster.pool_port)
    listens = Wire.login(HOST, cluster.pool_port)
    listens.query("LISTEN here")
    ran = restart(cluster)
    assert ran.returncode == 1
    assert "1 shared sessions go on." in ran.stdout and "These end: 1 dedicated: listen." in ran.stdout
    assert "--yes" in ran.stderr
    assert listens.query("SELECT 1") == [["1"]]
    ran = restart(cluster, "--yes")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [m.fields()["C"] for m in listens.until_closed() if m.type == "E"] == ["57P01"]
    assert shared.query("SELECT 1") == [["1"]]
    shared.close()
    assert_healthy(cluster)


def test_nothing_is_restarted_while_a_transaction_does_not_end(cluster):
    wire = Wire.login(HOST, cluster.pool_port)
    wire.query("BEGIN")
    ran = restart(cluster, "--timeout", "1 second")
    assert ran.returncode == 2
    assert "nothing has been restarted" in ran.stderr
    assert wire.query("SELECT 1") == [["1"]]
    wire.query("COMMIT")
    assert wire.query("SELECT 1") == [["1"]]
    assert cluster.sql("SELECT * FROM pg_baton_pauses") == []
    wire.close()


def test_sessions_are_resumed_if_the_command_fails(cluster):
    wire = Wire.login(HOST, cluster.pool_port)
    arguments = command(cluster, "--command", "exit 3", name="restart")
    ran = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 2
    assert "the command has failed" in ran.stderr and "sessions are resumed" in ran.stderr
    assert wire.query("SELECT 1") == [["1"]]
    wire.close()


def test_without_hold_sessions_nothing_is_restarted(cluster):
    cluster.set_parameters({"pg_baton.hold_sessions": 0})
    cluster.reload()
    wait_until(lambda: cluster.sql("SHOW pg_baton.hold_sessions") == [("0",)], what="the reload")
    ran = restart(cluster)
    assert ran.returncode == 1
    assert "pg_baton.hold_sessions is 0" in ran.stderr and "reload" in ran.stderr
