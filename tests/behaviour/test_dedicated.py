"""A session that leaves something in its backend keeps it, says why, and
becomes shared again when the cause is gone."""

from __future__ import annotations

import itertools
from pathlib import Path

import psycopg
import pytest
from harness.account import pg_config
from harness.health import wait_until
from harness.processes import ITS_PROCESS
from harness.wire import Wire, query

pytestmark = pytest.mark.pool_only

SETUP = ["CREATE SEQUENCE numbers", "CREATE TABLE plain (a int)"]

# name: (cause as the view words it, statements that make it, statements that end it)
CAUSES: dict[str, tuple[str, list[str], list[str]]] = {
    "advisory_lock": ("advisory lock", ["SELECT pg_advisory_lock(42)"], ["SELECT pg_advisory_unlock(42)"]),
    "advisory_lock_taken_twice": (
        "advisory lock",
        ["SELECT pg_advisory_lock(42)", "SELECT pg_advisory_lock(42)", "SELECT pg_advisory_unlock(42)"],
        ["SELECT pg_advisory_unlock(42)"],
    ),
    "advisory_lock_ended_by_unlock_all": (
        "advisory lock",
        ["SELECT pg_advisory_lock_shared(1, 2)", "SELECT pg_try_advisory_lock(3)"],
        ["SELECT pg_advisory_unlock_all()"],
    ),
    "advisory_lock_in_a_do_block": (
        "advisory lock",
        ["DO $$BEGIN PERFORM pg_advisory_lock(7); END$$"],
        ["SELECT pg_advisory_unlock(7)"],
    ),
    "advisory_lock_kept_over_rollback": (
        "advisory lock",
        ["BEGIN", "SELECT pg_advisory_lock(8)", "ROLLBACK"],
        ["SELECT pg_advisory_unlock(8)"],
    ),
    "held_cursor": (
        "held cursor",
        ["BEGIN", "DECLARE h CURSOR WITH HOLD FOR SELECT generate_series(1, 9)", "COMMIT"],
        ["CLOSE h"],
    ),
    "held_cursor_fully_fetched": (
        "held cursor",
        ["DECLARE h CURSOR WITH HOLD FOR SELECT 1", "FETCH ALL FROM h"],
        ["CLOSE ALL"],
    ),
    "temporary_table": ("temporary object", ["CREATE TEMP TABLE t (a int)"], ["DROP TABLE t"]),
    "temporary_table_ended_by_discard": ("temporary object", ["CREATE TEMP TABLE t (a int)"], ["DISCARD TEMP"]),
    "temporary_view_and_sequence": (
        "temporary object",
        ["CREATE TEMP VIEW v AS SELECT 1", "CREATE TEMP SEQUENCE s"],
        ["DROP VIEW v", "DROP SEQUENCE s"],
    ),
    "temporary_function_in_pg_temp": (
        "temporary object",
        ["CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'"],
        ["DROP FUNCTION pg_temp.f()"],
    ),
    "temporary_type_in_pg_temp": (
        "temporary object",
        ["CREATE TYPE pg_temp.ty AS ENUM ('a')"],
        ["DROP TYPE pg_temp.ty"],
    ),
    "temporary_table_whose_drop_was_rolled_back": (
        "temporary object",
        ["BEGIN", "CREATE TEMP TABLE t (a int)", "SAVEPOINT s", "DROP TABLE t", "ROLLBACK TO s", "COMMIT"],
        ["BEGIN; DROP TABLE t; COMMIT"],
    ),
    "temporary_table_whose_drop_failed_in_a_block": (
        "temporary object",
        [
            """DO $$BEGIN CREATE TEMP TABLE t (a int);
               BEGIN DROP TABLE t; PERFORM 1/0; EXCEPTION WHEN OTHERS THEN NULL; END; END$$"""
        ],
        ["DROP TABLE t"],
    ),
    "temporary_table_made_once_more": (
        "temporary object",
        ["BEGIN", "CREATE TEMP TABLE t (a int)", "DROP TABLE t", "CREATE TEMP TABLE t (a int)", "COMMIT"],
        ["DROP TABLE t"],
    ),
    "temporary_table_of_a_procedure_s_first_transaction": (
        "temporary object",
        ["DO $$BEGIN CREATE TEMP TABLE t (a int); COMMIT; CREATE TEMP TABLE u (); DROP TABLE u; END$$"],
        ["DROP TABLE t"],
    ),
    "temporary_tables_of_which_one_stays": (
        "temporary object",
        [
            """DO $$BEGIN FOR i IN 1..60 LOOP EXECUTE format('CREATE TEMP TABLE t%s (a int)', i); END LOOP;
               FOR i IN 2..60 LOOP EXECUTE format('DROP TABLE t%s', i); END LOOP; END$$"""
        ],
        ["DROP TABLE t1"],
    ),
    "temporary_table_beside_ones_that_come_and_go": (
        "temporary object",
        ["CREATE TEMP TABLE t (a int)", "BEGIN", "CREATE TEMP TABLE u (a int) ON COMMIT DROP", "COMMIT"],
        ["DROP TABLE t"],
    ),
    "listen": ("listen", ["LISTEN a", "LISTEN b"], ["UNLISTEN a", "UNLISTEN b"]),
    "listen_ended_by_unlisten_all": ("listen", ["LISTEN a"], ["UNLISTEN *"]),
    "listen_in_a_transaction": ("listen", ["BEGIN", "LISTEN a", "COMMIT"], ["BEGIN; UNLISTEN a; COMMIT"]),
    "everything_ended_by_discard_all": (
        "",
        [
            "LISTEN a",
            "CREATE TEMP TABLE t (a int)",
            "SELECT pg_advisory_lock(1)",
            "DECLARE h CURSOR WITH HOLD FOR SELECT 1",
        ],
        ["DISCARD ALL"],
    ),
    "temporary_slot": (
        "temporary replication slot",
        ["SELECT pg_create_physical_replication_slot('temporary_one', false, true)"],
        ["SELECT pg_drop_replication_slot('temporary_one')"],
    ),
    "backup": (
        "backup",
        ["SELECT pg_backup_start('test', true)"],
        ["SELECT lsn IS NOT NULL FROM pg_backup_stop(false)"],
    ),
    "replication_origin": (
        "replication origin",
        ["SELECT pg_replication_origin_create('here')", "SELECT pg_replication_origin_session_setup('here')"],
        ["SELECT pg_replication_origin_session_reset()", "SELECT pg_replication_origin_drop('here')"],
    ),
}

# Causes that last as long as the session.
FOR_LIFE: dict[str, tuple[str, list[str]]] = {
    "load": ("load", ["LOAD 'auto_explain'"]),
    # sepgsql is in the process before its initialisation refuses
    "load_that_failed_half_way": ("load", ["DO $$BEGIN LOAD 'sepgsql'; EXCEPTION WHEN OTHERS THEN NULL; END$$"]),
    "setseed": ("setseed", ["SELECT setseed(0.5)"]),
    "set_seed_parameter": ("setseed", ["SET SEED = 0.5"]),
    # what carries a context's items counts a name's bytes in 16 bits
    "name_too_long_to_be_carried": ("context memory", ["SELECT set_config('my.' || repeat('x', 70000), 'v', false)"]),
}

NOT_A_CAUSE: dict[str, list[str]] = {
    "advisory_lock_of_a_transaction": [
        "SELECT pg_advisory_xact_lock(5)",
        "BEGIN",
        "SELECT pg_advisory_xact_lock(5)",
        "COMMIT",
    ],
    "try_lock_that_failed_or_was_released": ["SELECT pg_try_advisory_lock(77), pg_advisory_unlock(77)"],
    "temporary_table_rolled_back": ["BEGIN", "CREATE TEMP TABLE t (a int)", "ROLLBACK"],
    "temporary_table_on_commit_drop": ["BEGIN", "CREATE TEMP TABLE t (a int) ON COMMIT DROP", "COMMIT"],
    "temporary_tables_made_and_dropped": [
        "BEGIN",
        "CREATE TEMP TABLE t (id serial PRIMARY KEY, long text)",
        "SAVEPOINT s",
        "CREATE TEMP VIEW v AS TABLE t",
        "ROLLBACK TO s",
        "DROP TABLE t",
        "COMMIT",
    ],
    "listen_rolled_back": ["BEGIN", "LISTEN x", "ROLLBACK"],
    "notify_alone": ["NOTIFY x"],
    "load_that_found_nothing": ["DO $$BEGIN LOAD 'no_such'; EXCEPTION WHEN OTHERS THEN NULL; END$$"],
    "cursor_of_a_transaction": ["BEGIN", "DECLARE c CURSOR FOR SELECT 1", "COMMIT"],
    "held_cursor_rolled_back": ["BEGIN", "DECLARE c CURSOR WITH HOLD FOR SELECT 1", "ROLLBACK"],
    "prepared_statements": ["PREPARE p AS SELECT 1", "EXECUTE p"],
    "sequence_use": ["SELECT nextval('numbers')", "SELECT currval('numbers')"],
    "parameters_and_roles": ["SET work_mem = '5MB'", "SET ROLE pg_monitor", "RESET ROLE"],
    "locks_of_a_transaction": ["BEGIN", "LOCK TABLE plain", "COMMIT"],
    "two_phase_commit": ["BEGIN", "INSERT INTO plain VALUES (1)", "PREPARE TRANSACTION 'd'", "ROLLBACK PREPARED 'd'"],
    "vacuum_and_create_index_concurrently": [
        "VACUUM plain",
        "CREATE INDEX CONCURRENTLY i ON plain (a)",
        "DROP INDEX i",
    ],
    "large_objects": ["SELECT lo_unlink(lo_create(0))"],
}


def look(server, name: str) -> tuple[str, str | None]:
    rows = server.sql(f"SELECT mode, dedicated_cause FROM pg_baton_sessions WHERE application_name = '{name}'")
    assert len(rows) == 1, rows
    return rows[0]


def wait_for(server, name: str, mode: str) -> str | None:
    wait_until(lambda: look(server, name)[0] == mode, what=f"session {name} is {mode}")
    return look(server, name)[1]


def wait_for_no_advisory_lock(server) -> None:
    wait_until(
        lambda: server.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(0,)],
        what="no advisory lock is left",
    )


def assert_stays(session: Wire, others: list[Wire]) -> None:
    """However much others ask, the session stays on one backend."""
    pids = set()
    for _ in range(4):
        pids.add(session.query(ITS_PROCESS)[0][0])
        for other in others:
            assert other.query(ITS_PROCESS)[0][0] not in pids
    assert len(pids) == 1


def open_sessions(server, name: str) -> tuple[Wire, list[Wire]]:
    return (
        Wire.login("127.0.0.1", server.pool_port, application_name=name),
        [Wire.login("127.0.0.1", server.pool_port) for _ in range(3)],
    )


@pytest.mark.parametrize("promise", CAUSES)
def test_session_is_dedicated_with_its_cause_and_shared_after(server, promise):
    cause, begin, end = CAUSES[promise]
    session, others = open_sessions(server, f"d_{promise}")
    try:
        assert look(server, f"d_{promise}") == ("shared", None)
        for _ in range(2):
            for statement in begin:
                session.query(statement)
            shown = wait_for(server, f"d_{promise}", "dedicated")
            assert shown is not None and cause in shown.lower().replace("_", " ")
            assert_stays(session, others)
            for statement in end:
                session.query(statement)
            assert wait_for(server, f"d_{promise}", "shared") is None
    finally:
        for wire in [session, *others]:
            wire.finish()


def test_a_dedicated_backend_is_shown_idle_between_transactions(server):
    shown = "SELECT state FROM pg_baton_backends WHERE session_pid = %s"
    with Wire.login("127.0.0.1", server.pool_port) as session:
        session.query("CREATE TEMP TABLE kept (i int)")
        pid = int(session.query("SELECT pg_backend_pid()")[0][0])
        wait_until(lambda: server.sql(shown % pid) == [("idle",)], what="an idle backend")
        session.query("BEGIN")
        assert server.sql(shown % pid) == [("busy",)]
        session.query("COMMIT")
        wait_until(lambda: server.sql(shown % pid) == [("idle",)], what="an idle backend again")


def test_a_temporary_slot_that_an_error_has_dropped_is_no_cause(server):
    """Any error drops it, as on a direct connection."""
    session, others = open_sessions(server, "d_dropped_slot")
    try:
        session.query("SELECT pg_create_physical_replication_slot('temporary_two', false, true)")
        assert "slot" in (wait_for(server, "d_dropped_slot", "dedicated") or "")
        assert session.ask(query("SELECT 1/0"))[-1].type == "Z"
        assert server.sql("SELECT count(*) FROM pg_replication_slots") == [(0,)]
        assert wait_for(server, "d_dropped_slot", "shared") is None
    finally:
        for wire in [session, *others]:
            wire.finish()


@pytest.mark.parametrize("promise", FOR_LIFE)
def test_session_is_dedicated_for_life_and_its_backend_not_lost(server, promise):
    cause, begin = FOR_LIFE[promise]
    if promise == "load_that_failed_half_way" and not Path(pg_config("pkglibdir"), "sepgsql.so").exists():
        pytest.skip("the server was built without sepgsql")
    for turn in range(6):
        session, others = open_sessions(server, f"d_{promise}{turn}")
        try:
            for statement in begin:
                session.query(statement)
            shown = wait_for(server, f"d_{promise}{turn}", "dedicated")
            assert shown is not None and cause in shown.lower().replace("_", " ")
            assert_stays(session, others)
        finally:
            for wire in [session, *others]:
                wire.finish()


@pytest.mark.parametrize("promise", NOT_A_CAUSE)
def test_session_stays_shared(server, promise):
    session, others = open_sessions(server, f"n_{promise}")
    try:
        for statement in NOT_A_CAUSE[promise]:
            session.query(statement)
        assert look(server, f"n_{promise}") == ("shared", None)
    finally:
        for wire in [session, *others]:
            wire.finish()


@pytest.mark.parametrize("how", ["finish", "close", "reset"])
def test_a_dedicated_session_that_leaves_leaves_nothing(server, how):
    """Its backend is cleaned and serves again; locks, temporary tables and
    channels are gone."""
    for _ in range(6):
        session = Wire.login("127.0.0.1", server.pool_port, application_name="leaves")
        session.query("SELECT pg_advisory_lock(99)")
        session.query("CREATE TEMP TABLE leftover (a int)")
        session.query("LISTEN leftovers")
        session.query("DECLARE leftover CURSOR WITH HOLD FOR SELECT 1")
        session.query("SELECT nextval('numbers')")
        session.query("SET my.leftover = 'x'")
        getattr(session, how)()
        wait_for_no_advisory_lock(server)
        with Wire.login("127.0.0.1", server.pool_port) as heir:
            for _ in range(3):
                assert heir.query("SELECT to_regclass('pg_temp.leftover') IS NULL") == [["t"]]
                assert heir.query("SELECT count(*) FROM pg_listening_channels()") == [["0"]]
                assert heir.query("SELECT count(*) FROM pg_cursors") == [["0"]]
                assert heir.query("SELECT current_setting('my.leftover', true)") == [[None]]
                with pytest.raises(Exception, match="lastval"):
                    heir.query("SELECT lastval()")


@pytest.mark.pool_only
@pytest.mark.parametrize("how", ["finish", "close", "reset"])
def test_a_backend_serves_on_after_its_dedicated_session_leaves(server, how):
    session = Wire.login("127.0.0.1", server.pool_port)
    session.query("SELECT pg_advisory_lock(98)")
    session.query("LISTEN leftovers")
    session.query("DECLARE leftover CURSOR WITH HOLD FOR SELECT 1")
    ((backend,),) = session.query(ITS_PROCESS)
    getattr(session, how)()
    wait_for_no_advisory_lock(server)

    def state() -> list[tuple]:
        return server.sql(f"SELECT state FROM pg_baton_backends WHERE pid = {backend}")

    # One that exits gives its lock back before it is gone, and is never idle.
    wait_until(lambda: state() in ([], [("idle",)]), what="the backend is clean, or gone")
    assert state() == [("idle",)]
    with Wire.login("127.0.0.1", server.pool_port) as heir:
        heir.query("SELECT 1")
    assert state() != []


def test_a_parameter_with_too_long_a_name_stays_the_session_s(server):
    session, others = open_sessions(server, "long_name")
    name = f"my.{'x' * 70000}"
    try:
        session.query(f"SELECT set_config('{name}', 'v', false)")
        for _ in range(4):
            assert session.query(f"SELECT current_setting('{name}', true)") == [["v"]]
            for other in others:
                assert other.query(f"SELECT current_setting('{name}', true)") == [[None]]
        session.finish()
        for other in others:
            assert other.query(f"SELECT current_setting('{name}', true)") == [[None]]
    finally:
        for wire in [session, *others]:
            wire.close()


def test_an_open_transaction_is_rolled_back_as_its_client_leaves(server):
    for how in ("finish", "close", "reset"):
        session = Wire.login("127.0.0.1", server.pool_port)
        session.query("BEGIN")
        session.query("INSERT INTO plain VALUES (12345)")
        session.query("LOCK TABLE plain IN ACCESS EXCLUSIVE MODE")
        getattr(session, how)()
        server.sql("SET lock_timeout = '20s'; LOCK TABLE plain")
        assert server.sql("SELECT count(*) FROM plain WHERE a = 12345") == [(0,)]


def test_functions_on_the_list_dedicate(server):
    server.sql("CREATE FUNCTION stateful() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    try:
        server.set_parameters({"pg_baton.dedicated_objects": "stateful, plperl"})
        server.reload()

        turns = itertools.count()

        def cause() -> str:
            name = f"listed{next(turns)}"  # the last one may still be leaving
            with Wire.login("127.0.0.1", server.pool_port, application_name=name) as session:
                session.query("SELECT stateful()")
                found = look(server, name)
                session.finish()
            return (found[1] or "").lower() if found[0] == "dedicated" else ""

        wait_until(lambda: "listed" in cause(), what="a session that has called it is dedicated")
    finally:
        server.set_parameters({"pg_baton.dedicated_objects": None})
        server.reload()
        server.sql("DROP FUNCTION stateful()")


def test_parameters_on_the_list_dedicate_sessions_that_set_them(server):
    def listed(names: str | None) -> None:
        server.set_parameters({"pg_baton.dedicating_parameters": names})
        server.reload()

    turns = itertools.count()

    def found(*statements: str, **options: str) -> tuple[str, str | None]:
        name = f"parameter{next(turns)}"  # the last one may still be leaving
        with Wire.login("127.0.0.1", server.pool_port, application_name=name, **options) as session:
            for statement in statements:
                session.query(statement)
            session.query("SELECT 1")
            mode = look(server, name)
            session.finish()
        return mode

    dedicated = ("dedicated", "listed parameter")
    try:
        listed("Work_Mem, my.own, geqo")
        wait_until(lambda: [found("SET work_mem = '5MB'") for _ in range(12)] == [dedicated] * 12, what="a reload")
        assert found("SET work_mem = '5MB'", "RESET work_mem") == dedicated
        assert found("SELECT set_config('my.own', 'x', false)") == dedicated
        assert found("DO $$BEGIN EXECUTE 'SET geqo = off'; END$$") == dedicated
        assert found(options="-c work_mem=5MB") == dedicated
        assert found("SET maintenance_work_mem = '5MB'", "SET my.other = 'x'") == ("shared", None)
        assert found("BEGIN", "SET LOCAL work_mem = '5MB'", "COMMIT") == ("shared", None)
        assert found("BEGIN", "SET work_mem = '5MB'", "ROLLBACK") == ("shared", None)
        assert found("SELECT current_setting('work_mem')") == ("shared", None)
    finally:
        listed(None)
    wait_until(lambda: [found("SET work_mem = '5MB'") for _ in range(12)] == [("shared", None)] * 12, what="a reload")


def test_an_extension_that_keeps_a_session_s_state_is_listed(server):
    """isn: whether weak numbers are accepted is a variable of the process."""
    server.sql("CREATE EXTENSION isn")
    sessions = [Wire.login("127.0.0.1", server.pool_port) for _ in range(4)]
    try:
        assert sessions[0].query("SELECT isn_weak(true)") == [["t"]]
        for _ in range(2):
            assert [one.query("SELECT isn_weak()") for one in sessions] == [[["t"]]] + [[["f"]]] * 3
    finally:
        for session in sessions:
            session.finish()
        server.sql("DROP EXTENSION isn")


def test_psycopg_with_temporary_tables_in_many_sessions(server):
    sessions = [psycopg.connect(server.pool(), autocommit=True) for _ in range(5)]
    try:
        for n, session in enumerate(sessions):
            session.execute("CREATE TEMP TABLE mine AS SELECT %s::int AS n", (n,))
        for _ in range(3):
            for n, session in enumerate(sessions):
                assert session.execute("SELECT n FROM mine").fetchall() == [(n,)]
        for session in sessions:
            session.execute("DROP TABLE mine")
    finally:
        for session in sessions:
            session.close()
