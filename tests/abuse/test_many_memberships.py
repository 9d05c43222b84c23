"""A role with CREATEROLE that makes itself a member of thousands of roles: its logins are what they are
on a direct connection, and the launcher, for which all logins wait, does not follow them all."""

from __future__ import annotations

import time

import pytest
from behaviour.test_login_repeated import visit
from harness.wire import Wire

pytestmark = pytest.mark.pool_only

MEMBERSHIPS = 3000
# Of each login BATON_MEMBERSHIP_ROWS at most, and a few looks at the whole catalog.
MOST_ROWS_A_LOGIN = 150_000
LOGINS = 10

# How a login comes to depend on memberships: what makes it so, and what takes the right away.
ASKED_BY = {
    "connect": (
        ["REVOKE CONNECT ON DATABASE postgres FROM PUBLIC", "GRANT CONNECT ON DATABASE postgres TO team"],
        "REVOKE CONNECT ON DATABASE postgres FROM team",
    ),
    "hba": ([], "REVOKE team FROM low"),
}


def rows_read(cluster) -> int:
    ((rows,),) = cluster.sql(
        "SELECT sum(pg_stat_get_tuples_returned(oid) + pg_stat_get_tuples_fetched(oid))::int8 "
        "FROM pg_class WHERE relname IN ('pg_authid', 'pg_auth_members')"
    )
    return rows


@pytest.mark.parametrize("kind", ASKED_BY)
def test_many_memberships_keep_no_client_waiting(installation, bystanders, kind):
    """The rows that are read are counted, by the server's own statistics."""
    cluster = installation()
    makes, takes = ASKED_BY[kind]
    cluster.sql("CREATE ROLE team")
    cluster.sql("GRANT team TO other")
    cluster.sql("ALTER ROLE low CREATEROLE")
    with Wire.login("127.0.0.1", cluster.port, user="low", database="postgres", timeout_s=60) as low:
        low.query(
            f"DO $$ BEGIN FOR i IN 1..{MEMBERSHIPS} LOOP "
            "EXECUTE 'CREATE ROLE r' || i; EXECUTE 'GRANT r' || i || ' TO low'; END LOOP; END $$"
        )
    cluster.sql("GRANT team TO low")
    if kind == "hba":
        cluster.write_hba(["host all postgres 127.0.0.1/32 trust", "host all +team 127.0.0.1/32 trust"], replaces=True)
        cluster.reload()
    for statement in makes:
        cluster.sql(statement)

    def compare() -> str:
        direct = visit(cluster.port, "low", "postgres")
        assert [visit(cluster.pool_port, "low", "postgres") for _ in range(2)] == [direct] * 2
        return str(direct)

    compare()
    with bystanders(cluster) as beside:
        before = rows_read(cluster)
        for number in range(LOGINS):
            cluster.sql(f"ALTER ROLE low PASSWORD '{number}'")
            visit(cluster.pool_port, "low", "postgres")
        # the launcher's statistics come as often
        time.sleep(1.5)
        visit(cluster.pool_port, "low", "postgres")
        beside.all_go_on(3)
        assert rows_read(cluster) - before < LOGINS * MOST_ROWS_A_LOGIN
    let_in = compare()
    cluster.sql(takes)
    assert compare() != let_in
