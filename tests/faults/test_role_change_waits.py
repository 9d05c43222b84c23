"""A backend that does not come to the end of its change of role."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.health import assert_healthy, wait_until
from harness.wire import Wire, query

pytestmark = pytest.mark.pool_only

HOST = "127.0.0.1"
LOCK = "BEGIN; LOCK TABLE pg_db_role_setting IN ACCESS EXCLUSIVE MODE"


@pytest.fixture
def prepared(cluster_with):
    def make(**parameters):
        cluster = cluster_with(**{f"pg_baton__{name}": value for name, value in parameters.items()})
        for role in ("one", "two"):
            cluster.sql(f"CREATE ROLE {role} LOGIN")
        return cluster

    return make


def process_of(cluster) -> int:
    ((pid,),) = cluster.sql("SELECT pid FROM pg_baton_backends WHERE state <> 'starting'")
    return pid


def test_one_that_waits_for_a_catalog_is_ended_as_one_that_starts_is(prepared):
    """Its place is free then, and its log says why."""
    # its session waits longer than by default
    server = prepared(max_backends=1, min_backends=0, session_wait_timeout="3min")
    with (
        Wire.login(HOST, server.port) as beside,
        Wire.login(HOST, server.pool_port, user="one") as one,
        Wire.login(HOST, server.pool_port, user="two", timeout_s=120) as two,
    ):
        assert one.query("SELECT 1") == [["1"]]
        pid = process_of(server)
        beside.query(LOCK)
        two.send(query("SELECT session_user"))
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), 90, "it has been ended")
        assert "did not become another role's in time" in server.log()
        beside.query("COMMIT")
        assert [m.row() for m in two.until_ready() if m.type == "D"] == [[b"two"]]
        assert one.query("SELECT session_user") == [["one"]]
    assert_healthy(server)
