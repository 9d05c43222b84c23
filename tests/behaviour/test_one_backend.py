"""What one session has set decides nothing for the next on the same backend."""

from __future__ import annotations

import psycopg
import pytest

PARAMETERS = {"pg_baton.max_backends": 1}


def connect(server, **options):
    return psycopg.connect(server.pool(**options), autocommit=True)


def test_a_parameter_that_another_s_excludes_is_put_back_all_the_same(server):
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
