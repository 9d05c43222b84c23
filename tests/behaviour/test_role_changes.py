"""A backend changes from one role to another, and nothing of the first role is left in it.

There is one backend, so that the same process serves each session after the session before.
The results of a session are compared with those of a direct connection of its role."""

from __future__ import annotations

import pytest
from harness.account import DEBUG_PARALLEL
from harness.debugger import needs_gdb, stopped_at
from harness.health import assert_healthy, wait_until
from harness.wire import QueryFailed, Wire, bind, execute, function_call, parse, query, sync

pytestmark = pytest.mark.pool_only

SETUP = [
    "CREATE ROLE plain LOGIN",
    "CREATE ROLE member LOGIN",
    "CREATE ROLE outsider LOGIN NOINHERIT",
    "CREATE ROLE chief LOGIN SUPERUSER",
    "CREATE ROLE team NOLOGIN",
    "GRANT team TO member, outsider",
    "GRANT pg_read_all_stats TO team",
    "CREATE SCHEMA plain AUTHORIZATION plain",
    "CREATE SCHEMA member AUTHORIZATION member",
    "CREATE TABLE plain.own AS SELECT 'of plain' AS whose",
    "CREATE TABLE member.own AS SELECT 'of member' AS whose",
    "ALTER TABLE plain.own OWNER TO plain",
    "ALTER TABLE member.own OWNER TO member",
    "CREATE TABLE rows AS SELECT 'plain' AS owner UNION SELECT 'member' UNION SELECT 'chief'",
    "ALTER TABLE rows ENABLE ROW LEVEL SECURITY",
    "CREATE POLICY mine ON rows USING (owner = current_user)",
    "GRANT SELECT ON rows TO PUBLIC",
    "CREATE TABLE secret AS SELECT 42 AS answer",
    "GRANT SELECT ON secret TO team",
    "CREATE FUNCTION who() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN current_user || '/' || session_user; END $$",
    "CREATE FUNCTION definer() RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS"
    " $$ BEGIN RETURN current_user || '/' || session_user; END $$",
    "CREATE FUNCTION inlined() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 7'",
    "REVOKE EXECUTE ON FUNCTION inlined() FROM PUBLIC",
    "GRANT EXECUTE ON FUNCTION inlined() TO member",
    "ALTER ROLE plain SET work_mem = '5MB'",
    "ALTER ROLE plain SET my.own = 'of plain'",
    "ALTER ROLE plain IN DATABASE postgres SET statement_timeout = '77s'",
    "ALTER ROLE member SET role = 'team'",
    "ALTER ROLE member SET search_path = 'member', 'public'",
    "ALTER ROLE chief SET log_min_duration_statement = '10min'",
    "ALTER ROLE outsider SET client_encoding = 'LATIN1'",
    "ALTER ROLE outsider SET default_text_search_config = 'nonsuch'",
    "ALTER DATABASE postgres SET lock_timeout = '99s'",
    "ALTER ROLE ALL SET idle_in_transaction_session_timeout = '88s'",
]

ROLES = ("plain", "member", "chief", "outsider", "postgres")

SETTINGS = (
    "SELECT name, setting, source, reset_val, context FROM pg_settings"
    " WHERE source NOT IN ('default', 'configuration file', 'command line', 'override')"
    " AND name NOT IN ('application_name') ORDER BY name"
)

LOOKS = [
    "SELECT session_user, current_user, current_setting('is_superuser'), current_setting('session_authorization'),"
    " current_setting('role')",
    SETTINGS,
    "SELECT current_setting('my.own', true)",
    "SELECT current_schemas(true)",
    "SELECT * FROM own",
    "SELECT * FROM rows ORDER BY owner",
    "SELECT * FROM secret",
    "SELECT who(), definer()",
    "SELECT inlined()",
    "SELECT count(*) > 0 FROM pg_authid",
    "SELECT usename FROM pg_stat_activity WHERE pid = pg_backend_pid()",
    "SELECT pg_stat_get_backend_userid(n)::regrole FROM pg_stat_get_backend_idset() n"
    " WHERE pg_stat_get_backend_pid(n) = pg_backend_pid()",
    "SET SESSION AUTHORIZATION plain",
    "SELECT session_user, current_user, current_setting('is_superuser')",
    "RESET SESSION AUTHORIZATION",
    "SELECT session_user, current_user, current_setting('is_superuser')",
    "SET ROLE team",
    "SELECT current_user",
    "RESET ROLE",
    "SELECT current_user",
    "SET work_mem = '6MB'",
    "RESET work_mem",
    "SHOW work_mem",
    "SET statement_timeout = 5000",
    "CREATE TEMP TABLE t (a int)",
    "SELECT relowner::regrole FROM pg_class WHERE relname = 't'",
    "DISCARD ALL",
    "SELECT session_user, current_user, current_setting('is_superuser'), current_setting('role')",
    SETTINGS,
    "PREPARE p AS SELECT whose, current_user FROM own",
    "EXECUTE p",
    "EXPLAIN (COSTS OFF) SELECT * FROM rows",
]


def told(wire: Wire, sql: str):
    try:
        return wire.query(sql)
    except QueryFailed as failure:
        return str(failure)


def looks(port: int, role: str) -> list:
    with Wire.login("127.0.0.1", port, user=role) as wire:
        return [(sql, told(wire, sql)) for sql in LOOKS]


def processes_of(server) -> set:
    return {pid for (pid,) in server.sql("SELECT pid FROM pg_baton_backends WHERE state <> 'starting'")}


@pytest.fixture
def prepared(make_cluster):
    def make(**parameters):
        cluster = make_cluster(parameters={f"pg_baton.{name}": value for name, value in parameters.items()})
        cluster.sql("CREATE EXTENSION pg_baton")
        for statement in SETUP[:-2]:
            cluster.sql(statement)
        with Wire.login("127.0.0.1", cluster.port) as wire:
            for statement in SETUP[-2:]:
                wire.query(statement)
        return cluster

    return make


def test_each_role_finds_what_a_direct_connection_finds(prepared):
    server = prepared(max_backends=1, min_backends=0)
    direct = {role: looks(server.port, role) for role in ROLES}
    first = None
    for round in range(3):
        for role in ROLES if round % 2 == 0 else reversed(ROLES):
            for one, other in zip(looks(server.pool_port, role), direct[role]):
                assert one == other, role
            found = processes_of(server)
            first = first or found
            assert found == first, "one process has served them all"
    assert_healthy(server)


def test_roles_take_turns_on_one_process(prepared):
    """A session that was served before goes on with its settings and prepared statements."""
    server = prepared(max_backends=1, min_backends=0)
    wires = {role: Wire.login("127.0.0.1", server.pool_port, user=role) for role in ROLES}
    try:
        for role, wire in wires.items():
            wire.query(f"SET my.word = 'of {role}'")
            wire.query("PREPARE p AS SELECT current_user, current_setting('my.word')")
        for _ in range(4):
            for role, wire in wires.items():
                current = "team" if role == "member" else role
                assert wire.query("EXECUTE p") == [[current, f"of {role}"]]
                assert wire.query("SELECT session_user") == [[role]]
        assert len(processes_of(server)) == 1
    finally:
        for wire in wires.values():
            wire.close()
    assert_healthy(server)


def test_no_superuser_state_is_left_between_any_two_transactions(prepared):
    server = prepared(max_backends=2)
    direct = {role: looks(server.port, role) for role in ROLES}
    server.set_parameters({"pg_baton.force_migration": "on", "pg_baton.force_role_changes": "on"})
    server.reload()
    for role in ROLES:
        for one, other in zip(looks(server.pool_port, role), direct[role]):
            assert one == other, role
    assert_healthy(server)


def test_settings_are_those_of_the_moment(prepared):
    server = prepared(max_backends=1, min_backends=0)
    with Wire.login("127.0.0.1", server.pool_port, user="plain") as plain:
        assert plain.query("SHOW work_mem") == [["5MB"]]
        server.sql("ALTER ROLE member SET work_mem = '9MB'")
        with Wire.login("127.0.0.1", server.pool_port, user="member") as member:
            assert member.query("SHOW work_mem") == [["9MB"]]
            server.sql("ALTER ROLE member SET work_mem = '10MB'")
            assert plain.query("SHOW work_mem") == [["5MB"]]
            assert member.query("SHOW work_mem") == [["9MB"]]
        with Wire.login("127.0.0.1", server.pool_port, user="member") as member:
            assert member.query("SHOW work_mem") == [["10MB"]]
    assert_healthy(server)


def test_option_of_both_roles_counts_by_the_served_role_s_rights(make_cluster):
    """The same values stay in place from one role to the other. One parameter is of a library that is loaded later,
    which checks the role that has set the value: only one of the two roles may."""
    server = make_cluster(parameters={"pg_baton.max_backends": 1, "pg_baton.min_backends": 0})
    server.sql("CREATE EXTENSION pg_baton")
    server.sql("CREATE ROLE plain LOGIN; CREATE ROLE granted LOGIN")
    server.sql("LOAD 'plpgsql'; GRANT SET ON PARAMETER plpgsql.variable_conflict TO granted")
    options = "-c plpgsql.variable_conflict=use_column -c work_mem=7MB"
    asked = (
        "SELECT setting, source FROM pg_settings WHERE name IN ('plpgsql.variable_conflict', 'work_mem') ORDER BY name"
    )
    granted, plain = (
        Wire.login("127.0.0.1", server.pool_port, user=user, options=options) for user in ("granted", "plain")
    )
    with granted, plain:
        for session in (plain, granted):
            session.query("SELECT 1")
        plain.query("DO $$BEGIN END$$")
        for _ in range(2):
            assert plain.query(asked) == [["error", "default"], ["7168", "client"]]
            assert granted.query(asked) == [["use_column", "client"], ["7168", "client"]]
        assert len(processes_of(server)) == 1


def test_option_of_both_roles_belongs_to_the_served_session(make_cluster):
    """A parallel worker takes over its leader's values by the rights of the role that has set them."""
    server = make_cluster(parameters={"pg_baton.max_backends": 1, "pg_baton.min_backends": 0})
    server.sql("CREATE EXTENSION pg_baton")
    server.sql("CREATE ROLE one LOGIN; CREATE ROLE two LOGIN")
    server.sql("GRANT SET ON PARAMETER log_min_duration_statement TO one, two")
    options = "-c log_min_duration_statement=1h"
    one, two = (Wire.login("127.0.0.1", server.pool_port, user=user, options=options) for user in ("one", "two"))
    with one, two:
        two.query(f"SET {DEBUG_PARALLEL} = on")
        one.query("SELECT 1")
        server.sql("REVOKE SET ON PARAMETER log_min_duration_statement FROM one")
        assert two.query("SELECT count(*) > 0 FROM pg_class") == [["t"]]
        assert len(processes_of(server)) == 1


def test_libraries_of_a_role_are_not_in_another_s_backend(prepared):
    server = prepared(max_backends=1, min_backends=0)
    server.sql("ALTER ROLE chief SET session_preload_libraries = 'auto_explain'")
    shown = "SELECT current_setting('auto_explain.log_analyze', true)"
    with Wire.login("127.0.0.1", server.pool_port, user="plain") as plain:
        assert plain.query(shown) == [[None]]
    with Wire.login("127.0.0.1", server.pool_port, user="chief") as chief:
        assert chief.query(shown) == [["off"]]
    with Wire.login("127.0.0.1", server.pool_port, user="plain") as plain:
        assert plain.query(shown) == [[None]]
    assert_healthy(server)


def test_a_switch_left_out_is_caught_before_anything_runs(prepared):
    server = prepared(max_backends=1, min_backends=0, break_self_check="role_switch")
    # The backend starts with the superuser's role.
    with Wire.login("127.0.0.1", server.pool_port) as superuser:
        assert superuser.query("SELECT count(*) > 0 FROM pg_authid") == [["t"]]
    with pytest.raises(Exception):
        with Wire.login("127.0.0.1", server.pool_port, user="plain") as plain:
            plain.query("SELECT count(*) FROM pg_authid")
    server.expect_in_log("bug of pg_baton")
    wait_until(lambda: "This is a bug of pg_baton" in server.log(), what="it is in the log")


# Each beginning passes only one of the four places that compare the role.
BEGINNINGS = {
    "analysis": lambda function: parse("SELECT 1") + sync(),
    "execution": lambda function: bind([], "insert") + execute() + sync(),
    "utility": lambda function: bind([], "comment") + execute() + sync(),
    "fast_path": lambda function: function_call(function, [b"4711"]),
}


PREPARED = {"insert": "INSERT INTO marked VALUES ('run')", "comment": "COMMENT ON TABLE plain.own IS 'run'"}


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_nothing_begins_as_a_role_that_is_not_the_session_s(prepared, beginning):
    """The session comes back to its backend, and the role there is not the session's role."""
    server = prepared(max_backends=1, min_backends=0, break_self_check="session_role")
    server.sql("CREATE TABLE marked (how text); GRANT INSERT ON marked TO plain")
    # a function of the server's own, which runs no statement
    ((function,),) = server.sql("SELECT 'lo_create(oid)'::regprocedure::oid::int")
    with Wire.login("127.0.0.1", server.pool_port, user="plain") as plain:
        # the session's first transaction, after which the session is given back
        first = [parse(text, name) + bind([], name) + execute() for name, text in PREPARED.items()]
        assert "E" not in [m.type for m in plain.ask(*first, sync())]
        server.sql("COMMENT ON TABLE plain.own IS NULL")
        plain.send(BEGINNINGS[beginning](function))
        answer = plain.until_closed()
    server.expect_in_log("bug of pg_baton")
    # at the end of analysis the server has taken a statement of the protocol, and not answered it yet
    assert [m.type for m in answer] in (["E"], ["2", "E"]), answer
    assert answer[-1].fields()["S"] == "FATAL"
    assert "and the session of role" in answer[-1].fields()["M"]
    assert server.sql("SELECT count(*), obj_description('plain.own'::regclass) FROM marked") == [(1, None)]
    assert server.sql("SELECT count(*) FROM pg_largeobject_metadata") == [(0,)]


def test_backend_keeps_its_role_if_the_server_s_check_fails(prepared):
    server = prepared(max_backends=1, min_backends=0, break_self_check="roles")
    seen = []
    for role in ("plain", "chief", "plain"):
        with Wire.login("127.0.0.1", server.pool_port, user=role) as wire:
            assert wire.query("SELECT session_user") == [[role]]
        seen.append(processes_of(server))
    assert seen[0] != seen[1]
    assert server.sql("SELECT costs FROM pg_baton_failed_checks") == [("roles",)]
    assert_healthy(server)


CONNECTION = [
    "CREATE EXTENSION postgres_fdw",
    "CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '{port}', dbname 'postgres')",
    "CREATE USER MAPPING FOR PUBLIC SERVER far OPTIONS (user 'postgres')",
    "CREATE FOREIGN TABLE far (answer int) SERVER far OPTIONS (schema_name 'public', table_name 'secret')",
    "GRANT SELECT ON far TO PUBLIC",
]


def test_a_superuser_s_connection_is_no_use_to_another_role(prepared):
    """postgres_fdw lets only superusers connect without a password, and checks this only when it connects."""
    server = prepared(max_backends=1, min_backends=0)
    for statement in CONNECTION:
        server.sql(statement.format(port=server.port))
    asked = "SELECT answer FROM far"
    with Wire.login("127.0.0.1", server.port, user="plain") as direct:
        refused = told(direct, asked)
        assert "2F003" in refused
    with Wire.login("127.0.0.1", server.pool_port, user="chief") as chief:
        with Wire.login("127.0.0.1", server.pool_port, user="plain") as plain:
            for _ in range(3):
                assert chief.query(asked) == [["42"]]
                assert told(plain, asked) == refused
                assert told(plain, "SELECT count(*) FROM postgres_fdw_get_connections()") == [["0"]]
    assert_healthy(server)


@needs_gdb
def test_what_a_superuser_asked_is_never_shown_as_another_s(prepared):
    """The view has the superuser's role and query until it has the next session's; it changes both at once."""
    server = prepared(max_backends=1, min_backends=0, break_self_check="process_ids")
    shown = "SELECT usename, query FROM pg_stat_activity WHERE pid = {pid}"
    with (
        Wire.login("127.0.0.1", server.pool_port, user="chief") as chief,
        Wire.login("127.0.0.1", server.port, user="plain") as beside,
        Wire.login("127.0.0.1", server.pool_port, user="plain") as plain,
    ):
        # a session that has made one transaction is given back at once
        for _ in range(3):
            chief.query("SELECT 'of the chief'")
        (pid,) = processes_of(server)
        with stopped_at(pid, "init_ps_display") as stop:
            plain.send(parse("SELECT 1") + bind() + execute() + sync())
            stop.wait()
            assert beside.query(shown.format(pid=pid)) == [["chief", "<insufficient privilege>"]]
        plain.until_ready()
        assert beside.query(shown.format(pid=pid)) == [["plain", ""]]
    assert_healthy(server)


@needs_gdb
def test_role_dropped_in_a_role_change_ends_only_that_backend(prepared):
    server = prepared(max_backends=1, min_backends=0)
    server.sql("CREATE ROLE brief LOGIN")
    with (
        Wire.login("127.0.0.1", server.port) as beside,
        Wire.login("127.0.0.1", server.pool_port, user="brief") as brief,
        Wire.login("127.0.0.1", server.pool_port, user="plain") as plain,
    ):
        assert plain.query("SELECT 1") == [["1"]]
        (pid,) = processes_of(server)
        with stopped_at(pid, "SetAuthenticatedUserId") as stop:
            brief.send(query("SELECT 1"))
            stop.wait()
            beside.query("DROP ROLE brief")
        brief.close()
        # the server has not restarted after a crash
        assert beside.query("SELECT 1") == [["1"]]
        assert plain.query("SELECT session_user") == [["plain"]]
    assert_healthy(server)


def test_the_encoding_without_a_setting_is_the_database_s(prepared):
    """A reload that takes a parameter out of the files leaves the postmaster with SQL_ASCII."""
    server = prepared(max_backends=1, min_backends=0)
    for statement in ("SET work_mem = '5MB'", "RESET work_mem"):
        before = server.sql("SELECT pg_conf_load_time()")
        server.sql(f"ALTER SYSTEM {statement}")
        server.reload()
        wait_until(lambda: server.sql("SELECT pg_conf_load_time()") != before, what="the files have been read")
    with Wire.login("127.0.0.1", server.pool_port, user="outsider") as wire:
        assert wire.query("SHOW client_encoding") == [["LATIN1"]]
    with Wire.login("127.0.0.1", server.pool_port, user="plain") as wire:
        assert wire.query("SHOW client_encoding") == [["UTF8"]]
        assert wire.query("SELECT 'é'") == [["é"]]
    assert_healthy(server)
