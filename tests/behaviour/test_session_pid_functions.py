"""Each function and view of SQL that gives or takes a process ID means the session,
whether a backend serves it, it waits for one, or it is idle."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest
from harness.account import server_major
from harness.health import stop, wait_until
from harness.wire import Closed, Wire, query

SETUP = [
    "CREATE EXTENSION pg_baton",
    "CREATE TABLE copied (a int)",
    "CREATE TABLE kept AS SELECT i AS a FROM generate_series(1, 100) i",
]
PARAMETERS = {"pg_baton.max_backends": 3, "max_replication_slots": 5, "max_parallel_workers_per_gather": 2}


def open_wire(server, **options) -> Wire:
    return Wire.login("127.0.0.1", server.pool_port, **options)


def mixed(server) -> None:
    """Makes the pool's backends serve other sessions."""
    with open_wire(server) as one, open_wire(server) as two:
        for _ in range(3):
            one.query("SELECT 1")
            two.query("SELECT 2")


def texts(messages, types: str = "NE") -> list[str]:
    return [m.fields()["M"] for m in messages if m.type in types]


@pytest.fixture
def three(make_cluster):
    """The server, and by name a session on a backend, a session that waits and an idle session."""
    server = make_cluster(parameters={"pg_baton.max_backends": 1})
    server.sql("CREATE EXTENSION IF NOT EXISTS pg_baton")
    with open_wire(server) as idle, open_wire(server) as waiting, open_wire(server) as served:
        idle.query("SELECT 'idle one'")
        waiting.query("SELECT 'waiting one'")
        served.query("BEGIN")
        served.query("SELECT 'served one'")
        waiting.send(query("SELECT 'has waited'"))
        state = f"SELECT state FROM pg_stat_activity WHERE pid = {waiting.backend_pid}"
        wait_until(lambda: server.sql(state) == [("active",)], what="it waits")
        yield server, {"idle": idle, "waiting": waiting, "served": served}
        served.query("COMMIT")
        with contextlib.suppress(Closed):  # a test may have ended it
            waiting.until_ready(20)


def test_the_progress_of_a_command_is_its_session_s(server):
    with open_wire(server) as session:
        for _ in range(2):
            mixed(server)
            session.send(query("COPY copied FROM STDIN"))
            session.read_until("G", 20)
            # BeginCopyFrom() reports the command a moment after it has asked for data.
            shown = [(session.backend_pid, "COPY FROM")]
            progress = "SELECT pid, command FROM pg_stat_progress_copy"
            wait_until(lambda: server.sql(progress) == shown, what="the command is shown")
            session.send(b"c\0\0\0\4")
            session.until_ready(20)
        assert server.sql("SELECT pid FROM pg_stat_progress_copy") == []


def test_a_replication_slot_is_in_use_by_its_session(server):
    with open_wire(server) as session:
        for name in ("one", "two"):
            mixed(server)
            session.query(f"SELECT pg_create_physical_replication_slot('{name}', false, true)")
            assert server.sql(f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{name}'") == [
                (session.backend_pid,)
            ]
            session.query(f"SELECT pg_drop_replication_slot('{name}')")


def test_a_parallel_worker_s_leader_is_the_session(server):
    parameter = (
        "debug_parallel_query" if server.sql("SHOW server_version_num")[0][0] >= "160000" else "force_parallel_mode"
    )
    with open_wire(server) as session:
        session.query(f"SET {parameter} = on")
        for _ in range(2):
            mixed(server)
            session.send(query("SELECT pg_sleep(60) FROM kept LIMIT 1"))
            workers = "SELECT DISTINCT leader_pid FROM pg_stat_activity WHERE backend_type = 'parallel worker'"
            wait_until(lambda: server.sql(workers) == [(session.backend_pid,)], what="a worker is shown")
            server.sql(f"SELECT pg_cancel_backend({session.backend_pid})")
            session.until_ready(20)


def test_safe_snapshot_blocker_is_shown_as_a_session(server):
    with open_wire(server) as writer, open_wire(server) as reader:
        mixed(server)
        writer.query("BEGIN ISOLATION LEVEL SERIALIZABLE")
        writer.query("INSERT INTO kept VALUES (0)")
        reader.query("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE")
        reader.send(query("SELECT count(*) FROM kept"))
        blockers = f"SELECT pg_safe_snapshot_blocking_pids({reader.backend_pid})"
        wait_until(lambda: server.sql(blockers) == [([writer.backend_pid],)], what="one waits for the other")
        assert server.sql(f"SELECT pg_safe_snapshot_blocking_pids({writer.backend_pid})") == [([],)]
        writer.query("ROLLBACK")
        reader.until_ready(20)
        reader.query("COMMIT")


def test_an_ordinary_process_s_number_means_that_process(server):
    """The number means the process, whichever session it serves: docs/limits.md."""
    with open_wire(server) as session:
        session.send(query("SELECT pg_sleep(60)"))
        state = f"SELECT state FROM pg_stat_activity WHERE pid = {session.backend_pid}"
        wait_until(lambda: server.sql(state) == [("active",)], what="it runs")
        if server.pool_port == server.port:
            process = session.backend_pid
        else:
            ((process,),) = server.sql(f"SELECT pid FROM pg_baton_backends WHERE session_pid = {session.backend_pid}")
        assert server.sql(f"SELECT pg_cancel_backend({process})") == [(True,)]
        assert texts(session.until_ready(20)) == ["canceling statement due to user request"]


@pytest.mark.pool_only
def test_each_session_has_a_pg_stat_ssl_and_pg_stat_gssapi_row(three):
    server, sessions = three
    for wire in sessions.values():
        assert server.sql(f"SELECT ssl, version, client_dn FROM pg_stat_ssl WHERE pid = {wire.backend_pid}") == [
            (True, "TLSv1.3", None) if server.by_tls else (False, None, None)
        ]
        assert server.sql(
            f"SELECT gss_authenticated, principal, encrypted FROM pg_stat_gssapi WHERE pid = {wire.backend_pid}"
        ) == [(False, None, False)]


@pytest.mark.pool_only
def test_only_a_served_session_logs_its_memory_contexts(three):
    server, sessions = three
    with Wire.login("127.0.0.1", server.port) as other:

        def answer(wire: Wire) -> tuple[list, list]:
            messages = other.ask(query(f"SELECT pg_log_backend_memory_contexts({wire.backend_pid})"))
            return [m.row() for m in messages if m.type == "D"], texts(messages)

        for name in ("idle", "waiting"):
            pid = sessions[name].backend_pid
            assert answer(sessions[name]) == (
                [[b"f"]],
                [f"session with PID {pid} has no memory contexts, as no backend serves it"],
            )
        assert answer(sessions["served"]) == ([[b"t"]], [])
        ((process,),) = server.sql("SELECT pid FROM pg_baton_backends WHERE session_pid IS NOT NULL")
        sessions["served"].query("SELECT 1")
        server.wait_for_log(f"logging memory contexts of PID {process}")


@pytest.mark.pool_only
def test_start_time_of_a_wait_does_not_change_between_looks(three):
    server, sessions = three

    def shown(name: str) -> tuple:
        pid = sessions[name].backend_pid
        return server.sql(f"SELECT query_start, state_change FROM pg_stat_activity WHERE pid = {pid}")[0]

    query_start, state_change = shown("waiting")
    assert query_start == state_change
    assert query_start > shown("served")[0]
    assert {shown("waiting") for _ in range(20)} == {(query_start, state_change)}


@pytest.mark.pool_only
def test_functions_by_number_show_the_same_as_pg_stat_activity(three):
    server, sessions = three
    ((version,),) = server.sql("SHOW server_version_num")
    found = server.sql(
        """
        SELECT a.pid,
               ROW(a.datid, a.usesysid, a.query, a.wait_event_type, a.wait_event, a.query_start, a.xact_start,
                   a.backend_start, host(a.client_addr), a.client_port)::text,
               ROW(pg_stat_get_backend_dbid(n), pg_stat_get_backend_userid(n), pg_stat_get_backend_activity(n),
                   pg_stat_get_backend_wait_event_type(n), pg_stat_get_backend_wait_event(n),
                   pg_stat_get_backend_activity_start(n), pg_stat_get_backend_xact_start(n),
                   pg_stat_get_backend_start(n), pg_stat_get_backend_client_addr(n),
                   pg_stat_get_backend_client_port(n)::int)::text
        FROM pg_stat_get_backend_idset() n JOIN pg_stat_activity a ON a.pid = pg_stat_get_backend_pid(n)
        """
    )
    shown = {pid: (view, functions) for pid, view, functions in found}
    assert len(shown) == len(found)
    for name, wire in sessions.items():
        view, functions = shown[wire.backend_pid]
        assert view == functions, name
    if version >= "160000":
        counts = server.sql(
            "SELECT pg_stat_get_backend_pid(n), (pg_stat_get_backend_subxact(n)).* FROM pg_stat_get_backend_idset() n"
        )
        for wire in sessions.values():
            assert (wire.backend_pid, 0, False) in counts


@pytest.mark.pool_only
def test_session_s_statistics_are_those_of_its_serving_backend(three):
    server, sessions = three
    ((version,),) = server.sql("SHOW server_version_num")
    if version < "180000":
        pytest.skip("from 18 on")
    for name, wire in sessions.items():
        rows = f"SELECT count(*) > 0 FROM pg_stat_get_backend_io({wire.backend_pid})"
        assert server.sql(rows) == [(name == "served",)]
        wal = f"SELECT (pg_stat_get_backend_wal({wire.backend_pid})).wal_records IS NOT NULL"
        assert server.sql(wal) == [(name == "served",)]
        server.sql(f"SELECT pg_stat_reset_backend_stats({wire.backend_pid})")


@pytest.mark.skipif(server_major() < 18, reason="came with PostgreSQL 18")
def test_an_asynchronous_read_is_its_session_s(make_cluster):
    """pg_aios: the server's I/O workers stand still, so that a session's reads are seen.

    A parallel worker's reads are its own, as in stock, so the test allows no parallel workers.
    """
    parameters = {"pg_baton.max_backends": 3, "shared_buffers": "1MB", "io_method": "worker"}
    server = make_cluster(parameters={**parameters, "max_parallel_workers_per_gather": 0})
    server.sql("CREATE TABLE large AS SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
    readers = "SELECT DISTINCT pid FROM pg_aios"
    with open_wire(server) as session, Wire.login("127.0.0.1", server.port) as beside:
        mixed(server)
        # A login would wait for the workers, if it has to read a catalog; this session has read its own.
        beside.query(readers)
        workers = [pid for (pid,) in server.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'io worker'")]
        assert workers
        for pid in workers:
            stop(pid)
        try:
            session.send(query("SELECT count(*) FROM large"))
            wait_until(lambda: beside.query(readers) == [[str(session.backend_pid)]], what="its reads are shown")
        finally:
            for pid in workers:
                os.kill(pid, signal.SIGCONT)
        assert [m.row() for m in session.until_ready(20) if m.type == "D"] == [[b"20000"]]


@pytest.mark.pool_only
def test_a_wait_for_the_end_of_a_session_has_its_time(three):
    """pg_terminate_backend(pid, timeout) waits for an idle session and for a session that waits for a backend."""
    server, sessions = three
    for name in ("idle", "waiting"):
        wire = sessions[name]
        assert server.sql(f"SELECT pg_terminate_backend({wire.backend_pid}, 20000)") == [(True,)]
        assert [m.fields()["C"] for m in wire.until_closed(20) if m.type == "E"] == ["57P01"]
        assert server.sql(f"SELECT 1 FROM pg_stat_activity WHERE pid = {wire.backend_pid}") == []
    with Wire.login("127.0.0.1", server.port) as other:
        negative = other.ask(query(f"SELECT pg_terminate_backend({sessions['served'].backend_pid}, -1)"))
        assert texts(negative) == ['"timeout" must not be negative']


@pytest.mark.parametrize("port", ["pool_port", "port"])
def test_a_session_that_does_not_end_in_time_is_warned_of(server, port):
    with Wire.login("127.0.0.1", getattr(server, port)) as session, Wire.login("127.0.0.1", server.port) as other:
        ((process,),) = session.query("BEGIN; SELECT harness.its_process()")
        stop(int(process))
        try:
            found = other.ask(query(f"SELECT pg_terminate_backend({session.backend_pid}, 300)"))
        finally:
            os.kill(int(process), signal.SIGCONT)
        assert [m.row() for m in found if m.type == "D"] == [[b"f"]]
        assert texts(found) == [f"backend with PID {session.backend_pid} did not terminate within 300 milliseconds"]
        assert [m.fields()["C"] for m in session.until_closed(20) if m.type == "E"] == ["57P01"]
