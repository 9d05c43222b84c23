"""PAUSE and RESUME: transactions that run end, the next ones wait, and no client sees an error."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from harness.account import server_program
from harness.health import Load, wait_until
from harness.wire import Wire, query

pytestmark = pytest.mark.pool_only


@pytest.fixture
def cluster_with(make_cluster):
    def make(**ours):
        parameters = {"pg_baton.max_backends": 6, "pg_baton.session_wait_timeout": "1s"}
        parameters |= {f"pg_baton.{name}": value for name, value in ours.items()}
        one = make_cluster(parameters=parameters)
        one.sql("CREATE EXTENSION pg_baton")
        one.sql("CREATE ROLE app LOGIN")
        one.sql("CREATE ROLE other LOGIN")
        return one

    return make


@pytest.fixture
def cluster(cluster_with):
    return cluster_with()


def pause(cluster, arguments: str = "", **options) -> None:
    cluster.sql(f"SELECT pg_baton_pause({arguments})", **options)


def resume(cluster, arguments: str = "") -> int:
    return cluster.sql(f"SELECT pg_baton_resume({arguments})")[0][0]


def pauses(cluster) -> list[tuple]:
    return cluster.sql("SELECT database, role, waiting, in_the_way FROM pg_baton_pauses ORDER BY since")


def waiting(cluster) -> int:
    return cluster.sql("SELECT count(*) FROM pg_baton_sessions WHERE state = 'waiting'")[0][0]


def ask_all(wires: list[Wire], sql: str = "SELECT 1") -> None:
    for wire in wires:
        wire.send(query(sql))


def answers(wire: Wire) -> list[str]:
    return [message.type for message in wire.until_ready()]


def test_running_transactions_finish_and_the_next_ones_wait(cluster, crowd):
    (runs,) = crowd(cluster, 1, user="app")
    runs.query("BEGIN")
    wires = crowd(cluster, 12, user="app")
    for wire in wires:
        wire.query("SELECT 1")
    with ThreadPoolExecutor() as pool:
        paused = pool.submit(pause, cluster)
        wait_until(lambda: [row[3] for row in pauses(cluster)] == [1], what="one is in the way")
        ask_all(wires)
        wait_until(lambda: waiting(cluster) == len(wires), what="the others wait")
        assert runs.query("SELECT 1") == [["1"]]
        assert not paused.done()
        runs.query("COMMIT")
        paused.result(timeout=30)
    runs.send(query("SELECT 1"))
    assert runs.silent(1.5), "longer than session_wait_timeout"
    assert all(wire.silent(0) for wire in wires)
    assert pauses(cluster) == [(None, None, len(wires) + 1, 0)]
    assert resume(cluster) == 1
    for wire in [runs, *wires]:
        assert "E" not in answers(wire)
    assert pauses(cluster) == []


def test_other_databases_and_roles_go_on(cluster, crowd):
    cluster.sql("CREATE DATABASE elsewhere")
    (app,) = crowd(cluster, 1, user="app")
    (other,) = crowd(cluster, 1, user="other")
    (there,) = crowd(cluster, 1, user="app", database="elsewhere")
    for arguments, stopped in [
        ("role => 'app'", {app, there}),
        ("'postgres'", {app, other}),
        ("'postgres', 'app'", {app}),
    ]:
        pause(cluster, arguments)
        everyone = {app, other, there}
        ask_all(list(everyone))
        for wire in everyone - stopped:
            assert "E" not in answers(wire)
        wait_until(lambda many=len(stopped): waiting(cluster) == many, what="the paused ones wait")
        assert resume(cluster, arguments) == 1
        for wire in stopped:
            assert "E" not in answers(wire)


def test_resume_ends_the_pauses_that_it_names(cluster):
    for arguments in ("'postgres'", "role => 'app'", "'template1', 'app'"):
        pause(cluster, arguments)
    assert resume(cluster, "'template1'") == 1
    assert [row[:2] for row in pauses(cluster)] == [("postgres", None), (None, "app")]
    assert resume(cluster, "role => 'app'") == 1
    pause(cluster, "'postgres'")
    assert [row[:2] for row in pauses(cluster)] == [("postgres", None)]
    assert resume(cluster) == 1
    assert resume(cluster) == 0


def test_resumed_sessions_are_served_in_their_order(cluster_with, crowd):
    cluster = cluster_with(max_backends=1, max_extra_backends=0)
    cluster.sql("CREATE TABLE served (number serial, who text)")
    cluster.sql("GRANT ALL ON served, served_number_seq TO app")
    wires = crowd(cluster, 10, user="app")
    for wire in wires:
        wire.query("SELECT 1")
    pause(cluster)
    for number, wire in enumerate(wires):
        wire.send(query(f"INSERT INTO served (who) VALUES ('{number}')"))
        wait_until(lambda many=number + 1: waiting(cluster) == many, what="it waits")
    resume(cluster)
    for wire in wires:
        wire.until_ready()
    assert [who for (who,) in cluster.sql("SELECT who FROM served ORDER BY number")] == [*map(str, range(10))]


def test_pause_gives_up_resumes_and_names_what_is_in_the_way(cluster, crowd):
    (runs, asks) = crowd(cluster, 2, user="app")
    runs.query("BEGIN")
    runs.query("CREATE TEMP TABLE kept (a int)")
    pid = runs.query("SELECT pg_backend_pid()")[0][0]
    with pytest.raises(psycopg.errors.ObjectInUse) as raised:
        pause(cluster, "timeout => '300 ms'")
    assert raised.value.diag.message_primary == "could not pause: 1 session still runs a transaction"
    detail = raised.value.diag.message_detail
    assert detail.startswith(f'Session with PID {pid} of role "app" in database "postgres": idle in transaction for ')
    assert pauses(cluster) == []
    assert asks.query("SELECT 1") == [["1"]]
    with pytest.raises(psycopg.errors.ObjectInUse):
        pause(cluster, "timeout => '0'")
    runs.query("COMMIT")
    pause(cluster)


def test_a_pause_that_is_cancelled_or_killed_ends(cluster, crowd):
    (runs, asks) = crowd(cluster, 2, user="app")
    runs.query("BEGIN")
    runs.query("SELECT 1")
    for end in ("pg_cancel_backend", "pg_terminate_backend"):
        with ThreadPoolExecutor() as pool:
            paused = pool.submit(pause, cluster)
            wait_until(lambda: len(pauses(cluster)) == 1, what="it has begun")
            cluster.sql(f"SELECT {end}(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_baton_pause%'")
            with pytest.raises(psycopg.OperationalError):
                paused.result(timeout=30)
        wait_until(lambda: pauses(cluster) == [], what="it has ended")
        assert asks.query("SELECT 1") == [["1"]]


def test_a_forgotten_pause_ends_by_itself(cluster, crowd):
    (app,) = crowd(cluster, 1, user="app")
    app.query("SELECT 1")
    with cluster.new_log() as log:
        pause(cluster, "\"for\" => '1500 ms'")
        assert app.query("SELECT 1") == [["1"]]
        assert pauses(cluster) == []
        assert "a pause ends, as its time is over: database=any role=any" in log()


def test_requests_of_dedicated_sessions_are_held(cluster, crowd):
    (listens, paused, idle) = crowd(cluster, 3, user="app")
    for wire in (listens, paused, idle):
        wire.query("LISTEN something")
    pause(cluster)
    paused.send(query("SELECT 1"))
    wait_until(lambda: waiting(cluster) == 1, what="its request is held")
    assert paused.silent(0.5)
    # What is sent meanwhile reaches the sessions that listen.
    cluster.sql("NOTIFY something")
    assert idle.read().type == "A"
    resume(cluster)
    assert "E" not in answers(paused)
    assert listens.query("SELECT 1") == [["1"]]


def test_a_dedicated_session_in_a_transaction_is_in_the_way(cluster, crowd):
    (listens,) = crowd(cluster, 1, user="app")
    listens.query("LISTEN something")
    listens.query("BEGIN")
    with pytest.raises(psycopg.errors.ObjectInUse) as raised:
        pause(cluster, "timeout => '300 ms'")
    assert raised.value.diag.message_detail.endswith("s, dedicated (listen).")


@pytest.mark.parametrize("keeps", ["SELECT 1", "LISTEN something"])
def test_what_waits_for_a_resume_can_be_cancelled_or_ended(cluster, crowd, keeps):
    (cancelled, ended, gone) = wires = crowd(cluster, 3, user="app")
    for wire in wires:
        wire.query(keeps)
    pid = ended.query("SELECT pg_backend_pid()")[0][0]
    pause(cluster)
    ask_all(wires, "SELECT pg_sleep(0)")
    wait_until(lambda: waiting(cluster) == 3, what="they wait")
    cancelled.cancel_request()
    (error,) = [message for message in cancelled.until_ready() if message.type == "E"]
    assert error.fields()["C"] == "57014"
    cluster.sql(f"SELECT pg_terminate_backend({pid})")
    assert "57P01" in [message.fields().get("C") for message in ended.until_closed() if message.type == "E"]
    gone.close()
    assert len(pauses(cluster)) == 1
    resume(cluster)
    assert cancelled.query("SELECT 1") == [["1"]]
    wait_until(lambda: cluster.sql("SELECT count(*) FROM pg_baton_sessions") == [(1,)], what="one session is left")


def test_the_session_that_pauses_and_superusers_come_in(cluster, crowd):
    (first, app) = (*crowd(cluster, 1), *crowd(cluster, 1, user="app"))
    app.query("SELECT 1")
    assert first.query("SELECT pg_baton_pause()") == [[""]]
    assert first.query("CREATE TEMP TABLE of_its_own (a int)") == []
    assert first.query("SELECT 1") == [["1"]]
    app.send(query("SELECT 1"))
    (later,) = crowd(cluster, 1)
    assert later.query("SELECT pg_baton_resume()") == [["1"]]
    assert "E" not in answers(app)


def test_superusers_that_were_there_are_paused(cluster, crowd):
    (app,) = crowd(cluster, 1)
    app.query("SELECT 1")
    pause(cluster)
    app.send(query("SELECT 1"))
    assert app.silent(0.5)
    resume(cluster)
    assert "E" not in answers(app)


def test_clients_log_in_and_their_first_statement_waits(cluster, crowd):
    (first,) = crowd(cluster, 1, user="app")
    first.query("SELECT 1")
    pause(cluster)
    with ThreadPoolExecutor() as pool:
        logins = [pool.submit(psycopg.connect, cluster.pool(user=user)) for user in ("app", "other")]
        connections = [logins[0].result(timeout=30)]
        asked = pool.submit(connections[0].execute, "SELECT 1")
        wait_until(lambda: waiting(cluster) >= 1, what="its statement waits")
        assert not asked.done()
        resume(cluster)
        assert asked.result(timeout=30).fetchone() == (1,)
        connections.append(logins[1].result(timeout=30))
    for connection in connections:
        connection.close()


def test_only_superusers_may_pause_unless_it_is_granted(cluster):
    for statement in ("SELECT pg_baton_pause()", "SELECT pg_baton_resume()"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            cluster.sql(statement, user="app")
    cluster.sql("GRANT EXECUTE ON FUNCTION pg_baton_pause, pg_baton_resume TO app")
    with psycopg.connect(cluster.pool(user="app"), autocommit=True) as connection:
        connection.execute("SELECT pg_baton_pause()")
        with psycopg.connect(cluster.pool(user="app"), autocommit=True) as other:
            assert other.execute("SELECT pg_baton_resume()").fetchone() == (1,)


@pytest.mark.parametrize(
    "arguments, state",
    [
        ("'nowhere'", "3D000"),
        ("role => 'nobody'", "42704"),
        ("timeout => '-1 s'", "22023"),
        ("timeout => NULL", "22004"),
        ("\"for\" => '0'", "22023"),
        ("\"for\" => '25 h'", "22023"),
    ],
)
def test_a_pause_with_wrong_arguments_does_nothing(cluster, arguments, state):
    with pytest.raises(psycopg.Error) as raised:
        pause(cluster, arguments)
    assert raised.value.sqlstate == state
    assert pauses(cluster) == []


def test_sessions_that_wait_for_a_resume_start_no_backends(cluster_with, crowd):
    cluster = cluster_with(native_when_waiting=3, max_backends=40, backend_idle_timeout="1h")
    wires = crowd(cluster, 20, user="app")
    for wire in wires:
        wire.query("SELECT 1")
    backends = "SELECT count(*) FROM pg_baton_backends"
    before = cluster.sql(backends)
    pause(cluster)
    ask_all(wires)
    wait_until(lambda: waiting(cluster) == 20, what="all wait")
    late = psycopg.connect(cluster.pool(user="app"))
    assert cluster.sql("SELECT count(*) FROM pg_baton_sessions WHERE mode = 'native'") == [(0,)]
    assert wires[0].silent(1)
    assert cluster.sql(backends) == before
    resume(cluster)
    for wire in wires:
        assert "E" not in answers(wire)
    late.close()


def test_no_client_sees_an_error_through_50_pauses(cluster):
    errors: list[BaseException] = []
    ends = threading.Event()
    counts = [0] * 8

    def work(number: int) -> None:
        """Half of them keep their backends."""
        try:
            with psycopg.connect(cluster.pool(user="app"), autocommit=True) as connection:
                if number % 2:
                    connection.execute("CREATE TEMP TABLE own (a int)")
                while not ends.is_set():
                    with connection.transaction():
                        connection.execute("SELECT 1")
                        connection.execute("SELECT 2", prepare=True)
                    counts[number] += 1
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    try:
        for turn in range(50):
            pause(cluster, ("", "'postgres'", "role => 'app'")[turn % 3])
            before = list(counts)
            # The threads count after the transaction has ended.
            in_transactions = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND xact_start IS NOT NULL"
            assert cluster.sql(in_transactions) == [(0,)]
            assert resume(cluster) == 1
            wait_until(lambda: errors or all(map(int.__lt__, before, counts)), what="all go on")
            assert not errors
    finally:
        ends.set()
        resume(cluster)
        for thread in threads:
            thread.join(timeout=60)
    assert not errors


def test_a_pause_ends_with_its_dispatcher(cluster):
    with psycopg.connect(cluster.pool(user="app"), autocommit=True) as dedicated:
        dedicated.execute("LISTEN something")
        pause(cluster)
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(dedicated.execute, "SELECT 1")
            wait_until(lambda: waiting(cluster) == 1, what="its request is held")
            for pid in cluster.dispatcher_pids():
                os.kill(pid, signal.SIGKILL)
            assert asked.result(timeout=60).fetchone() == (1,)
        cluster.wait_pool_ready()
        with psycopg.connect(cluster.pool(user="app")) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert pauses(cluster) == []
    cluster.expect_in_log("dispatcher")


def test_the_server_stops_though_sessions_are_paused(cluster, crowd):
    (shared, keeps) = wires = crowd(cluster, 2, user="app")
    shared.query("SELECT 1")
    keeps.query("LISTEN something")
    pause(cluster)
    ask_all(wires)
    wait_until(lambda: waiting(cluster) == 2, what="they wait")
    cluster.stop()
    for wire in wires:
        with contextlib.suppress(OSError, EOFError):
            wire.until_closed()


def test_pools_and_load_go_on_after_a_pause_of_other_roles(cluster):
    with Load(cluster, 8) as load:
        load.wait_for_answers(50)
        for _ in range(5):
            pause(cluster, "role => 'other'")
            load.wait_for_answers(50)
            resume(cluster)


def baton(cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = str(Path(cluster.run.stage.program).with_name("baton"))
    command = [program, arguments[0], "--psql", server_program("psql"), *arguments[1:], cluster.direct()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_baton_pauses_resumes_and_reports(cluster, crowd):
    (app,) = crowd(cluster, 1, user="app")
    app.query("BEGIN")
    pid = app.query("SELECT pg_backend_pid()")[0][0]
    ran = baton(cluster, "pause", "--role", "app", "--timeout", "200 ms")
    assert ran.returncode == 1 and f"PID {pid} " in ran.stderr and "idle in transaction" in ran.stderr
    app.query("COMMIT")
    ran = baton(cluster, "pause", "--database", "postgres", "--role", "app", "--for", "1 min")
    assert (ran.returncode, ran.stdout) == (0, 'sessions of role "app" in database "postgres" are paused for 1 min\n')
    assert [row[:2] for row in pauses(cluster)] == [("postgres", "app")]
    ran = baton(cluster, "resume")
    assert (ran.returncode, ran.stdout) == (0, "all sessions are resumed\n")
    assert baton(cluster, "resume").stdout == "no pause of all sessions was there\n"
