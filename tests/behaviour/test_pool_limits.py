"""A role in a database has no more backends and sessions than ALTER ROLE and
ALTER DATABASE allow it, and the other roles have the rest."""

from __future__ import annotations

import contextlib

import psycopg
import pytest
from harness.crowds import commit_as_they_begin
from harness.health import assert_healthy, wait_until
from harness.wire import Wire, query

pytestmark = pytest.mark.pool_only


@pytest.fixture
def cluster(make_cluster):
    one = make_cluster(parameters={"pg_baton.max_backends": 8, "pg_baton.session_wait_timeout": "20s"})
    one.sql("CREATE EXTENSION pg_baton")
    one.sql("CREATE ROLE hog LOGIN")
    one.sql("CREATE ROLE other LOGIN")
    return one


def in_transactions(cluster) -> int:
    return cluster.sql("SELECT count(*) FROM pg_baton_sessions WHERE state = 'idle in transaction'")[0][0]


def test_25_open_transactions_of_one_user_stop_no_other(cluster, crowd):
    cluster.sql("ALTER ROLE hog SET pg_baton.pool_max_backends = 5")
    hogs = crowd(cluster, 25, user="hog")
    for hog in hogs:
        hog.send(query("BEGIN"))
    wait_until(lambda: in_transactions(cluster) == 5, what="five have begun")
    others = crowd(cluster, 6, user="other")
    for other in others:
        assert other.query("SELECT current_user") == [["other"]]
    assert in_transactions(cluster) == 5
    # The other sessions of hog get their turn when a transaction has ended.
    commit_as_they_begin(hogs)


def test_a_limit_counts_for_sessions_that_are_there(cluster, crowd):
    hogs = crowd(cluster, 8, user="hog")
    for hog in hogs:
        hog.query("BEGIN")
    cluster.sql("ALTER ROLE hog SET pg_baton.pool_max_backends = 2")
    for hog in hogs:
        hog.query("COMMIT")
    wait_until(lambda: begun(cluster, hogs) == 2, what="the launcher has told")
    for hog in hogs:
        assert hog.query("SELECT 1") == [["1"]]
    cluster.sql("ALTER ROLE hog RESET pg_baton.pool_max_backends")
    wait_until(lambda: begun(cluster, hogs) == 8, what="there is none any more")


def test_a_limit_counts_for_sessions_that_backends_have_kept(cluster, crowd):
    """No session waits, so each backend keeps the session that it has served last, from its second transaction on."""
    hogs = crowd(cluster, 8, user="hog")
    for _ in range(2):
        assert begun(cluster, hogs) == 8
    cluster.sql("ALTER ROLE hog SET pg_baton.pool_max_backends = 2")
    kept = "SELECT count(session_id) FROM pg_baton_backends WHERE user_name = 'hog'"
    wait_until(lambda: cluster.sql(kept) == [(0,)], what="they are given back")
    assert begun(cluster, hogs) == 2


def begun(cluster, wires: list[Wire]) -> int:
    """The number of these sessions that can be in a transaction at once."""
    for wire in wires:
        wire.send(query("BEGIN"))
    with contextlib.suppress(AssertionError):
        wait_until(lambda: in_transactions(cluster) == len(wires), timeout_s=2)
    count = in_transactions(cluster)
    commit_as_they_begin(wires)
    return count


def test_what_is_set_more_closely_counts(cluster, crowd):
    hogs = crowd(cluster, 6, user="hog")
    for target, limit in (
        ("ROLE ALL", 5),
        ("DATABASE postgres", 4),
        ("ROLE hog", 3),
        ("ROLE hog IN DATABASE postgres", 2),
        ("ROLE other", 1),
    ):
        cluster.sql(f"ALTER {target} SET pg_baton.pool_max_backends = {limit}")
        expected = max(limit, 2)
        wait_until(lambda: begun(cluster, hogs) == expected, what=f"{target}: {expected}")


def test_startup_options_do_not_multiply_a_limit(cluster, crowd):
    cluster.sql("ALTER ROLE hog SET pg_baton.pool_max_backends = 2")
    # A parameter that only a starting backend can take makes a pool of its own.
    kinds = [crowd(cluster, 3, user="hog", options="-c ignore_system_indexes=off"), crowd(cluster, 3, user="hog")]
    for first, second in (kinds, reversed(kinds)):
        assert begun(cluster, first + second) == 2


def test_sessions_of_a_role_have_a_limit(cluster, crowd):
    cluster.sql("ALTER ROLE hog SET pg_baton.pool_max_sessions = 3")
    hogs = crowd(cluster, 3, user="hog")
    with pytest.raises(psycopg.OperationalError, match="too many connections for role") as refused:
        psycopg.connect(cluster.pool(user="hog"))
    assert "pg_baton.pool_max_sessions" in str(refused.value)
    (other,) = crowd(cluster, 1, user="other")
    assert other.query("SELECT 1") == [["1"]]
    hogs.pop().finish()
    wait_until(lambda: cluster.sql("SELECT count(*) FROM pg_baton_sessions WHERE user_name = 'hog'") == [(2,)])
    crowd(cluster, 1, user="hog")


def test_a_pool_keeps_the_backends_that_its_roles_are_given(cluster, crowd):
    def backends(count: int) -> bool:
        return cluster.sql("SELECT count(*) FROM pg_baton_backends WHERE state <> 'retiring'") == [(count,)]

    cluster.sql("ALTER ROLE hog SET pg_baton.pool_min_backends = 3")
    cluster.sql("ALTER ROLE other SET pg_baton.pool_min_backends = 2")
    cluster.set_parameters({"pg_baton.backend_idle_timeout": "100ms"})
    cluster.reload()
    crowd(cluster, 1, user="hog")
    wait_until(lambda: backends(3), what="three are kept")
    (other,) = crowd(cluster, 1, user="other")
    wait_until(lambda: backends(5), what="five are kept")
    other.finish()
    wait_until(lambda: backends(3), what="three are kept again")


def test_only_superusers_set_limits(cluster):
    with psycopg.connect(cluster.pool(user="hog"), autocommit=True) as connection:
        for statement in ("ALTER ROLE hog SET pg_baton.pool_max_backends = 8", "SET pg_baton.pool_max_backends = 8"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
    assert_healthy(cluster)
