"""A cancel request ends the statement it was meant for, and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import threading
import time

import psycopg
import pytest
from harness.control_memory import ControlMemory
from harness.debugger import needs_gdb, stopped_at
from harness.health import stop, wait_until
from harness.wire import (
    LoginFailed,
    Wire,
    bind,
    copy_data,
    copy_done,
    describe_statement,
    execute,
    flush,
    function_call,
    parse,
    query,
    startup,
    sync,
)

PARAMETERS = {"pg_baton.max_backends": 4}
SETUP = ["CREATE TABLE locked (a int)"]


def open_wire(server, **options) -> Wire:
    return Wire.login("127.0.0.1", server.pool_port, **options)


def errors(messages) -> list[str]:
    return [m.fields()["C"] for m in messages if m.type == "E"]


def wait_until_running(server, pattern: str, count: int = 1) -> None:
    def running() -> bool:
        ((found,),) = server.sql(
            f"SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '{pattern}'"
            " AND pid <> pg_backend_pid()"
        )
        return found >= count

    wait_until(running, 20, f"{pattern} runs")


@contextlib.contextmanager
def running(server, session: Wire, what: str):
    """Makes the session run a statement that ends by itself when the block ends."""
    with psycopg.connect(server.direct()) as locker:
        locker.execute("SELECT pg_advisory_xact_lock(5)")
        session.send(query(f"SELECT pg_advisory_xact_lock(5), '{what}'"))
        wait_until_running(server, f"%''{what}''%")
        yield
        time.sleep(0.1)  # a cancel for another statement may be on its way


def test_cancel_ends_the_running_statement_and_not_the_session(server):
    with open_wire(server) as session:
        for turn in range(5):
            session.send(query(f"SELECT pg_sleep(60), 'run{turn}'"))
            wait_until_running(server, f"%pg_sleep(60), ''run{turn}''%")
            session.cancel_request()
            found = session.until_ready(20)
            assert errors(found) == ["57014"]
            assert found[0].type in "TE" and found[-1].body == b"I"
            assert session.query("SELECT 1") == [["1"]]


def test_cancel_over_the_unix_socket(server):
    with Wire.login(str(server.home), server.pool_port) as session:
        session.send(query("SELECT pg_sleep(60), 'unix'"))
        wait_until_running(server, "%''unix''%")
        session.cancel_request()
        assert errors(session.until_ready(20)) == ["57014"]


def test_cancel_inside_a_transaction(server):
    with open_wire(server) as session:
        session.query("BEGIN")
        session.send(query("SELECT pg_sleep(60), 'in tx'"))
        wait_until_running(server, "%''in tx''%")
        session.cancel_request()
        found = session.until_ready(20)
        assert errors(found) == ["57014"] and found[-1].body == b"E"
        session.query("ROLLBACK")
        assert session.query("SELECT 1") == [["1"]]


def test_cancel_of_an_idle_session_does_nothing_ever(server):
    with open_wire(server) as session, open_wire(server) as other:
        for _ in range(30):
            session.cancel_request()
            assert session.query("SELECT 1") == [["1"]]
            assert other.query("SELECT 2") == [["2"]]
        time.sleep(0.3)
        for _ in range(5):
            assert session.query("SELECT pg_sleep(0.02), 1") == [["", "1"]]
            assert other.query("SELECT pg_sleep(0.02), 2") == [["", "2"]]


@pytest.mark.pool_only
@pytest.mark.parametrize("before", ["a new backend", "a login that was refused"])
def test_cancel_of_idle_session_does_nothing_on_any_backend(make_cluster, before):
    """A backend keeps holding cancels off after its start, and after an error that
    it survives (PostgreSQL ends the holding off at both)."""
    cluster = make_cluster(parameters={"pg_baton.max_backends": 1})
    cluster.sql("CREATE ROLE newcomer LOGIN")
    if before != "a new backend":
        with open_wire(cluster, user="newcomer") as first:
            first.query("SELECT 1")
        with pytest.raises(LoginFailed):
            open_wire(cluster, user="newcomer", work_mem="nonsense")
    # No session before has had these startup options: a backend greets this session.
    with open_wire(cluster, user="newcomer", work_mem="5MB") as session:
        for _ in range(10):
            session.cancel_request()
            assert session.silent(0.05)
        assert session.query("SELECT 1") == [["1"]]


def test_cancel_of_a_session_idle_in_transaction_does_nothing(server):
    with open_wire(server) as session:
        session.query("BEGIN")
        session.cancel_request()
        time.sleep(0.2)
        assert session.query("SELECT pg_sleep(0.1), 1") == [["", "1"]]
        session.query("COMMIT")


def test_wrong_key_cancels_nothing(server):
    with open_wire(server) as session:
        with running(server, session, "wrong key"):
            session.cancel_request(key=bytes(b ^ 0x55 for b in session.cancel_key))
            session.cancel_request(pid=session.backend_pid + 1)
            session.cancel_request(pid=0)
            session.cancel_request(key=b"", pid=session.backend_pid)
            session.cancel_request(key=b"\0" * 4)
            session.cancel_request(key=session.cancel_key + b"\0" * 12)
        assert errors(session.until_ready(20)) == []


def test_each_session_has_its_own_cancel_key(server):
    sessions = [open_wire(server) for _ in range(12)]
    try:
        keys = {(s.backend_pid, s.cancel_key) for s in sessions}
        assert len(keys) == len(sessions)
        assert len({s.backend_pid for s in sessions}) == len(sessions)
        assert all(s.backend_pid > 0 for s in sessions)
    finally:
        for session in sessions:
            session.finish()


def test_cancel_hits_only_its_session_among_many(server):
    with open_wire(server) as one, open_wire(server) as two, open_wire(server) as three:
        one.send(query("SELECT pg_sleep(60), 'one'"))
        wait_until_running(server, "%''one''%")
        with running(server, two, "two"):
            one.cancel_request()
            assert errors(one.until_ready(20)) == ["57014"]
            assert three.query("SELECT 3") == [["3"]]
        assert errors(two.until_ready(20)) == []


REQUESTS = {
    "query": query("INSERT INTO cancelled VALUES (1)"),
    "extended": parse("INSERT INTO cancelled VALUES (1)") + bind() + execute() + sync(),
    "function call": function_call(177, [b"\0\0\0\1", b"\0\0\0\2"]),  # int4pl
}

ENDLESS = {
    "query": query("SELECT pg_sleep(60)"),
    "extended": parse("SELECT pg_sleep(60)") + bind() + execute() + sync(),
    "function call": function_call(2626, [struct.pack("!d", 60)]),  # pg_sleep: the server analyses nothing for it
}


@pytest.mark.pool_only
@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("forced", [False, True], ids=["queued", "forced"])
def test_cancelled_waiting_statement_ends_at_once_and_never_runs(make_cluster, name, forced):
    """As in stock, where the statement would be running. Other sessions hold the backends throughout.

    (With forced migration sessions wait with the dispatcher, else in the ready queue.)"""
    server = make_cluster(parameters={"pg_baton.max_backends": 2, "pg_baton.force_migration": forced})
    server.sql("CREATE EXTENSION pg_baton")
    server.sql("CREATE TABLE cancelled (a int)")
    with open_wire(server) as one, open_wire(server) as two, open_wire(server) as waiting:
        for holder in (one, two):
            holder.query("BEGIN")
        for turn in range(3):
            waiting.send(REQUESTS[name])
            wait_until(lambda: server.sql("SELECT sum(waiting) FROM pg_baton_pools") == [(1,)], what="it waits")
            waiting.cancel_request()
            found = waiting.until_ready(20)
            assert [m.type for m in found] == ["E", "Z"] and found[-1].body == b"I"
            error = found[0].fields()
            assert (error["S"], error["C"]) == ("ERROR", "57014")
            assert error["M"] == "canceling statement due to user request"
        # the log has the message, as in stock
        said = "ERROR:  canceling statement due to user request"
        wait_until(lambda: server.log().count(said) == 3, what="each is logged")
        # a late cancel, and then the next request, which waits for its turn
        waiting.cancel_request()
        waiting.send(query("SELECT 5"))
        for holder in (one, two):
            holder.query("COMMIT")
        assert [m.row() for m in waiting.until_ready(20) if m.type == "D"] == [[b"5"]]
        assert one.query("SELECT count(*) FROM cancelled") == [["0"]]


@pytest.mark.pool_only
@pytest.mark.parametrize("request_", [query("SELECT 2"), parse("SELECT 2") + sync()], ids=["query", "parse"])
@pytest.mark.parametrize("forced", [False, True], ids=["queued", "forced"])
def test_a_cancelled_waiting_request_drops_the_unnamed_statement(make_cluster, request_, forced):
    """As in stock, where the error comes after the request's beginning. A later Bind finds no statement from before."""
    server = make_cluster(parameters={"pg_baton.max_backends": 2, "pg_baton.force_migration": forced})
    server.sql("CREATE EXTENSION pg_baton")
    with open_wire(server) as one, open_wire(server) as two, open_wire(server) as waiting:
        assert waiting.ask(parse("SELECT 1"), sync())[0].type == "1"
        for holder in (one, two):
            holder.query("BEGIN")
        waiting.send(request_)
        wait_until(lambda: server.sql("SELECT sum(waiting) FROM pg_baton_pools") == [(1,)], what="it waits")
        waiting.cancel_request()
        assert errors(waiting.until_ready(20)) == ["57014"]
        for holder in (one, two):
            holder.query("COMMIT")
        assert errors(waiting.ask(bind(), execute(), sync())) == ["26000"]
        assert errors(waiting.ask(parse("SELECT 3"), bind(), execute(), sync())) == []


def cancel_on_its_way(server, session: Wire, message: bytes, pid: int) -> None:
    """Cancels the session when the dispatcher has sent it to this stopped backend: the message ends with 57014."""
    stop(pid)
    try:
        session.send(message)
        wait_until(lambda: server.sql("SELECT state FROM pg_baton_backends") == [("assigned",)], what="it is sent")
        session.cancel_request()
        assert session.silent(0.1)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert errors(session.until_ready(20)) == ["57014"]


@pytest.mark.pool_only
@pytest.mark.parametrize("name", ENDLESS)
def test_a_cancel_on_its_session_s_way_to_a_backend_counts(make_cluster, name):
    """The dispatcher no longer holds the session, and the backend does not hold it yet."""
    server = make_cluster(parameters={"pg_baton.max_backends": 1})
    server.sql("CREATE EXTENSION pg_baton")
    with open_wire(server) as session:
        session.query("SELECT 1")
        (pid,), *_ = server.sql("SELECT pid FROM pg_baton_backends")
        wait_until(lambda: server.sql("SELECT state FROM pg_baton_backends") == [("idle",)], what="it is given back")
        cancel_on_its_way(server, session, ENDLESS[name], pid)
        assert session.query("SELECT 1") == [["1"]]


@contextlib.contextmanager
def locking(server):
    """The table is locked, and no deferrable transaction gets a snapshot, until the block ends."""
    with psycopg.connect(server.direct()) as locker:
        locker.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        locker.execute("LOCK TABLE locked")
        locker.execute("SELECT FROM locked")  # takes the snapshot
        yield


def wait_until_blocked(server, name: str) -> None:
    waits = (
        f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'"
        " AND wait_event IN ('relation', 'SafeSnapshot')"
    )
    wait_until(lambda: server.sql(waits) == [(1,)], 20, f"{name} is blocked")


DEFERRABLE = ("isolation = serializable", "read_only = on", "deferrable = on")

# What a session sends before, and the messages that wait for a lock before anything of theirs runs.
BLOCKED = {
    "SELECT": ([], query("SELECT * FROM locked")),
    "INSERT": ([], query("INSERT INTO locked VALUES (1)")),
    "Parse": ([], parse("SELECT * FROM locked") + sync()),
    "Describe": ([parse("SELECT * FROM locked", "s") + sync()], describe_statement("s") + sync()),
    "Bind": ([parse("SELECT * FROM locked", "s") + sync()], bind([], "s") + execute() + sync()),
    "unnamed Bind": ([parse("SELECT * FROM locked") + sync()], bind() + execute() + sync()),
    "snapshot": ([query(f"SET default_transaction_{it}") for it in DEFERRABLE], query("SELECT 1")),
}


@pytest.mark.parametrize("by", ["cancel request", "pg_cancel_backend"])
@pytest.mark.parametrize("name", BLOCKED)
def test_cancel_ends_a_statement_whose_analysis_is_blocked(server, name, by):
    """A session's first statement, one after others had its backend, and one after an error."""
    before, blocked = BLOCKED[name]
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(open_wire(server, application_name="blocked"))
        others = [stack.enter_context(open_wire(server)) for _ in range(4)]
        for message in before:
            assert errors(session.ask(message)) == []
        for _ in range(3):
            with locking(server):
                session.send(blocked)
                wait_until_blocked(server, "blocked")
                if by == "cancel request":
                    session.cancel_request()
                else:
                    assert server.sql(f"SELECT pg_cancel_backend({session.backend_pid})") == [(True,)]
                found = session.until_ready(20)
            assert errors(found) == ["57014"] and found[-1].body == b"I"
            for sql in ("BEGIN", "COMMIT"):
                for other in others:
                    other.query(sql)
        if name != "Parse":
            assert errors(session.ask(blocked)) == []


def test_cancel_between_two_messages_of_a_batch_does_nothing(server):
    """The session has begun a batch, and its next message has not been sent.

    (A Bind starts only a SELECT's execution.)"""
    with open_wire(server) as session, open_wire(server) as other:
        assert errors(session.ask(parse("DELETE FROM locked", "s") + sync())) == []
        for _ in range(3):
            other.query("SELECT 2")
            session.send(bind([], "s") + flush())
            session.read_until("2", 20)
            session.cancel_request()
            assert session.silent(0.2)
            found = session.ask(execute() + sync())
            assert [m.type for m in found] == ["C", "Z"]


@pytest.mark.pool_only
@pytest.mark.parametrize("name", BLOCKED)
def test_a_cancel_before_its_statement_blocks_counts(make_cluster, name):
    """The session is on its way to a backend; its statement is blocked as soon as it begins."""
    server = make_cluster(parameters={"pg_baton.max_backends": 1})
    server.sql("CREATE EXTENSION pg_baton")
    server.sql(*SETUP)
    before, blocked = BLOCKED[name]
    with open_wire(server) as session:
        for message in [query("SELECT 1"), *before]:
            assert errors(session.ask(message)) == []
        (pid,), *_ = server.sql("SELECT pid FROM pg_baton_backends")
        for _ in range(2):
            with open_wire(server) as other:
                other.query("SELECT 2")
            wait_until(lambda: server.sql("SELECT state FROM pg_baton_backends") == [("idle",)], what="it is free")
            with locking(server):
                cancel_on_its_way(server, session, blocked, pid)
        assert session.query("SELECT 1") == [["1"]]


@pytest.mark.pool_only
@needs_gdb
@pytest.mark.parametrize("place", ["baton_context_install", "SetCurrentStatementStartTimestamp"])
@pytest.mark.parametrize("name", BLOCKED)
def test_a_cancel_as_its_blocked_statement_is_read_counts(make_cluster, name, place):
    """The backend puts the session in place, or has read the message and has begun nothing."""
    server = make_cluster(parameters={"pg_baton.max_backends": 1})
    server.sql("CREATE EXTENSION pg_baton")
    server.sql(*SETUP)
    before, blocked = BLOCKED[name]
    with open_wire(server) as session, open_wire(server) as other:
        for turn in (session, other) * 2:
            turn.query("SELECT 1")
        for message in before:
            assert errors(session.ask(message)) == []
        for sql in ("BEGIN", "COMMIT"):
            other.query(sql)
        ((pid,),) = server.sql("SELECT pid FROM pg_baton_backends WHERE pid IS NOT NULL")
        with locking(server):
            with stopped_at(pid, place) as stop:
                session.send(blocked)
                stop.wait()
                session.cancel_request()
                wait_until(lambda: slot_of(server, pid).cancel != 0, what="the cancel is sent")
            assert errors(session.until_ready(20)) == ["57014"]
        assert session.query("SELECT 2") == other.query("SELECT 2") == [["2"]]


@pytest.mark.pool_only
@pytest.mark.parametrize("nothing", [flush(), copy_data(b"late"), copy_done()], ids=["Flush", "CopyData", "CopyDone"])
def test_a_cancel_of_a_session_that_asks_nothing_is_forgotten(make_cluster, nothing):
    """The cancel comes while the session is on its way to a backend. It must not wait there for the next statement."""
    server = make_cluster(parameters={"pg_baton.max_backends": 1})
    server.sql("CREATE EXTENSION pg_baton")

    def backend() -> tuple:
        ((state, session_id, switches),) = server.sql("SELECT state, session_id, switches FROM pg_baton_backends")
        return (state, session_id is not None, switches)

    with open_wire(server) as session:
        session.query("SELECT 1")
        (pid,), *_ = server.sql("SELECT pid FROM pg_baton_backends")
        wait_until(lambda: backend()[:2] == ("idle", False), what="it is given back")
        switches = backend()[2]
        stop(pid)
        try:
            session.send(nothing)
            wait_until(lambda: backend()[0] == "assigned", what="it is sent")
            session.cancel_request()
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: backend()[2] > switches and backend()[0] != "busy", what="that is read")
        for number in range(3):
            assert session.query(f"SELECT {number}") == [[str(number)]]


@pytest.mark.pool_only
def test_a_cancel_in_a_waiting_crowd_changes_no_other_turn(make_cluster):
    """More sessions wait than the ready queue holds. The first, the last and some in between are cancelled."""
    server = make_cluster(parameters={"pg_baton.max_backends": 1})
    server.sql("CREATE EXTENSION pg_baton")
    crowd = [open_wire(server) for _ in range(90)]
    try:
        with open_wire(server) as holder:
            holder.query("BEGIN")
            for number, session in enumerate(crowd, 1):
                session.send(query("SELECT clock_timestamp()"))
                wait_until(
                    lambda: server.sql("SELECT sum(waiting) FROM pg_baton_pools") == [(number,)], what="it waits"
                )
            for session in crowd[::10] + crowd[-1:]:
                session.cancel_request()
                assert errors(session.until_ready(20)) == ["57014"]
            holder.query("COMMIT")
        left = [session for place, session in enumerate(crowd) if place % 10 and session is not crowd[-1]]
        times = [[m.row() for m in session.until_ready(20) if m.type == "D"][0][0] for session in left]
        assert len(times) == 80 and times == sorted(times)
        assert {session.query("SELECT 1")[0][0] for session in crowd} == {"1"}
    finally:
        for session in crowd:
            session.finish()


@pytest.mark.pool_only
def test_a_cancelled_statement_has_either_happened_or_not(make_cluster):
    """Under a storm of cancels, for sessions that wait for one backend most of
    the time: no statement that is answered with 57014 is executed afterwards."""
    server = make_cluster(parameters={"pg_baton.max_backends": 1})
    server.sql("CREATE TABLE done (session int, number int)")
    stop = threading.Event()
    failures: list[str] = []
    happened: set[tuple[int, int]] = set()

    def work(index: int, session: Wire) -> None:
        for number in range(150):
            found = session.ask(query(f"INSERT INTO done VALUES ({index}, {number})"), timeout_s=30)
            codes = errors(found)
            if codes not in ([], ["57014"]) or [m.type for m in found].count("Z") != 1:
                failures.append(f"session {index}: {found}")
            if not codes:
                happened.add((index, number))

    def storm(session: Wire) -> None:
        while not stop.is_set():
            session.cancel_request()

    sessions = [open_wire(server) for _ in range(3)]
    try:
        storms = [threading.Thread(target=storm, args=(session,)) for session in sessions]
        workers = [threading.Thread(target=work, args=item) for item in enumerate(sessions)]
        for thread in storms + workers:
            thread.start()
        for thread in workers:
            thread.join()
        stop.set()
        for thread in storms:
            thread.join()
        assert failures == []
        assert all(session.silent(0.2) for session in sessions), "an extra message came"
        assert [session.query("SELECT 1") for session in sessions] == [[["1"]]] * 3
        assert set(server.sql("SELECT session, number FROM done")) == happened
    finally:
        stop.set()
        for session in sessions:
            session.finish()


def test_no_stray_cancel_under_a_storm_of_them(server):
    """Cancels at random moments hit this session's statements only: each
    statement gives its own answer or 57014, and no other session gets a 57014."""
    stop = threading.Event()
    failures: list[str] = []

    with open_wire(server) as victim, open_wire(server) as bystander:

        def storm() -> None:
            while not stop.is_set():
                victim.cancel_request()

        def bystand() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    if bystander.query(f"SELECT {number}") != [[str(number)]]:
                        failures.append(f"bystander got another answer than {number}")
                except Exception as error:
                    failures.append(f"bystander: {error}")
                    return

        threads = [threading.Thread(target=storm), threading.Thread(target=bystand)]
        for thread in threads:
            thread.start()
        try:
            for number in range(400):
                found = victim.ask(parse(f"SELECT {number}") + bind([]) + execute() + sync())
                rows = [m.row() for m in found if m.type == "D"]
                codes = errors(found)
                if codes not in ([], ["57014"]):
                    failures.append(f"victim: {codes}")
                if not codes and rows != [[str(number).encode()]]:
                    failures.append(f"victim got {rows} for {number}")
                if [m.type for m in found].count("Z") != 1:
                    failures.append("more than one ReadyForQuery")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        time.sleep(0.2)
        assert victim.silent(0.2), "an extra message came"
        assert victim.query("SELECT 1") == [["1"]]
    assert failures == []


def slot_of(server, backend_pid: int):
    """The slot of a backend. Its word `cancel` names the session that a cancel is meant for."""
    ((number,),) = server.sql(f"SELECT slot FROM pg_baton_backends WHERE pid = {backend_pid}")
    slot = ControlMemory(server).backend_slot(number)
    assert slot.pid == backend_pid
    return slot


def run_endlessly(server, session: Wire, what: str) -> None:
    session.send(query(f"SELECT pg_sleep(60), '{what}'"))
    wait_until_running(server, f"%''{what}''%")


def find(server, name: str) -> tuple[int, int]:
    """A running session's id, and its backend's PID."""
    (found,) = server.sql(f"SELECT id, backend_pid FROM pg_baton_sessions WHERE application_name = '{name}'")
    return found


@pytest.mark.pool_only
def test_a_late_cancel_spares_the_session_that_came_instead(server):
    """The session that the cancel names may have left while the signal was on its way."""
    with open_wire(server, application_name="gone") as gone, open_wire(server, application_name="came") as came:
        gone.query("SELECT 1")
        ((gone_id,),) = server.sql("SELECT id FROM pg_baton_sessions WHERE application_name = 'gone'")
        with running(server, came, "spared"):
            came_id, pid = find(server, "came")
            slot_of(server, pid).cancel = gone_id
            os.kill(pid, signal.SIGUSR2)
        assert errors(came.until_ready(20)) == []
        run_endlessly(server, came, "meant")
        _, pid = find(server, "came")
        slot_of(server, pid).cancel = came_id
        os.kill(pid, signal.SIGUSR2)
        assert errors(came.until_ready(20)) == ["57014"]
        assert came.query("SELECT 1") == gone.query("SELECT 1") == [["1"]]


@pytest.mark.pool_only
def test_a_cancel_names_its_session_before_signalling_a_backend(server):
    with open_wire(server, application_name="named") as session:
        run_endlessly(server, session, "stopped")
        session_id, pid = find(server, "named")
        slot = slot_of(server, pid)
        stop(pid)
        try:
            session.cancel_request()
            wait_until(lambda: slot.cancel != 0, what="the cancel has a name")
            assert slot.cancel == session_id
        finally:
            os.kill(pid, signal.SIGCONT)
        assert errors(session.until_ready(20)) == ["57014"]
        assert slot.cancel == 0


@pytest.mark.pool_only
@needs_gdb
def test_a_cancel_while_its_session_is_put_in_place_counts(make_cluster):
    """The session's request waits in its socket: the cancel is meant for it."""
    server = make_cluster(parameters={"pg_baton.max_backends": 1})
    server.sql("CREATE EXTENSION pg_baton")
    with open_wire(server) as session, open_wire(server) as other:
        for turn in (session, other) * 2:
            turn.query("SELECT 1")
        ((pid,),) = server.sql("SELECT pid FROM pg_baton_backends WHERE pid IS NOT NULL")
        with stopped_at(pid, "baton_context_install") as stop:
            session.send(query("SELECT pg_sleep(60), 'just come'"))
            stop.wait()
            session.cancel_request()
            wait_until(lambda: slot_of(server, pid).cancel != 0, what="the cancel is sent")
        assert errors(session.until_ready(30)) == ["57014"]
        assert session.query("SELECT 2") == other.query("SELECT 2") == [["2"]]


@pytest.mark.pool_only
def test_a_cancel_seen_by_dispatcher_before_its_statement_counts(make_cluster):
    """The dispatcher holds the session. Both the statement and the cancel wait when it looks."""
    server = make_cluster(parameters={"pg_baton.max_backends": 3, "pg_baton.force_migration": True})
    (dispatcher,) = server.dispatcher_pids()
    with open_wire(server) as session:
        for _ in range(10):
            session.query("SELECT 1")
            stop(dispatcher)
            try:
                session.send(query("SELECT pg_sleep(20)"))
                wait_until(lambda: session.unread_by_server() not in (None, 0), what="the statement has come")
            finally:
                # late enough that the cancel has come as well
                awake = threading.Timer(0.1, os.kill, (dispatcher, signal.SIGCONT))
                awake.start()
            session.cancel_request()
            awake.join()
            assert errors(session.until_ready(30)) == ["57014"]


def test_psycopg_cancel_works(server):
    with psycopg.connect(server.pool(), autocommit=True) as session:

        def cancel() -> None:
            wait_until_running(server, "%''by psycopg''%")
            session.cancel()

        thread = threading.Thread(target=cancel)
        thread.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            session.execute("SELECT pg_sleep(60), 'by psycopg'")
        thread.join()
        assert session.execute("SELECT 1").fetchone() == (1,)


def test_pg_cancel_backend_cancels_what_runs(server):
    with open_wire(server, application_name="to_cancel") as session:
        session.send(query("SELECT pg_sleep(60), 'by pid'"))
        wait_until_running(server, "%''by pid''%")
        server.sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'to_cancel'")
        assert errors(session.until_ready(20)) == ["57014"]
        assert session.query("SELECT 1") == [["1"]]


@pytest.mark.pool_only
def test_the_pid_of_a_cancel_key_is_no_process_s(server):
    """A client may pass it to any function that takes PIDs; Linux has no PID above 2^22."""
    for _ in range(20):
        with Wire.login("127.0.0.1", server.pool_port) as wire:
            assert wire.backend_pid > 1 << 22


@pytest.mark.pool_only
def test_a_lock_timeout_at_login_is_no_cause_of_a_later_cancel(make_cluster):
    """The backend that greets may wait for a catalog's lock, under the client's settings."""
    server = make_cluster(parameters={"pg_baton.max_backends": 1})
    server.sql("CREATE EXTENSION pg_baton")
    with open_wire(server), psycopg.connect(server.direct()) as locker:
        locker.execute("LOCK pg_db_role_setting IN ACCESS EXCLUSIVE MODE")
        session = Wire.open("127.0.0.1", server.pool_port)
        session.send(startup({"user": "postgres", "database": "postgres", "options": "-c lock_timeout=100"}))
        waits = "SELECT count(*) FROM pg_locks WHERE relation = 'pg_db_role_setting'::regclass AND NOT granted"
        wait_until(lambda: locker.execute(waits).fetchone() == (1,), what="the backend waits for the lock")
        time.sleep(0.5)  # the timeout passes meanwhile; otherwise the test proves nothing
        locker.rollback()
        session.until_ready()
        for _ in range(3):
            session.send(query("SELECT pg_sleep(60)"))
            wait_until_running(server, "SELECT pg_sleep(60)%")
            session.cancel_request()
            found = session.until_ready(20)
            assert errors(found) == ["57014"], found
        session.finish()
