"""One role takes all the sessions, or all the native ones, that it can get: others come in."""

from __future__ import annotations

import contextlib

import pytest
from harness.account import server_major
from harness.ports import HOST
from harness.wire import LoginFailed, Wire

pytestmark = pytest.mark.pool_only


def come_in(stack: contextlib.ExitStack, cluster, user: str, **options) -> bool:
    """One more that stays; False if it is refused for their number."""
    try:
        stack.enter_context(Wire.login(HOST, cluster.pool_port, user=user, **options))
    except LoginFailed as refused:
        assert "53300" in str(refused), refused
        return False
    return True


def take_all(stack: contextlib.ExitStack, cluster, user: str, most: int, **options) -> int:
    """Logs in until it is refused."""
    for taken in range(most):
        if not come_in(stack, cluster, user, **options):
            return taken
    raise AssertionError(f"{most} of {user} came in")


def test_one_role_s_sessions_leave_some_to_all_others(installation, bystanders):
    """max_sessions is reached: superusers, others, and who may have reserved connections come in."""
    cluster = installation(pg_baton__max_sessions=60)
    special = ["other"]
    if server_major() >= 16:
        cluster.sql("CREATE ROLE reserved LOGIN IN ROLE pg_use_reserved_connections")
        special.append("reserved")
    with contextlib.ExitStack() as stack:
        assert take_all(stack, cluster, "low", 60) >= 50
        with bystanders(cluster) as beside:
            assert not come_in(stack, cluster, "low")
            beside.all_go_on(10)
        for user in special:
            assert come_in(stack, cluster, user)


def test_a_superuser_comes_in_when_roles_have_all_sessions(installation):
    cluster = installation(pg_baton__max_sessions=60)
    roles = [f"low{number}" for number in range(12)]
    for role in roles:
        cluster.sql(f"CREATE ROLE {role} LOGIN")
    with contextlib.ExitStack() as stack:
        taken = [take_all(stack, cluster, role, 60) for role in roles]
        assert taken[-1] == 0 and sum(taken) == 60 - 3
        assert come_in(stack, cluster, "postgres")


def test_native_sessions_leave_shared_backends_theirs(installation, bystanders):
    """All that a role may have, and then its backends of the pool, and another's."""
    cluster = installation(max_connections=40, pg_baton__native_dbuser_names="*/native")
    cluster.sql("CREATE ROLE native LOGIN")
    with contextlib.ExitStack() as stack:
        # a session of the pool is there: without one there is nobody to leave any to
        assert come_in(stack, cluster, "low")
        with bystanders(cluster) as beside:
            assert take_all(stack, cluster, "native", 40) > 0
            assert not come_in(stack, cluster, "native")
            holders = [stack.enter_context(Wire.login(HOST, cluster.pool_port, user="low")) for _ in range(10)]
            for holder in holders:
                holder.query("BEGIN")
            assert not come_in(stack, cluster, "native")
            beside.all_go_on(10)
