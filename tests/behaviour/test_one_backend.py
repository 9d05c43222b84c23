"""The settings of a session decide nothing for the next session on the same backend."""

from __future__ import annotations

import contextlib

import psycopg
import pytest
from harness.compare import same_as_direct
from harness.health import wait_until

PARAMETERS = {"pg_baton.max_backends": 1}
SETUP = [
    "CREATE ROLE careful LOGIN",
    "ALTER ROLE careful SET default_transaction_isolation = 'serializable'",
    "ALTER ROLE careful SET default_transaction_read_only = on",
    "ALTER ROLE careful SET default_transaction_deferrable = on",
]


def connect(server, **options):
    return psycopg.connect(server.pool(**options), autocommit=True)


def test_a_parameter_that_another_session_s_excludes_is_restored(server):
    """log_statement_stats and log_parser_stats exclude each other."""
    with connect(server, options="-c log_parser_stats=on") as one, connect(server) as other:
        other.execute("SET log_statement_stats = on")
        for _ in range(3):
            assert one.execute("SHOW log_parser_stats").fetchone() == ("on",)
            assert one.execute("SHOW log_statement_stats").fetchone() == ("off",)
            assert other.execute("SHOW log_statement_stats").fetchone() == ("on",)


@pytest.fixture
def statement_stats_in_the_file(server):
    server.set_parameters({"log_statement_stats": "on"})
    server.reload()
    yield
    server.set_parameters({"log_statement_stats": None})
    server.reload()


def test_parameters_that_the_file_s_exclude_are_put_back(server, statement_stats_in_the_file):
    with connect(server) as one, connect(server) as other:
        while one.execute("SHOW log_statement_stats").fetchone() != ("on",):
            one.execute("SELECT pg_sleep(0.01)")
        with one.transaction():
            one.execute("SET log_statement_stats = off")
            one.execute("SET log_parser_stats = on")
        for _ in range(3):
            assert other.execute("SHOW log_statement_stats").fetchone() == ("on",)
            assert one.execute("SHOW log_parser_stats").fetchone() == ("on",)
            assert one.execute("SHOW log_statement_stats").fetchone() == ("off",)


WHERE = """SELECT coalesce(spcname, 'the database''s') FROM pg_class c
           LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace WHERE c.oid = 'pg_temp.t'::regclass"""


@pytest.mark.parametrize("how", ["set", "startup", "reset"])
def test_temporary_tables_go_where_the_session_wants_them(server, how):
    with psycopg.connect(server.direct(), autocommit=True) as admin:
        admin.execute("SET allow_in_place_tablespaces = on")
        admin.execute("CREATE TABLESPACE for_temporary LOCATION ''")
    try:
        options = {} if how == "set" else {"options": "-c temp_tablespaces=for_temporary"}
        with connect(server, **options) as one, connect(server) as other:
            if how == "set":
                one.execute("SET temp_tablespaces = 'for_temporary'")
            elif how == "reset":
                one.execute("SET temp_tablespaces = ''")
            other.execute("SELECT 1")
            if how == "reset":
                one.execute("RESET temp_tablespaces")
                other.execute("SELECT 1")
            one.execute("CREATE TEMPORARY TABLE t (a int)")
            assert one.execute(WHERE).fetchone() == ("for_temporary",)
            one.execute("DROP TABLE t")
            other.execute("CREATE TEMPORARY TABLE t (a int)")
            assert other.execute(WHERE).fetchone() == ("the database's",)
    finally:
        server.sql("DROP TABLESPACE for_temporary")


@contextlib.contextmanager
def serializable_writer(server):
    """A transaction that a session has to wait for when it takes a safe snapshot."""
    with psycopg.connect(server.direct()) as writer:
        writer.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        writer.execute("SELECT txid_current()")
        yield
        writer.rollback()


def test_login_waits_for_no_safe_snapshot(server):
    with serializable_writer(server), connect(server, user="careful") as session:
        assert session.execute("SHOW default_transaction_deferrable").fetchone() == ("on",)
        session.execute("SET default_transaction_deferrable = off")
        assert session.execute("SHOW transaction_isolation").fetchone() == ("serializable",)


@pytest.mark.parametrize(
    "option",
    [
        "transaction_isolation=serializable",
        "transaction_isolation=read\\ committed",
        "transaction_read_only=off",
        "transaction_read_only=on",
        "transaction_deferrable=on",
    ],
)
def test_transactions_of_a_role_s_own_kind_start_as_directly(server, option):
    same_as_direct(
        server,
        ["SELECT 1", "SHOW transaction_isolation", "SHOW transaction_read_only"],
        user="careful",
        options=f"-c {option}",
        ignore=r" [FLR]='[^']*'",
    )


def test_sessions_that_leave_temp_tables_await_no_safe_snapshot(server):
    there = "SELECT count(*) FROM pg_class WHERE relname = 'left_behind'"
    with connect(server, user="careful") as session:
        session.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        session.execute("CREATE TEMPORARY TABLE left_behind (a int)")
        session.execute("COMMIT")
        assert server.sql(there) == [(1,)]
        with serializable_writer(server):
            session.close()
            wait_until(lambda: server.sql(there) == [(0,)], what="the temporary table is dropped")


# For each parameter: two sessions' own values. A third session has none.
OWN: dict[str, tuple[str, str]] = {
    "app.tenant_id": ("17", "4711"),
    "application_name": ("one", "other"),
    "bytea_output": ("escape", "hex"),
    "client_encoding": ("LATIN1", "WIN1252"),
    "datestyle": ("German, DMY", "SQL, MDY"),
    "extra_float_digits": ("3", "-2"),
    "random_page_cost": ("1.1", "3.5"),
    "search_path": ("information_schema, public", "pg_temp, public"),
    "statement_timeout": ("1min", "2h"),
    "timezone": ("Europe/Berlin", "America/New_York"),
    "work_mem": ("5MB", "77kB"),
}
ALL_OWN = """SELECT name, setting, source, reset_val FROM pg_settings WHERE source = 'session'
             UNION ALL SELECT 'app.tenant_id', current_setting('app.tenant_id', true), '', '' ORDER BY 1"""


def test_values_of_their_own_of_the_same_parameters_never_mix(server):
    """They do not mix in any order of the sessions, and whatever becomes of a session's value."""

    def seen(session) -> tuple:
        return (session.execute(ALL_OWN).fetchall(), session.info.parameter_status("TimeZone"))

    with connect(server) as one, connect(server) as other, connect(server) as plain:
        nothing = seen(plain)
        for name, (ones, others) in OWN.items():
            one.execute("SELECT set_config(%s, %s, false)", (name, ones))
            other.execute("SELECT set_config(%s, %s, false)", (name, others))
        expected = {one: seen(one), other: seen(other), plain: nothing}
        assert len({str(rows) for rows in expected.values()}) == 3
        for session in (one, other, one, plain, other, plain, one, other):
            assert seen(session) == expected[session]

        # values that are not kept, values that are kept, and values that are given up
        for name, (ones, others) in OWN.items():
            with one.transaction(force_rollback=True):
                one.execute("SELECT set_config(%s, %s, false)", (name, others))
            with one.transaction():
                one.execute("SELECT set_config(%s, %s, true)", (name, others))
            assert seen(other) == expected[other]
            assert seen(one) == expected[one]
            other.execute("SELECT set_config(%s, %s, false)", (name, ones))
            changed = seen(other)
            assert seen(one) == expected[one]
            assert seen(other) == changed
            if name != "app.tenant_id":  # it would stay, empty
                one.execute(f"RESET {name}")
                expected[one] = seen(one)
            expected[other] = changed
            assert seen(other) == expected[other]
            assert seen(plain) == nothing
            assert seen(one) == expected[one]
