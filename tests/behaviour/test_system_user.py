"""SYSTEM_USER (16 and later) says by which method and as which user a session's own client was
authenticated, whichever backend serves the session: the same as on the server's own port."""

from __future__ import annotations

import contextlib

import psycopg
import pytest
from harness.account import DEBUG_PARALLEL, acting_as, other_users, server_major
from harness.certificates import Authority, make_secure

pytestmark = pytest.mark.skipif(server_major() < 16, reason="SYSTEM_USER came with 16")

(ONE,) = other_users(1) or ("",)
LONG = "x" * 300

HBA = [
    "host all scrammed,other 127.0.0.1/32 scram-sha-256",
    "host all hashed 127.0.0.1/32 md5",
    "host all clear 127.0.0.1/32 password",
    "hostssl all either,sometimes 127.0.0.1/32 scram-sha-256",
    "hostnossl all either 127.0.0.1/32 password",
    "hostssl all by_cert 127.0.0.1/32 cert map=people",
    "hostssl all trusted_cert 127.0.0.1/32 trust clientcert=verify-full",
    "local all by_peer peer map=people",
]
IDENT = [f"people {ONE or '-'} by_peer", "people somebody by_cert"]
ROLES = """
CREATE ROLE scrammed LOGIN PASSWORD 'correct';
CREATE ROLE other LOGIN PASSWORD 'correct';
CREATE ROLE clear LOGIN PASSWORD 'correct';
CREATE ROLE trusting LOGIN;
CREATE ROLE either LOGIN PASSWORD 'correct';
CREATE ROLE sometimes LOGIN PASSWORD 'correct';
CREATE ROLE by_cert LOGIN;
CREATE ROLE trusted_cert LOGIN;
CREATE ROLE by_peer LOGIN;
SET password_encryption = md5;
CREATE ROLE hashed LOGIN PASSWORD 'correct';
"""
SUBJECTS = {"by_cert": f"/O={LONG[:60]}/OU={LONG[:60]}/L={LONG[:100]}/CN=somebody", "trusted_cert": "/CN=trusted_cert"}
EXPECTED = {
    "scrammed": "scram-sha-256:scrammed",
    "other": "scram-sha-256:other",
    "hashed": "md5:hashed",
    "clear": "password:clear",
    "trusting": None,
    "by_cert": f"cert:CN=somebody,L={LONG[:100]},OU={LONG[:60]},O={LONG[:60]}",
    "trusted_cert": None,
}
# TLS sessions and plain sessions of a role share backends: the value by TLS, and the value without TLS.
BOTH_WAYS = {"either": ("scram-sha-256:either", "password:either"), "sometimes": ("scram-sha-256:sometimes", None)}

# A parallel worker runs the query; it knows SYSTEM_USER from its leader.
PARALLEL = f"SET {DEBUG_PARALLEL} = on; SET max_parallel_workers_per_gather = 1"


@pytest.fixture(scope="module", params=["auto", "server"])
def server(run, request):
    """With `server` a backend authenticates each client, and tells the dispatcher."""
    authority = Authority(run.directory / f"system user {request.param}")
    parameters = {"pg_baton.login": request.param, "pg_baton.max_backends": 2}
    cluster = run.cluster(f"system-user-{request.param}", parameters=parameters, hba=HBA)
    cluster.write_ident(IDENT)
    make_secure(cluster, authority)
    cluster.pairs = {name: authority.sign(f"{name} {request.param}", subject) for name, subject in SUBJECTS.items()}
    cluster.start()
    cluster.sql(ROLES)
    yield cluster
    cluster.finish()


def connect(server, role: str, pool: bool = True, sslmode: str = "require") -> psycopg.Connection:
    how = {"user": role, "password": "correct", "sslmode": sslmode}
    if role in SUBJECTS:
        how.update(sslcert=server.pairs[role].certificate, sslkey=server.pairs[role].key)
    return psycopg.connect(server.pool(**how) if pool else server.direct(**how), autocommit=True)


def said(session: psycopg.Connection) -> str | None:
    (user,) = session.execute("SELECT SYSTEM_USER").fetchone()
    assert session.execute('SELECT pg_catalog."system_user"()').fetchone() == (user,)
    return user


@pytest.mark.parametrize("role", EXPECTED)
def test_system_user_is_what_the_server_s_own_port_says(server, role):
    with connect(server, role, pool=False) as session:
        assert said(session) == EXPECTED[role]
    with connect(server, role) as session:
        assert said(session) == EXPECTED[role]


def test_each_session_says_its_own_on_whatever_backend(server):
    """Two backends serve a role's sessions, three for each way in which the role can log in."""
    for role, ways in BOTH_WAYS.items():
        with contextlib.ExitStack() as stack:
            sessions = [
                (expected, stack.enter_context(connect(server, role, sslmode=sslmode)))
                for expected, sslmode in [*zip(ways, ("require", "disable"), strict=True)] * 3
            ]
            for _ in range(3):
                for expected, session in sessions:
                    assert said(session) == expected


def test_parallel_workers_say_the_same(server):
    with connect(server, "scrammed") as one, connect(server, "trusting") as nobody, connect(server, "by_cert") as long:
        for session in (one, nobody, long):
            session.execute(PARALLEL)
        for _ in range(2):
            for role, session in (("scrammed", one), ("trusting", nobody), ("by_cert", long)):
                assert said(session) == EXPECTED[role]
                plan = session.execute("EXPLAIN (COSTS OFF) SELECT SYSTEM_USER").fetchall()
                assert "Single Copy" in str(plan) or "Gather" in str(plan)


@pytest.mark.skipif(not ONE, reason="only root can be another system user")
def test_a_peer_is_the_system_s_user(server):
    for port in (server.port, server.pool_port):
        conninfo = f"host={server.home} port={port} user=by_peer dbname=postgres"
        with acting_as(ONE), psycopg.connect(conninfo, autocommit=True) as session:
            assert said(session) == f"peer:{ONE}"


def test_a_role_that_is_assumed_does_not_change_it(server):
    server.sql("GRANT trusting TO scrammed")
    with connect(server, "scrammed") as session:
        session.execute("SET ROLE trusting")
        assert said(session) == "scram-sha-256:scrammed"
        session.execute("DISCARD ALL")
        assert said(session) == "scram-sha-256:scrammed"
