"""A backend that goes from session to session still waits for each client.

A session that is handed over with its whole message costs no registration in
PostgreSQL's wait set; one whose client makes PostgreSQL wait must get it in
time, or that wait would never end (extension/src/pooled_backend/boundary/client_socket.h).
"""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
from harness.debugger import needs_gdb, stopped_at
from harness.health import assert_healthy, wait_until
from harness.wire import Wire, bind, copy_data, copy_done, describe_portal, execute, function_call, parse, query, sync

SETUP = ["CREATE TABLE target (a int)"]
PARAMETERS = {"pg_baton.max_backends": 3}

pytestmark = pytest.mark.pool_only


def handed_over(server, **options) -> Wire:
    """A session that no backend holds: its next message comes with a hand-over.

    (It is given back after its first transaction, pass_baton in idle.c.)"""
    wire = Wire.login("127.0.0.1", server.pool_port, **options)
    wire.query("SELECT 1")
    return wire


def wait_for_event(server, event: str) -> None:
    """Until a backend waits for its client within a command."""
    wait_until(
        lambda: (
            server.sql(
                "SELECT count(*) FROM pg_stat_activity a JOIN pg_baton_backends b ON a.pid = b.session_pid"
                f" WHERE wait_event = '{event}' AND b.state = 'busy'"
            )[0][0]
            > 0
        ),
        what=f"a backend waits for {event}",
    )


BATCHES = {
    "query": query("SELECT 42"),
    "extended": parse("SELECT 42") + bind() + describe_portal() + execute() + sync(),
    # more than is looked at in advance
    "long": query("SELECT 42 /*" + "x" * 5000 + "*/"),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_message_that_comes_in_two_parts_is_answered(server, name):
    batch = BATCHES[name]
    for cut in (1, 3, 5, 9, len(batch) // 2, len(batch) - 1):
        with handed_over(server) as wire:
            wire.send(batch[:cut])
            # no backend waits for it: it has been looked at, and lies there
            wait_until(lambda: wire.unread_by_server() == cut, what="its first part has come")
            assert wire.silent(0.1)
            wire.send(batch[cut:])
            rows = [message.row() for message in wire.until_ready() if message.type == "D"]
            assert rows == [[b"42"]]
    assert_healthy(server)


def test_message_too_large_to_await_whole_is_answered(server):
    whole = query("SELECT 42 /*" + "x" * 100_000 + "*/")
    for cut in (40_000, len(whole) - 1):
        with handed_over(server) as wire:
            wire.send(whole[:cut])
            wait_for_event(server, "ClientRead")
            wire.send(whole[cut:])
            rows = [message.row() for message in wire.until_ready() if message.type == "D"]
            assert rows == [[b"42"]]
    assert_healthy(server)


@pytest.mark.parametrize("kind", ["query", "function call"])
def test_batch_that_fails_and_waits_for_sync_is_answered(server, kind):
    """The query after the failure is ignored: it does not end the batch."""
    ignored = query("SELECT 2") if kind == "query" else function_call(0, [])
    with handed_over(server) as wire:
        wire.send(parse("selekt 1") + ignored)
        # not answered before Sync
        wait_for_event(server, "ClientRead")
        wire.send(sync())
        assert [m.type for m in wire.until_ready()] == ["E", "Z"]
        assert wire.query("SELECT 3") == [["3"]]
    assert_healthy(server)


@pytest.mark.parametrize("name", ["query", "extended"])
def test_data_that_come_after_copy_has_begun_are_read(server, name):
    command = "COPY target FROM STDIN"
    with handed_over(server) as wire:
        if name == "query":
            wire.send(query(command))
        else:
            wire.send(parse(command) + bind() + execute() + sync())
        while wire.read().type != "G":
            pass
        for number in range(1, 5):
            # each is read when it comes: a timer of PostgreSQL's may end a wait once
            wire.send(copy_data(f"{number}\n".encode()))
            wait_until(
                lambda: server.sql("SELECT bytes_processed FROM pg_stat_progress_copy") == [(2 * number,)],
                what=f"row {number} is read",
            )
        wire.send(copy_done())
        if name == "extended":
            wire.send(sync())
        assert [m.strings() for m in wire.until_ready() if m.type == "C"] == [["COPY 4"]]
        assert wire.query("DELETE FROM target RETURNING a") == [["1"], ["2"], ["3"], ["4"]]
    assert_healthy(server)


RESULTS = {
    "rows": ("SELECT repeat('x', 1000) FROM generate_series(1, 20000)", "D", 20000),
    "one row": ("SELECT repeat('x', 20000000)", "D", 1),
    "copy": ("COPY (SELECT repeat('x', 1000) FROM generate_series(1, 20000)) TO STDOUT", "d", 20000),
    "notices": ("DO $$ BEGIN FOR i IN 1..20000 LOOP RAISE NOTICE '%', repeat('x', 1000); END LOOP; END $$", "N", 20000),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_larger_than_the_socket_waits_for_its_reader(server, name):
    sql, kind, count = RESULTS[name]
    with handed_over(server) as wire:
        wire.send(query(sql))
        wait_for_event(server, "ClientWrite")
        assert sum(message.type == kind for message in wire.until_ready()) == count
        assert wire.query("SELECT 1") == [["1"]]
    assert_healthy(server)


CHECKED = "SET client_connection_check_interval = '50ms'"
# one that sends nothing before it sleeps
SLEEP = "DO $$ BEGIN PERFORM pg_sleep(600); END $$"


@pytest.mark.parametrize("statements", [[CHECKED, SLEEP], [f"{CHECKED}; {SLEEP}"]], ids=["before", "within"])
def test_client_with_connection_check_ends_statement_by_leaving(server, statements):
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    wire = handed_over(server)
    for statement in statements[:-1]:
        wire.query(statement)
    wire.send(query(statements[-1]))
    wait_until(lambda: server.sql(sleeping)[0][0] == 1, what="the statement runs")
    time.sleep(0.3)
    assert server.sql(sleeping)[0][0] == 1, "some checks have found the client, and it goes on"
    wire.close()
    wait_until(lambda: server.sql(sleeping)[0][0] == 0, what="the statement has ended")
    assert_healthy(server)


def signal_is_pending(pid: int, number: int) -> bool:
    """Has a process that is stopped been sent a signal?"""
    status = Path(f"/proc/{pid}/status").read_text()
    pending = re.findall(r"^(?:SigPnd|ShdPnd):\s+([0-9a-f]+)", status, re.M)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in pending)


@needs_gdb
def test_timeout_in_unnamed_statement_restore_harms_no_session(make_cluster):
    server = make_cluster(parameters={"pg_baton.max_backends": 1})
    server.sql("CREATE EXTENSION pg_baton")
    login = {"host": "127.0.0.1", "port": server.pool_port}
    with Wire.login(**login) as other, Wire.login(**login) as timed:
        timed.query("SET statement_timeout = '5s'")
        timed.ask(parse("SELECT 'mine'") + sync())
        # a Query drops the unnamed statement: that of the first must be injected
        other.query("SELECT 1")
        ((pid,),) = server.sql("SELECT pid FROM pg_baton_backends")
        # called by exec_parse_message(), which has started the timer
        with stopped_at(pid, "CompleteCachedPlan") as stop:
            timed.send(bind() + execute() + sync())
            stop.wait()
            # an earlier SIGALRM may be that of a timer that was set back
            due = time.monotonic() + 5
            wait_until(
                lambda: time.monotonic() > due and signal_is_pending(pid, signal.SIGALRM), what="the timer has fired"
            )
        assert [message.row() for message in timed.until_ready() if message.type == "D"] == [[b"mine"]]
        assert timed.query("SELECT 2") == [["2"]]
    assert_healthy(server)


@needs_gdb
def test_backend_ended_in_unnamed_statement_restore_tells_client(make_cluster):
    server = make_cluster(parameters={"pg_baton.max_backends": 1})
    server.sql("CREATE EXTENSION pg_baton")
    login = {"host": "127.0.0.1", "port": server.pool_port}
    with Wire.login(**login) as other, Wire.login(**login) as session:
        session.ask(parse("SELECT 'mine'") + sync())
        other.query("SELECT 1")
        ((pid,),) = server.sql("SELECT pid FROM pg_baton_backends")
        with stopped_at(pid, "CompleteCachedPlan") as stop:
            session.send(bind() + execute() + sync())
            stop.wait()
            server.sql(f"SELECT pg_terminate_backend({pid})")
        assert [m.fields()["C"] for m in session.until_closed(20) if m.type == "E"] == ["57P01"]
        assert other.query("SELECT 2") == [["2"]]
    assert_healthy(server)
