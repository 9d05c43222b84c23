"""A backend becomes another role's while something is in the way of those who log in."""

from __future__ import annotations

import pytest

from harness.health import assert_healthy
from harness.wire import Wire

pytestmark = pytest.mark.pool_only

HOST = "127.0.0.1"
# What a login reads, and nobody can read as long as this lasts.
LOCK = "BEGIN; LOCK TABLE pg_db_role_setting, pg_authid, pg_auth_members IN ACCESS EXCLUSIVE MODE"


def test_a_change_of_role_waits_for_no_catalog(cluster_with):
    """Both sessions have logged in: on the server's own port nobody would look there again."""
    server = cluster_with(pg_baton__max_backends=1)
    for role in ("one", "two"):
        server.sql(f"CREATE ROLE {role} LOGIN")
    with (
        Wire.login(HOST, server.port) as beside,
        Wire.login(HOST, server.pool_port, user="one") as one,
        Wire.login(HOST, server.pool_port, user="two") as two,
    ):
        one.query("SELECT 1")
        ((pid,),) = server.sql("SELECT pid FROM pg_baton_backends")
        beside.query(LOCK)
        for _ in range(3):
            assert two.query("SELECT 2", timeout_s=20) == [["2"]]
            assert one.query("SELECT 1", timeout_s=20) == [["1"]]
        beside.query("COMMIT")
        assert two.query("SELECT session_user") == [["two"]]
        assert server.sql("SELECT pid FROM pg_baton_backends") == [(pid,)]
        for wire in (one, two):
            wire.finish()
    assert_healthy(server)
