"""What a role has in its tables costs no other role's sessions anything when a backend becomes theirs."""

from __future__ import annotations

import pytest
from harness.cluster import HOST
from harness.processes import cpu_seconds
from harness.wire import Wire

pytestmark = pytest.mark.pool_only

# Expressions of partition keys, which are stored as trees of some 45 MB each.
TABLES = 6
VALUES = 300_000
# To read them takes a process seconds, and to change its role a millisecond.
BOUND_S = 1.0
CHANGES = 4


def test_another_s_expressions_make_no_role_change_long(installation):
    """One backend serves two roles in turn, while a third, which has huge expressions, makes and drops an index."""
    cluster = installation(pg_baton__max_backends=1, pg_baton__max_extra_backends=0)
    cluster.sql("CREATE ROLE third LOGIN")
    cluster.sql("CREATE SCHEMA low AUTHORIZATION low")
    values = ",".join(str(number) for number in range(VALUES))
    with (
        Wire.login(HOST, cluster.port, user="low") as low,
        Wire.login(HOST, cluster.pool_port, user="other") as other,
        Wire.login(HOST, cluster.pool_port, user="third") as third,
    ):
        for number in range(TABLES):
            low.query(f"CREATE TABLE low.t{number} (a int) PARTITION BY LIST ((a IN ({values})))")
        other.query("SELECT 1")
        ((pid,),) = cluster.sql("SELECT pid FROM pg_baton_backends")
        before = cpu_seconds(pid)
        for _ in range(CHANGES):
            low.query("CREATE TABLE low.indexed (a int PRIMARY KEY)")
            low.query("DROP TABLE low.indexed")
            third.query("SELECT 1")
            other.query("SELECT 1")
        assert cluster.sql("SELECT pid FROM pg_baton_backends") == [(pid,)], "it is another process"
        assert cpu_seconds(pid) - before < BOUND_S
