"""A session's parameters are its own, whichever backend serves it."""

from __future__ import annotations

import psycopg
import pytest
from harness.compare import same_as_direct
from harness.health import wait_until
from harness.wire import Wire
from parameter_world import SETUP, SHOW  # noqa: F401 (the fixture reads SETUP)

SCRIPTS: dict[str, list[str]] = {
    # SHOW asks the socket, which keeps the value that was set
    "what_belongs_to_the_socket_goes_back": [
        "SET tcp_user_timeout = 12345",
        "SET tcp_keepalives_idle = 77",
        "SHOW tcp_user_timeout",
        "RESET tcp_user_timeout",
        "RESET tcp_keepalives_idle",
        "SHOW tcp_user_timeout",
        "SHOW tcp_keepalives_idle",
        "SET tcp_user_timeout = 55",
        "SHOW tcp_user_timeout",
        "SET tcp_user_timeout = 0",
        "SHOW tcp_user_timeout",
        "SET tcp_user_timeout = 66",
        "SHOW tcp_user_timeout",
        "RESET ALL",
        "SHOW tcp_user_timeout",
        "SHOW tcp_user_timeout",
    ],
    "set_and_reset": [
        "SET work_mem = '7MB'",
        "SHOW work_mem",
        SHOW,
        "SET work_mem = '8MB'",
        "SHOW work_mem",
        "RESET work_mem",
        "SHOW work_mem",
        SHOW,
    ],
    "set_to_default": ["SET work_mem = '7MB'", "SET work_mem TO DEFAULT", "SHOW work_mem", SHOW],
    "reset_all": [
        "SET work_mem = '7MB'",
        "SET statement_timeout = 55555",
        "SET my.x = 'y'",
        "RESET ALL",
        "SHOW work_mem",
        "SHOW statement_timeout",
        "SHOW my.x",
        SHOW,
    ],
    "discard_all": [
        "SET work_mem = '7MB'",
        "SET my.x = 'y'",
        "PREPARE p AS SELECT 1",
        "SET ROLE pg_monitor",
        "DISCARD ALL",
        "SHOW work_mem",
        "SHOW my.x",
        "EXECUTE p",
        "SELECT current_user",
        SHOW,
    ],
    "set_config_in_select": [
        "SELECT set_config('work_mem', '9MB', false)",
        "SHOW work_mem",
        "SELECT set_config('work_mem', '10MB', true)",
        "SHOW work_mem",
    ],
    "set_in_function_and_do_block": [
        "SELECT set_inside('work_mem', '9MB')",
        "SHOW work_mem",
        "DO $$BEGIN SET enable_seqscan = off; PERFORM set_config('my.do', 'done', false); END$$",
        "SHOW enable_seqscan",
        "SHOW my.do",
        "SELECT attached()",
        "SHOW work_mem",
    ],
    "rolled_back_set_is_gone": [
        "SET work_mem = '7MB'",
        "BEGIN",
        "SET work_mem = '9MB'",
        "SHOW work_mem",
        "ROLLBACK",
        "SHOW work_mem",
        "BEGIN",
        "SET my.new = 'x'",
        "ROLLBACK",
        "SHOW my.new",
        "SELECT current_setting('my.new', true)",
    ],
    "set_under_savepoints": [
        "BEGIN",
        "SET work_mem = '7MB'",
        "SAVEPOINT a",
        "SET work_mem = '9MB'",
        "ROLLBACK TO a",
        "SHOW work_mem",
        "SAVEPOINT b",
        "SET work_mem = '11MB'",
        "RELEASE b",
        "COMMIT",
        "SHOW work_mem",
        SHOW,
    ],
    "set_local_ends_with_its_transaction": [
        "BEGIN",
        "SET LOCAL work_mem = '7MB'",
        "SHOW work_mem",
        "COMMIT",
        "SHOW work_mem",
        "SET LOCAL work_mem = '9MB'",
        "SHOW work_mem",
        SHOW,
    ],
    "set_local_over_set": [
        "BEGIN",
        "SET work_mem = '7MB'",
        "SET LOCAL work_mem = '9MB'",
        "SHOW work_mem",
        "COMMIT",
        "SHOW work_mem",
        "BEGIN",
        "SET LOCAL work_mem = '9MB'",
        "SET work_mem = '12MB'",
        "COMMIT",
        "SHOW work_mem",
    ],
    "failed_set_changes_nothing": [
        "SET work_mem = '7MB'",
        "SET work_mem = 'nonsense'",
        "SHOW work_mem",
        "SET no_such_parameter = 1",
        "SET shared_buffers = '1GB'",
        "SET server_version = '1'",
        "SHOW work_mem",
    ],
    "custom_parameters": [
        "SHOW my.var",
        "SET my.var = 'hello'",
        "SHOW my.var",
        "SET my.\"odd name\" = 'x'",
        "SET my.var = ''",
        "SELECT current_setting('my.var', true) IS NULL",
        "RESET my.var",
        "SELECT current_setting('my.var', true)",
        "SET a.b.c = 'deep'",
        "SHOW a.b.c",
        "SELECT name, setting, source FROM pg_settings WHERE name ~ '^(my|a)[.]'",
        "SET plpgsql.extra_warnings = 'all'",
        "SHOW plpgsql.extra_warnings",
    ],
    "custom_parameter_that_is_large": [
        "SELECT length(set_config('my.large', repeat('0123456789', 20000), false))",
        "SELECT md5(current_setting('my.large'))",
        "SELECT length(current_setting('my.large'))",
    ],
    "values_with_quotes_and_utf8": [
        "SET my.q = 'it''s \"quoted\" \\ \n newline ünïcödé 日本'",
        "SHOW my.q",
        "SELECT current_setting('my.q')",
        "SET application_name = 'it''s me'",
        "SHOW application_name",
    ],
    "search_path": [
        "CREATE SCHEMA IF NOT EXISTS one",
        'CREATE SCHEMA IF NOT EXISTS "T w o"',
        'SET search_path = one, "T w o", public',
        "SHOW search_path",
        "SELECT current_schemas(true)",
        "SET search_path = ''",
        "SHOW search_path",
        "SELECT current_schemas(false)",
        "SET search_path = 'a,b'",
        "SHOW search_path",
        "RESET search_path",
        "SHOW search_path",
        'DROP SCHEMA one, "T w o"',
    ],
    "reported_parameters": [
        "SET DateStyle = 'SQL, DMY'",
        "SELECT date '2020-02-03'",
        "SET TimeZone = 'Europe/Berlin'",
        "SELECT timestamptz '2020-02-03 00:00Z'",
        "SET IntervalStyle = 'iso_8601'",
        "SELECT interval '1 day'",
        "SET application_name = 'x'",
        "SET standard_conforming_strings = off",
        "SELECT 'a\\'b'",
        "SET bytea_output = 'escape'",
        "SELECT '\\001'::bytea",
        "RESET ALL",
        "SELECT 1",
    ],
    "reported_parameters_rolled_back": [
        "BEGIN",
        "SET TimeZone = 'Asia/Tokyo'",
        "SET application_name = 'inside'",
        "ROLLBACK",
        "SHOW TimeZone",
        "BEGIN",
        "SET LOCAL TimeZone = 'Asia/Tokyo'",
        "COMMIT",
        "SHOW TimeZone",
    ],
    "time_zone_spellings": [
        "SET TIME ZONE 'America/New_York'",
        "SHOW TimeZone",
        "SET TIME ZONE -3.5",
        "SHOW TimeZone",
        "SET TIME ZONE INTERVAL '+02:30' HOUR TO MINUTE",
        "SHOW TimeZone",
        "SELECT timestamptz '2020-02-03 00:00Z'",
        "SET TIME ZONE LOCAL",
        "SHOW TimeZone",
    ],
    "client_encoding": [
        "SET client_encoding = 'LATIN1'",
        "SELECT chr(252)",
        "SELECT chr(8364)",
        "SHOW client_encoding",
        "BEGIN",
        "SET client_encoding = 'UTF8'",
        "SELECT chr(8364)",
        "ROLLBACK",
        "SELECT chr(252)",
        "RESET client_encoding",
        "SELECT chr(8364)",
        "SET NAMES 'SQL_ASCII'",
        "SELECT chr(252)",
    ],
    "set_role": [
        "SET ROLE alice",
        "SELECT session_user, current_user",
        "SHOW role",
        "SHOW is_superuser",
        "CREATE ROLE nope",
        "RESET ROLE",
        "SELECT current_user",
        "SET ROLE NONE",
        "SHOW role",
        "SET ROLE no_such_role",
        "SELECT current_user",
    ],
    "set_session_authorization": [
        "SET SESSION AUTHORIZATION alice",
        "SELECT session_user, current_user",
        "SHOW is_superuser",
        "SET ROLE team",
        "SELECT session_user, current_user",
        "SHOW role",
        "SET ROLE bob",
        "SET SESSION AUTHORIZATION bob",
        "SELECT session_user, current_user",
        "SHOW role",
        "RESET SESSION AUTHORIZATION",
        "SELECT session_user, current_user",
        "SHOW is_superuser",
    ],
    "role_set_and_rolled_back": [
        "BEGIN",
        "SET ROLE alice",
        "SELECT current_user",
        "ROLLBACK",
        "SELECT current_user",
        "BEGIN",
        "SET LOCAL ROLE alice",
        "SELECT current_user",
        "COMMIT",
        "SELECT current_user",
        "BEGIN",
        "SET LOCAL SESSION AUTHORIZATION alice",
        "COMMIT",
        "SELECT session_user",
    ],
    "reals_keep_every_digit": [
        "SET seq_page_cost = 0.1234567890123456789",
        "SHOW seq_page_cost",
        "SET random_page_cost = 1.00000000000000022",
        "SELECT setting FROM pg_settings WHERE name = 'random_page_cost'",
        "SET cursor_tuple_fraction = 0.3333333333333333",
        "SHOW cursor_tuple_fraction",
        "SET vacuum_cost_delay = 1.5",
        "SHOW vacuum_cost_delay",
    ],
    "transaction_defaults": [
        "SET default_transaction_isolation = 'serializable'",
        "SHOW transaction_isolation",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "CREATE TABLE nope (a int)",
        "SHOW transaction_read_only",
        "SET transaction_isolation = 'repeatable read'",
        "SHOW transaction_isolation",
        "SET default_transaction_deferrable = on",
        "BEGIN",
        "SHOW transaction_deferrable",
        "COMMIT",
        "SET default_transaction_read_only = off",
    ],
    "privileged_parameters": [
        "SET log_min_messages = 'error'",
        "SHOW log_min_messages",
        "SET session_replication_role = 'replica'",
        "SHOW session_replication_role",
        "SET ROLE alice",
        "SET log_min_messages = 'debug1'",
        "SHOW log_min_messages",
        "RESET log_min_messages",
        "RESET ROLE",
        "SHOW log_min_messages",
    ],
    "superuser_parameter_survives_lesser_role": [
        "SET log_min_duration_statement = 100000",
        "SET SESSION AUTHORIZATION alice",
        "SELECT session_user",
        "SHOW work_mem",
        "RESET SESSION AUTHORIZATION",
        "SHOW log_min_duration_statement",
    ],
    "temp_file_limits_and_units": [
        "SET temp_buffers = '1MB'",
        "SHOW temp_buffers",
        "SET statement_timeout = '1min'",
        "SHOW statement_timeout",
        "SET work_mem = '64kB'",
        "SELECT setting, unit FROM pg_settings WHERE name = 'work_mem'",
        "SET maintenance_work_mem = '2GB'",
        "SHOW maintenance_work_mem",
    ],
    "statement_timeout_holds_everywhere": [
        "SET statement_timeout = 1000",
        "SELECT pg_sleep(20)",
        "SHOW statement_timeout",
        "SELECT pg_sleep(20)",
        "SET statement_timeout = 0",
        "SELECT pg_sleep(1.1)",
    ],
    "client_min_messages": [
        "SET client_min_messages = 'error'",
        "DO $$BEGIN RAISE NOTICE 'unseen'; END$$",
        "SET client_min_messages = 'notice'",
        "DO $$BEGIN RAISE NOTICE 'seen'; END$$",
        "SET client_min_messages = 'debug1'",
        "DO $$BEGIN RAISE DEBUG 'seen'; END$$",
        "RESET client_min_messages",
    ],
    "set_of_lists_of_names": [
        "SET temp_tablespaces = ''",
        "SHOW temp_tablespaces",
        "SET temp_tablespaces = pg_default",
        "SHOW temp_tablespaces",
        "SET local_preload_libraries = ''",
        "SET session_preload_libraries = ''",
        "SET DateStyle = ISO, YMD",
        "SHOW DateStyle",
    ],
    "several_sets_in_one_query": [
        "SET work_mem = '7MB'; SET my.x = '1'; SELECT current_setting('work_mem')",
        "SET work_mem = '8MB'; SET my.x = '2'; SELECT 1/0",
        "SHOW work_mem",
        "SHOW my.x",
        "BEGIN; SET my.x = '3'; COMMIT; SELECT 1/0",
        "SHOW my.x",
    ],
    "locale_parameters": [
        "SET lc_numeric = 'C'",
        "SET lc_monetary = 'C.UTF-8'",
        "SHOW lc_monetary",
        "SET lc_time = 'POSIX'",
        "SET lc_messages = 'C.UTF-8'",
        "SELECT to_char(1234.5, 'L9G999D9')",
        "RESET lc_monetary",
        "SHOW lc_monetary",
    ],
    "debug_and_planner_parameters": [
        "SET enable_hashjoin = off",
        "SET enable_nestloop = off",
        "SET from_collapse_limit = 3",
        "EXPLAIN (COSTS OFF) SELECT 1 FROM pg_class a JOIN pg_class b ON a.oid = b.oid",
        "RESET enable_hashjoin",
        "EXPLAIN (COSTS OFF) SELECT 1 FROM pg_class a JOIN pg_class b ON a.oid = b.oid",
        "SET plan_cache_mode = force_generic_plan",
        "SHOW plan_cache_mode",
    ],
}


@pytest.mark.parametrize("promise", SCRIPTS)
def test_parameters_behave_as_on_a_direct_connection(server, promise):
    same_as_direct(server, SCRIPTS[promise])


@pytest.mark.parametrize("promise", ["set_and_reset", "custom_parameters", "reported_parameters", "client_encoding"])
def test_parameters_behave_the_same_over_the_unix_socket(server, promise):
    same_as_direct(server, SCRIPTS[promise], unix=True)


def test_sessions_do_not_see_each_other_s_parameters(server):
    sessions = [psycopg.connect(server.pool(application_name=f"s{n}"), autocommit=True) for n in range(12)]
    try:
        for n, session in enumerate(sessions):
            session.execute(f"SET work_mem = '{n + 1}MB'")
            session.execute(f"SET my.only{n} = '{n}'")
            session.execute(f"SET TimeZone = 'Etc/GMT-{n}'")
        for _ in range(4):
            for n, session in enumerate(sessions):
                assert session.execute("SHOW work_mem").fetchone() == (f"{n + 1}MB",)
                assert session.execute("SHOW TimeZone").fetchone() == (f"Etc/GMT-{n}",)
                assert session.execute("SHOW application_name").fetchone() == (f"s{n}",)
                assert session.execute(
                    "SELECT i FROM generate_series(0, 11) i WHERE current_setting('my.only' || i, true) IS NOT NULL"
                ).fetchall() == [(n,)]
                assert session.execute(f"SHOW my.only{n}").fetchone() == (str(n),)
        fresh = psycopg.connect(server.pool(), autocommit=True)
        assert fresh.execute("SELECT current_setting('my.only1', true)").fetchone() == (None,)
        fresh.close()
    finally:
        for session in sessions:
            session.close()


def test_roles_are_never_mixed_up_between_sessions(server):
    sessions = []
    try:
        for n in range(12):
            session = psycopg.connect(server.pool(), autocommit=True)
            wanted = ("postgres", "postgres")
            if n % 4 == 1:
                session.execute("SET ROLE alice")
                wanted = ("postgres", "alice")
            elif n % 4 == 2:
                session.execute("SET SESSION AUTHORIZATION alice")
                wanted = ("alice", "alice")
            elif n % 4 == 3:
                session.execute("SET SESSION AUTHORIZATION alice")
                session.execute("SET ROLE team")
                wanted = ("alice", "team")
            sessions.append((session, wanted))
        for _ in range(5):
            for session, wanted in sessions:
                assert session.execute("SELECT session_user, current_user").fetchone() == wanted
    finally:
        for session, _ in sessions:
            session.close()


@pytest.mark.pool_only
def test_a_session_with_a_dropped_role_runs_nothing_as_another(server):
    server.sql("CREATE ROLE shortlived NOLOGIN")
    with Wire.login("127.0.0.1", server.pool_port) as session, Wire.login("127.0.0.1", server.pool_port) as other:
        session.query("SET ROLE shortlived")
        server.sql("DROP ROLE shortlived")
        # Stock goes on with the role's oid; the session must never
        # run as its session user.
        other.query("SELECT 1")
        try:
            rows = session.query("SELECT current_user")
            assert rows[0][0] != "postgres"
        except Exception as failure:  # an error or the session's end
            assert "postgres" not in str(failure) or "FATAL" in str(failure) or "ERROR" in str(failure)


def test_alter_role_set_counts_for_new_sessions_only(server):
    conninfo = server.pool(user="bob")
    try:
        with psycopg.connect(conninfo, autocommit=True) as old:
            before = old.execute("SHOW work_mem").fetchone()
            server.sql("ALTER ROLE bob SET work_mem = '23MB'")
            for _ in range(5):
                with psycopg.connect(conninfo, autocommit=True) as new:
                    for _ in range(3):
                        assert new.execute("SHOW work_mem").fetchone() == ("23MB",)
                    new.execute("SET work_mem = '1MB'")
                    new.execute("RESET work_mem")
                    assert new.execute("SHOW work_mem").fetchone() == ("23MB",)
                assert old.execute("SHOW work_mem").fetchone() == before
            old.execute("SET work_mem = '2MB'")
            old.execute("RESET work_mem")
            assert old.execute("SHOW work_mem").fetchone() == before
    finally:
        server.sql("ALTER ROLE bob RESET work_mem")


def test_live_sessions_keep_a_custom_parameter_without_a_value(server):
    """The parameter exists, and is empty, for a session that has set it and rolled back;
    ALTER ROLE gives it a value for later sessions."""
    conninfo = server.pool(user="bob")
    asked = "SELECT current_setting('app.region', true), current_setting('app.tenant', true)"
    others = {"options": "-c app.tenant=t1"}
    try:
        with psycopg.connect(conninfo) as one, psycopg.connect(conninfo, **others) as two:
            for session in (one, two):
                session.execute("SET app.region = 'north'")
                session.rollback()
            server.sql("ALTER ROLE bob SET app.region = 'south'")
            with psycopg.connect(conninfo) as new:
                for _ in range(5):
                    for session, wanted in ((two, ("", "t1")), (one, ("", None)), (new, ("south", None))):
                        assert session.execute(asked).fetchone() == wanted
                        session.rollback()
    finally:
        server.sql("ALTER ROLE bob RESET app.region")


def test_alter_database_set_counts_for_new_sessions_only(server):
    server.sql("CREATE DATABASE changing")
    conninfo = server.pool(dbname="changing")
    old = psycopg.connect(conninfo, autocommit=True)
    try:
        assert old.execute("SHOW TimeZone").fetchone() == ("UTC",)
        server.sql("ALTER DATABASE changing SET TimeZone = 'Asia/Tokyo'")
        with psycopg.connect(conninfo, autocommit=True) as new:
            assert new.info.parameter_status("TimeZone") == "Asia/Tokyo"
            assert new.execute("SHOW TimeZone").fetchone() == ("Asia/Tokyo",)
            assert old.execute("SHOW TimeZone").fetchone() == ("UTC",)
            assert old.info.parameter_status("TimeZone") == "UTC"
        server.sql("ALTER DATABASE changing RESET TimeZone")
        with psycopg.connect(conninfo, autocommit=True) as new:
            assert new.execute("SHOW TimeZone").fetchone() == ("UTC",)
    finally:
        old.close()
        server.sql("DROP DATABASE changing WITH (FORCE)")


def test_reload_reaches_sessions_that_have_no_value_of_their_own(server):
    with (
        psycopg.connect(server.pool(), autocommit=True) as plain,
        psycopg.connect(server.pool(options="-c vacuum_cost_limit=333"), autocommit=True) as started,
        psycopg.connect(server.pool(), autocommit=True) as chosen,
    ):
        chosen.execute("SET vacuum_cost_limit = 444")
        try:
            server.set_parameters({"vacuum_cost_limit": 222})
            server.reload()
            wait_until(
                lambda: plain.execute("SHOW vacuum_cost_limit").fetchone() == ("222",), what="the files are read"
            )
            for _ in range(6):
                assert plain.execute("SHOW vacuum_cost_limit").fetchone() == ("222",)
                assert started.execute("SHOW vacuum_cost_limit").fetchone() == ("333",)
                assert chosen.execute("SHOW vacuum_cost_limit").fetchone() == ("444",)
            chosen.execute("RESET vacuum_cost_limit")
            started.execute("SET vacuum_cost_limit = 555")
            started.execute("RESET vacuum_cost_limit")
            for _ in range(4):
                assert chosen.execute("SHOW vacuum_cost_limit").fetchone() == ("222",)
                assert started.execute("SHOW vacuum_cost_limit").fetchone() == ("333",)
        finally:
            server.set_parameters({"vacuum_cost_limit": None})
            server.reload()


def test_a_client_can_type_no_name_that_hides_parameters(server):
    """A backend hides custom parameters of other sessions under names of its
    own, which start with bytes that only a database without encoding accepts."""
    server.sql("CREATE DATABASE without_encoding TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    names = [b"E'\\xff\\xfepg_baton.hidden_%d'" % number for number in range(1, 10)]
    try:
        sessions = [
            psycopg.connect(server.pool(dbname="without_encoding", client_encoding="latin1"), autocommit=True)
            for _ in range(2)
        ]
        typing, other = sessions
        for number in range(4):
            typing.execute(f"SELECT set_config('my.number_{number}', 'x', false)")
            other.execute("SELECT 1")
        for name in names:
            typing.execute(b"SELECT set_config(" + name + b", 'typed', false)")
        for name in names * 2:  # an odd number of names, so that each is read on both backends
            assert typing.execute(b"SELECT current_setting(" + name + b", true)").fetchone() == ("typed",)
            assert other.execute(b"SELECT current_setting(" + name + b", true)").fetchone() == (None,)
        for session in sessions:
            session.close()
    finally:
        server.sql("DROP DATABASE without_encoding WITH (FORCE)")
