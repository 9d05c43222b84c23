"""Temporary objects cost no backend, whichever session makes them and however it leaves,
and no session sees another session's."""

from __future__ import annotations

import pytest
from harness.compare import same_as_direct
from harness.health import wait_until
from harness.wire import Closed, Wire, query

PARAMETERS = {"pg_baton.max_backends": 1}
SETUP = [
    "CREATE ROLE anybody LOGIN",
    "CREATE ROLE untemporary LOGIN",
    "REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC",
    "GRANT TEMPORARY ON DATABASE postgres TO anybody",
]

TABLE = "CREATE TEMP TABLE mine (id serial PRIMARY KEY, long text) ON COMMIT DROP"

# The statements of a session before it leaves; the last item says how it leaves.
LIVES: dict[str, tuple[list[str], str]] = {
    "dropped_at_commit": (["BEGIN", TABLE, "INSERT INTO mine (long) VALUES ('x')", "COMMIT"], "finish"),
    "made_and_dropped": (["BEGIN", "CREATE TEMP TABLE mine (a int)", "DROP TABLE mine", "COMMIT"], "finish"),
    "rolled_back": (["BEGIN", TABLE, "ROLLBACK"], "finish"),
    "an_error_in_between": (["BEGIN", TABLE, "SELECT 1/0", "COMMIT"], "finish"),
    "savepoint_rolled_back": (["BEGIN", "SAVEPOINT s", TABLE, "ROLLBACK TO s", "COMMIT"], "finish"),
    "left_behind": (["CREATE TEMP TABLE mine (a int)", "CREATE TEMP VIEW seen AS SELECT * FROM mine"], "finish"),
    "discarded": (["CREATE TEMP TABLE mine (a int)", "DISCARD TEMP"], "finish"),
    "vanished_with_some": (["CREATE TEMP TABLE mine (a int)"], "reset"),
    "vanished_in_its_transaction": (["BEGIN", TABLE, "CREATE TEMP SEQUENCE counted"], "reset"),
    "vanished_in_its_second_transaction": (["CREATE TEMP TABLE mine (a int)", "BEGIN", "DROP TABLE mine"], "close"),
}

NOTHING = [["f", "{pg_catalog,public}", "0"]]
LOOK = """SELECT pg_my_temp_schema() <> 0, current_schemas(true),
          (SELECT count(*) FROM pg_class WHERE relpersistence = 't')"""


def wait_until_gone(server) -> None:
    wait_until(
        lambda: server.sql("SELECT count(*) FROM pg_class WHERE relpersistence = 't'") == [(0,)],
        what="what the session has made is gone",
    )


def test_backend_outlives_temporary_objects_of_many_sessions(server):
    """No session is a superuser's: as soon as a superuser waits, another backend starts, beyond max_backends."""
    backends = "SELECT array_agg(pid) FROM pg_baton_backends"
    with Wire.login("127.0.0.1", server.pool_port, user="anybody") as first:
        first.query("SELECT 1")
    before = server.sql(backends)
    lives = list(LIVES.values())
    # with forced migration each session waits for a while in vain for another backend
    for number in range(20 if server.forced else 100):
        statements, leave = lives[number % len(lives)]
        session = Wire.login("127.0.0.1", server.pool_port, user="anybody")
        assert session.query(LOOK) == NOTHING
        for statement in statements:
            session.ask(query(statement))
        getattr(session, leave)()
        wait_until_gone(server)
        # While the dispatcher takes it for a dedicated session, the next session gets an additional backend.
        wait_until(lambda: server.sql("SELECT count(*) FROM pg_baton_sessions") == [(0,)], what="the session has ended")
    # With forced migration a second backend may have existed for a while, before or since.
    if not server.forced:
        assert server.sql(backends) == before
        assert server.sql("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'pg\\_temp\\_%'") == [(1,)]


def test_a_session_that_ends_as_it_makes_a_table_gets_one_error(server):
    """Where an earlier session of the backend has had temporary objects."""
    with Wire.login("127.0.0.1", server.pool_port) as earlier:
        earlier.query("CREATE TEMP TABLE gone (i int)")
        earlier.query("DROP TABLE gone")
    for _ in range(3):
        with Wire.login("127.0.0.1", server.pool_port) as session:
            pid = session.query("SELECT pg_backend_pid()")[0][0]
            session.query("BEGIN; CREATE TEMP TABLE made (i int)")
            server.sql(f"SELECT pg_terminate_backend({pid})")
            session.send(query("SELECT 1"))
            told = []
            with pytest.raises((Closed, ConnectionError)):
                while True:
                    told.append(session.read())
            assert [m.fields()["C"] for m in told if m.type == "E"] == ["57P01"]
    assert "cache lookup failed" not in server.log()


@pytest.mark.parametrize("life", LIVES)
def test_no_session_sees_temporary_objects_of_another(server, life):
    """Neither a session that was there before nor a session that comes after sees them."""
    statements, leave = LIVES[life]
    ends = Wire.login("127.0.0.1", server.pool_port)
    stays = Wire.login("127.0.0.1", server.pool_port)
    assert stays.query(LOOK) == NOTHING
    for statement in statements:
        ends.ask(query(statement))
    getattr(ends, leave)()
    wait_until_gone(server)
    with stays, Wire.login("127.0.0.1", server.pool_port) as comes:
        for session in (stays, comes, stays):
            assert session.query(LOOK) == NOTHING
            for name in ("pg_temp.mine", "mine", "pg_temp.seen", "counted"):
                assert session.query(f"SELECT to_regclass('{name}') IS NULL") == [["t"]]


SEEN = "SELECT pg_my_temp_schema() <> 0, current_schemas(true), to_regclass('pg_temp.t') IS NULL"
MISSING = "SELECT * FROM pg_temp.t"

SCRIPTS: dict[str, list[str]] = {
    "namespace_is_there_from_the_first_commit_on": [
        *(SEEN, MISSING, "BEGIN", "CREATE TEMP TABLE t (a int)", SEEN, "ROLLBACK", SEEN, MISSING),
        *("BEGIN", "SAVEPOINT s", "CREATE TEMP TABLE t (a int)", "ROLLBACK TO s", SEEN, "COMMIT", SEEN),
        *("BEGIN", "SAVEPOINT s", "CREATE TEMP TABLE t () ON COMMIT DROP", "RELEASE s", SEEN, "COMMIT", SEEN, MISSING),
    ],
    "search_path_with_pg_temp": [
        *("SET search_path = public, pg_temp", SEEN, "BEGIN", "CREATE TEMP TABLE t (a int) ON COMMIT DROP", SEEN),
        *("SHOW search_path", "COMMIT", SEEN, "SET search_path = pg_temp, public", SEEN),
        *(
            "CREATE TABLE first_is_where_it_goes (a int)",
            "SELECT relpersistence FROM pg_class WHERE relname ~ '^first_is'",
        ),
        *("DROP TABLE first_is_where_it_goes", SEEN),
    ],
    "toast_of_a_temporary_table": [
        "BEGIN",
        "CREATE TEMP TABLE t (a text) ON COMMIT DROP",
        "INSERT INTO t SELECT string_agg(md5(i::text), '') FROM generate_series(1, 5000) i",
        "SELECT sum(length(a)) FROM t",
        """SELECT n.nspname ~ '^pg_toast_temp_' FROM pg_class c JOIN pg_class o ON o.reltoastrelid = c.oid
           JOIN pg_namespace n ON n.oid = c.relnamespace WHERE o.relname = 't'""",
        "COMMIT",
        SEEN,
    ],
    "on_commit_delete_rows_and_preserve": [
        *("CREATE TEMP TABLE t (a int) ON COMMIT DELETE ROWS", "CREATE TEMP TABLE kept (a int)"),
        *("BEGIN", "INSERT INTO t VALUES (1)", "INSERT INTO kept VALUES (1)", "TABLE t", "COMMIT"),
        *("TABLE t", "TABLE kept", "DROP TABLE t", "TABLE kept", "DROP TABLE kept", SEEN),
    ],
}


@pytest.mark.parametrize("promise", SCRIPTS)
def test_temporary_objects_behave_as_on_a_direct_connection(server, promise):
    for _ in range(2):
        same_as_direct(server, SCRIPTS[promise], ignore=r"temp_\d+")


def test_role_without_temporary_privilege_gets_the_server_error(server):
    """It gets the error also where an earlier session has set up the schema of temporary objects."""
    with Wire.login("127.0.0.1", server.pool_port) as other:
        other.query("CREATE TEMP TABLE t (a int)")
        other.query("DROP TABLE t")
    same_as_direct(server, ["CREATE TEMP TABLE t (a int)", "SET ROLE untemporary", *2 * [TABLE]], user="untemporary")
    same_as_direct(server, ["SET ROLE untemporary", TABLE, SEEN, "RESET ROLE", TABLE, SEEN], ignore=r"temp_\d+")
