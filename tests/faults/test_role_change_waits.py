"""A backend changes to another role while a lock is in the way of logins."""

from __future__ import annotations

import pytest
from harness.health import assert_healthy
from harness.wire import Wire

pytestmark = pytest.mark.pool_only

HOST = "127.0.0.1"
# Locks the catalogs that a login reads: no other session can read them as long as the transaction lasts.
LOCK = "BEGIN; LOCK TABLE pg_db_role_setting, pg_authid, pg_auth_members IN ACCESS EXCLUSIVE MODE"


def test_a_change_of_role_waits_for_no_catalog(cluster_with):
    """Both sessions have logged in: on the server's own port they would not read these catalogs again."""
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
