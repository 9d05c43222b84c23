"""Logins where the catalogs' rows are longer than the pool can read.

The launcher decides about logins without a database of its own. It therefore
cannot reach values that PostgreSQL has moved out of a row (TOAST).  Users can
make such rows, because a user may set a verifier with a long salt."""

from __future__ import annotations

import base64
import os

import psycopg
import pytest
from harness.account import server_major

pytestmark = pytest.mark.skipif(server_major() >= 18, reason="takes verifiers of 512 bytes at most")


def long_verifier() -> str:
    """A SCRAM verifier that the server accepts and that does not fit in a row."""
    salt = base64.b64encode(os.urandom(9000)).decode()
    key = base64.b64encode(os.urandom(32)).decode()
    return f"SCRAM-SHA-256$4096:{salt}${key}:{key}"


HBA = ["host samerole all_same 127.0.0.1/32 trust"]

SETUP = [
    "CREATE ROLE too_long LOGIN",
    f"ALTER ROLE too_long PASSWORD '{long_verifier()}'",
    "CREATE ROLE near_it LOGIN IN ROLE too_long",
    "CREATE ROLE all_same LOGIN IN ROLE near_it",
    "CREATE ROLE readers",
    "CREATE ROLE reader LOGIN IN ROLE too_long, readers",
    "CREATE DATABASE for_readers",
    "REVOKE CONNECT ON DATABASE for_readers FROM PUBLIC",
    "GRANT CONNECT ON DATABASE for_readers TO readers",
    "CREATE DATABASE long_list",
    "REVOKE CONNECT ON DATABASE long_list FROM PUBLIC",
    "DO $$BEGIN FOR i IN 1..1500 LOOP EXECUTE 'CREATE ROLE listed_' || i; END LOOP; END$$",
    "DO $$BEGIN EXECUTE 'GRANT CONNECT ON DATABASE long_list TO readers, '"
    " || (SELECT string_agg('listed_' || i, ', ') FROM generate_series(1, 1500) i); END$$",
]


def attempt(conninfo: str) -> str:
    """The outcome of a login: "in", or the error's first line."""
    try:
        psycopg.connect(conninfo).close()
    except psycopg.OperationalError as refused:
        return str(refused).splitlines()[0].split("failed: ")[-1]
    return "in"


def launcher(server) -> list[tuple]:
    return server.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_baton launcher'")


def test_the_rows_are_as_long_as_these_tests_need(server):
    assert server.sql("SELECT pg_relation_size(reltoastrelid) > 0 FROM pg_class WHERE relname = 'pg_authid'") == [
        (True,)
    ]
    assert server.sql("SELECT pg_column_size(datacl) > 2000 FROM pg_database WHERE datname = 'long_list'") == [(True,)]


@pytest.mark.pool_only
def test_a_user_with_an_unreadable_verifier_is_refused_alone(server):
    before = launcher(server)
    assert attempt(server.direct(user="too_long")).startswith("FATAL:")
    for _ in range(2):
        assert attempt(server.pool(user="too_long")) == 'FATAL:  password verifier of role "too_long" is too long'
        assert attempt(server.pool()) == "in"
    assert launcher(server) == before


def looked_up_by_a_backend(server, user: str, dbname: str) -> None:
    before = launcher(server)
    direct = attempt(server.direct(user=user, dbname=dbname))
    assert "pg_class" in direct
    for _ in range(2):
        assert attempt(server.pool(user=user, dbname=dbname)) == direct
        assert attempt(server.pool(user="postgres")) == "in"
    assert launcher(server) == before


@pytest.mark.pool_only
def test_a_backend_looks_up_a_database_named_like_such_a_role(server):
    """samerole and samegroup lines look up the role that the client names."""
    looked_up_by_a_backend(server, "all_same", "too_long")


@pytest.mark.pool_only
def test_a_backend_looks_up_such_a_role_that_rules_name_as_group(make_cluster):
    server = make_cluster(hba=["host only_here +too_long 127.0.0.1/32 trust"])
    server.sql("CREATE ROLE too_long; CREATE ROLE near_it LOGIN IN ROLE too_long")
    server.sql("CREATE DATABASE only_here")
    # before the first login, because knowledge of a member outlasts a change of the group's row
    server.sql(f"ALTER ROLE too_long PASSWORD '{long_verifier()}'")
    looked_up_by_a_backend(server, "near_it", "only_here")
    server.sql("ALTER ROLE too_long PASSWORD NULL")
    assert attempt(server.pool(user="near_it", dbname="only_here")) == "in"


LOGINS = {
    "in_by_a_privilege_of_a_group": ("reader", "for_readers"),
    "refused_for_want_of_a_privilege": ("near_it", "for_readers"),
    "in_by_a_long_list": ("reader", "long_list"),
    "refused_by_a_long_list": ("near_it", "long_list"),
}


@pytest.mark.parametrize("promise", LOGINS)
def test_what_lies_near_a_long_row_is_decided_as_the_server_does(server, promise):
    user, dbname = LOGINS[promise]
    before = launcher(server)
    direct = attempt(server.direct(user=user, dbname=dbname))
    assert attempt(server.pool(user=user, dbname=dbname)) == direct
    assert launcher(server) == before


def test_a_privilege_taken_back_counts_near_long_rows_too(server):
    """A kept greeting or an existing backend makes no exception."""
    seen = {}
    for port in (server.port, server.pool_port):
        server.sql("GRANT CONNECT ON DATABASE for_readers, long_list TO readers")
        for dbname in ("for_readers", "long_list"):
            where = f"host=127.0.0.1 port={port} user=reader dbname={dbname}"
            before = [attempt(where) for _ in range(3)]
            server.sql(f"REVOKE CONNECT ON DATABASE {dbname} FROM readers")
            seen[port, dbname] = before + [attempt(where) for _ in range(2)]
    server.sql("GRANT CONNECT ON DATABASE for_readers, long_list TO readers")
    for dbname in ("for_readers", "long_list"):
        direct = seen[server.port, dbname]
        assert direct[2] == "in" and "permission denied" in direct[3], direct
        assert seen[server.pool_port, dbname] == direct
