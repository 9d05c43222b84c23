"""A role that can log in no more, by its own doing or not, costs others no backend: its
sessions are served in turn with theirs, and what it has goes to others when they want it."""

from __future__ import annotations

import pytest
from harness.wire import Wire

pytestmark = pytest.mark.pool_only

CHANGES = (
    "ALTER ROLE shut PASSWORD 'two'",
    "ALTER ROLE shut VALID UNTIL '2001-01-01'",
    "ALTER ROLE shut NOLOGIN",
    "ALTER ROLE shut CONNECTION LIMIT 0",
    "REVOKE CONNECT ON DATABASE postgres FROM PUBLIC",
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_shut_out_role_keeps_no_backend_from_others(make_cluster, change):
    cluster = make_cluster(parameters={"pg_baton.max_backends": 2}, hba=["host all shut 127.0.0.1/32 scram-sha-256"])
    cluster.sql("CREATE ROLE holds LOGIN; CREATE ROLE other LOGIN; CREATE ROLE shut LOGIN PASSWORD 'one'")
    with (
        Wire.login("127.0.0.1", cluster.pool_port, user="holds") as holds,
        Wire.login("127.0.0.1", cluster.pool_port, user="other") as other,
        Wire.login("127.0.0.1", cluster.pool_port, user="shut", database="postgres", password="one") as shut,
    ):
        holds.query("BEGIN")
        assert shut.query("SELECT 1") == [["1"]]
        cluster.sql(change)
        for _ in range(3):
            assert shut.query("SELECT session_user") == [["shut"]]
            assert other.query("SELECT session_user", timeout_s=20) == [["other"]]
