"""The contexts of a role's sessions take no more memory than ALTER ROLE and ALTER DATABASE
allow; a session that needs more keeps its backend, and no other session is affected."""

from __future__ import annotations

import psycopg
import pytest
from harness.health import assert_healthy, wait_until
from harness.wire import Wire

pytestmark = pytest.mark.pool_only

LARGE = 20_000


@pytest.fixture
def cluster(make_cluster):
    # Forced migration, so that contexts are stored after each transaction.
    one = make_cluster(parameters={"pg_baton.max_backends": 6, "pg_baton.force_migration": True})
    one.sql("CREATE EXTENSION pg_baton")
    one.sql("CREATE ROLE hog LOGIN")
    one.sql("CREATE ROLE other LOGIN")
    one.sql("ALTER ROLE hog SET pg_baton.pool_memory = '100kB'")
    return one


def fill(wire: Wire, count: int, name: str = "large") -> None:
    for number in range(count):
        wire.query(f"SELECT set_config('my.{name}{number}', repeat('{number}', {LARGE}), false)")


def has_all(wire: Wire, count: int, name: str = "large") -> bool:
    return all(
        wire.query(f"SELECT current_setting('my.{name}{number}') = repeat('{number}', {LARGE})") == [["t"]]
        for number in range(count)
    )


def causes(cluster, user: str) -> list[str | None]:
    rows = cluster.sql(
        f"SELECT dedicated_cause FROM pg_baton_sessions WHERE user_name = '{user}' AND mode <> 'native' ORDER BY 1"
    )
    return [cause for (cause,) in rows]


def await_limit(cluster, user: str) -> None:
    """Each pool of the user knows the setting a moment after the pool's first session has come."""
    known = f"SELECT bool_and(memory_limit_bytes IS NOT NULL) FROM pg_baton_pool_users WHERE user_name = '{user}'"
    wait_until(lambda: cluster.sql(known) == [(True,)], what="its pools know the limit")


def memory(cluster, user: str) -> tuple[int, int | None]:
    ((used, most),) = cluster.sql(
        f"SELECT sum(memory_bytes)::bigint, max(memory_limit_bytes) FROM pg_baton_pool_users WHERE user_name = '{user}'"
    )
    return used, most


def test_session_beyond_role_memory_keeps_its_backend_and_state(cluster, crowd):
    (hog,) = crowd(cluster, 1, user="hog")
    await_limit(cluster, "hog")
    fill(hog, 10)
    wait_until(lambda: causes(cluster, "hog") == ["pool memory"], what="it keeps its backend")
    assert has_all(hog, 10)
    used, most = memory(cluster, "hog")
    assert used <= most == 100 * 1024
    hog.finish()
    assert_healthy(cluster)


def test_one_role_at_its_limit_does_no_harm_to_another(cluster, crowd):
    hogs = crowd(cluster, 3, user="hog")
    others = crowd(cluster, 3, user="other")
    for hog in hogs:
        fill(hog, 6)
    for other in others:
        fill(other, 6)
    for _ in range(2):
        assert all(has_all(wire, 6) for wire in hogs + others)
    assert "pool memory" in causes(cluster, "hog")
    assert causes(cluster, "other") == [None] * 3
    used, most = memory(cluster, "other")
    assert used > 3 * 6 * LARGE and most is None


def test_what_a_session_takes_is_given_back_when_it_ends(cluster, crowd):
    first, second = crowd(cluster, 2, user="hog")
    fill(first, 4)
    fill(second, 2)
    wait_until(lambda: causes(cluster, "hog") == ["pool memory", None], what="the second finds no room")
    first.finish()
    # The client sends nothing: the dispatcher wakes the session. (Without that the server would wake
    # it a little later, for its statistics: pool_memory.rs. The simulator asserts the wake.)
    wait_until(lambda: causes(cluster, "hog") == [None], what="now it does")
    assert has_all(second, 2)
    second.finish()
    wait_until(lambda: cluster.sql("SELECT count(*) FROM pg_baton_sessions WHERE user_name = 'hog'") == [(0,)])
    (third,) = crowd(cluster, 1, user="hog")
    assert third.query("SELECT 1") == [["1"]]
    assert memory(cluster, "hog")[0] < LARGE


def test_session_that_frees_what_did_not_fit_shares_again(cluster, crowd):
    (hog,) = crowd(cluster, 1, user="hog")
    fill(hog, 3)
    hog.query(f"PREPARE huge AS SELECT '{'x' * 200_000}'")
    wait_until(lambda: causes(cluster, "hog") == ["pool memory"], what="it does not fit")
    hog.query("SELECT set_config('my.large0', 'small', false)")
    hog.query("DEALLOCATE huge")
    wait_until(lambda: causes(cluster, "hog") == [None], what="it does")
    assert hog.query("SELECT current_setting('my.large0')") == [["small"]]
    assert hog.query("SELECT count(*) FROM pg_prepared_statements") == [["0"]]
    # A stored context may be taken back even if the limit is lower by now.
    cluster.sql("ALTER ROLE hog SET pg_baton.pool_memory = '10kB'")
    wait_until(lambda: memory(cluster, "hog")[1] == 10 * 1024)
    hog.query("RESET ALL")
    wait_until(lambda: memory(cluster, "hog")[0] < LARGE, what="it is given back")
    assert causes(cluster, "hog") == [None]


def test_a_limit_counts_at_once_for_sessions_that_are_there(cluster, crowd):
    (hog,) = crowd(cluster, 1, user="hog")
    fill(hog, 10)
    wait_until(lambda: causes(cluster, "hog") == ["pool memory"])
    cluster.sql("ALTER ROLE hog SET pg_baton.pool_memory = '1MB'")
    wait_until(lambda: causes(cluster, "hog") == [None], what="it may have that")
    cluster.sql("ALTER ROLE hog RESET pg_baton.pool_memory")
    wait_until(lambda: memory(cluster, "hog")[1] is None)
    cluster.set_parameters({"pg_baton.pool_memory": "220kB"})
    cluster.reload()
    wait_until(lambda: memory(cluster, "hog")[1] == 220 * 1024, what="the file's counts where no other does")
    fill(hog, 2, "more")
    wait_until(lambda: causes(cluster, "hog") == ["pool memory"])
    assert has_all(hog, 10) and has_all(hog, 2, "more")


def test_pools_of_a_role_in_a_database_share_a_memory_limit(cluster, crowd):
    (first,) = crowd(cluster, 1, user="hog")
    # An option that only a starting backend can take makes a pool of its own.
    (second,) = crowd(cluster, 1, user="hog", options="-c ignore_system_indexes=off")
    await_limit(cluster, "hog")
    fill(first, 4)
    fill(second, 2)
    wait_until(lambda: causes(cluster, "hog") == ["pool memory", None])
    used, most = memory(cluster, "hog")
    assert used <= most


def test_new_sessions_are_native_while_a_role_s_memory_is_taken(cluster, crowd):
    (hog,) = crowd(cluster, 1, user="hog")
    fill(hog, 4)
    cluster.sql("ALTER ROLE hog SET pg_baton.pool_memory = '50kB'")
    wait_until(lambda: memory(cluster, "hog")[1] == 50 * 1024)
    native = "SELECT count(*) FROM pg_baton_sessions WHERE mode = 'native' AND dedicated_cause = 'pool memory'"
    with psycopg.connect(cluster.pool(user="hog")), psycopg.connect(cluster.pool(user="other")):
        assert cluster.sql(native) == [(1,)]
    hog.query("RESET ALL")
    wait_until(lambda: memory(cluster, "hog")[0] < LARGE)
    with psycopg.connect(cluster.pool(user="hog")):
        assert cluster.sql(native) == [(0,)]


def test_only_superusers_set_it(cluster):
    with psycopg.connect(cluster.pool(user="other"), autocommit=True) as connection:
        for statement in ("ALTER ROLE other SET pg_baton.pool_memory = '1GB'", "SET pg_baton.pool_memory = '1GB'"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
