"""Pools of roles whose clients the server authenticates: the dispatcher opens their
backends, so these begin, end and make room for others as the backends of any pool do."""

from __future__ import annotations

import contextlib

import pytest
from harness.authenticators import Ldap
from harness.health import wait_until
from harness.wire import Wire
from test_login_by_server import built_library

pytestmark = pytest.mark.pool_only

ROLES = ("alice", "bob", "carol")
PASSWORD = "correct"


@pytest.fixture(params=["login_server", "ldap"])
def vouched(request, make_cluster, run):
    """One backend, and three roles that only the server lets in."""
    with contextlib.ExitStack() as services:
        parameters = {"pg_baton.max_backends": 1, "pg_baton.session_wait_timeout": "20s"}
        if request.param == "ldap":
            users = dict.fromkeys(ROLES, PASSWORD)
            ldap = services.enter_context(Ldap(run.directory / "vouched-ldap", users))
            hba = [ldap.line(role) for role in ROLES]
        else:
            parameters["pg_baton.login"] = "server"
            hba = ["host all alice,bob,carol all scram-sha-256"]
        cluster = make_cluster(parameters=parameters, hba=[*hba, "local all alice,bob,carol reject"])
        cluster.sql("CREATE EXTENSION pg_baton")
        for role in ROLES:
            cluster.sql(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
        yield cluster


def pools_of(cluster) -> list[tuple]:
    return cluster.sql("SELECT user_name FROM pg_baton_backends WHERE user_name = ANY (ARRAY['alice', 'bob', 'carol'])")


def test_backends_of_vouched_roles_make_room_and_end_when_idle(vouched):
    wires = {}
    for role in ROLES:
        wires[role] = Wire.login("127.0.0.1", vouched.pool_port, user=role, password=PASSWORD)
    for _ in range(2):
        for role, wire in wires.items():
            # long enough that the login of the role's last backend says nothing about another backend
            vouched.sql("SELECT pg_sleep(1.1)")
            assert wire.query("SELECT session_user") == [[role]]
    vouched.set_parameters({"pg_baton.backend_idle_timeout": "1s"})
    vouched.reload()
    wait_until(lambda: pools_of(vouched) == [], what="idle backends have gone")
    for role, wire in wires.items():
        assert wire.query("SELECT session_user") == [[role]]
        wire.finish()


@pytest.mark.parametrize("order", ["before", "after"])
def test_role_locked_out_meanwhile_keeps_its_sessions_and_pool(make_cluster, run, order):
    """As on a direct connection: the server does not check a session again after its login."""
    libraries = [str(built_library(run, "login_audit")), "pg_baton"]
    cluster = make_cluster(
        parameters={
            "pg_baton.max_backends": 3,
            "pg_baton.session_wait_timeout": "5s",
            "shared_preload_libraries": ", ".join(libraries if order == "before" else libraries[::-1]),
        },
        hba=["host all alice all scram-sha-256", "local all alice reject"],
    )
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.sql(f"CREATE ROLE alice LOGIN PASSWORD '{PASSWORD}'")
    first, second = (Wire.login("127.0.0.1", cluster.pool_port, user="alice", password=PASSWORD) for _ in range(2))
    first.query("BEGIN")
    cluster.set_parameters({"login_audit.banned": "alice"})
    cluster.reload()

    def is_banned() -> bool:
        with Wire.open("127.0.0.1", cluster.pool_port) as stranger:
            return stranger.log_in("alice", "postgres", PASSWORD)[-1].type == "E"

    wait_until(is_banned, what="she is banned")
    # this query takes another backend
    assert second.query("SELECT session_user") == [["alice"]]
    first.query("COMMIT")
    ((backends,),) = cluster.sql("SELECT count(*) FROM pg_baton_backends")
    assert backends == 2
    assert is_banned()
    for wire in (first, second):
        wire.finish()
