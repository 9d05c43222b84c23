"""Sessions of one pool that came in by different ways: what closes one of the
ways later is no other session's loss, and ends nobody who is in."""

from __future__ import annotations

import pytest

from harness.health import wait_until
from harness.wire import Wire, query

PARAMETERS = {
    "pg_baton.max_backends": 4,
    "pg_baton.session_wait_timeout": "20s",
}

FIRST, SECOND = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def cluster(make_cluster, request):
    """A role that may come from one address by its name alone, from the other by
    its password; the dispatcher itself may not come in."""
    cluster = make_cluster(
        hba=[f"host all two_ways {FIRST}/32 trust", f"host all two_ways {SECOND}/32 scram-sha-256", "local all two_ways reject"],
        parameters={**PARAMETERS, **getattr(request, "param", {})},
    )
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.sql("CREATE ROLE other LOGIN")
    cluster.sql("SET password_encryption = 'scram-sha-256'; CREATE ROLE two_ways LOGIN PASSWORD 'one'")
    return cluster


def come_from(cluster, source: str, password: str = "one") -> Wire:
    wire = Wire.open(FIRST, cluster.pool_port, source=source)
    assert wire.log_in("two_ways", "postgres", password)[-1].type == "Z"
    return wire


def backends(cluster, user: str):
    return cluster.sql(f"SELECT count(*) FROM pg_baton_backends WHERE user_name = '{user}'")


def let_idle_backends_go(cluster) -> None:
    """From now on: before, who has been idle for a moment too long is still there."""
    cluster.set_parameters({"pg_baton.backend_idle_timeout": "1s"})
    cluster.reload()


def others_backends_have_gone(cluster) -> None:
    """What has been idle for pg_baton.backend_idle_timeout goes; twice that."""
    let_idle_backends_go(cluster)
    for _ in range(2):
        with Wire.login(str(cluster.home), cluster.pool_port, user="other") as other:
            other.query("SELECT 1")
        wait_until(lambda: backends(cluster, "other") == [(0,)], what="idle backends have gone")


@pytest.mark.pool_only
def test_a_way_in_that_is_closed_is_no_other_session_s_loss(cluster):
    closed, free = come_from(cluster, SECOND), come_from(cluster, FIRST)
    assert closed.query("SELECT 1") == free.query("SELECT 1") == [["1"]]
    let_idle_backends_go(cluster)
    wait_until(lambda: backends(cluster, "two_ways") == [(0,)], what="idle backends have gone")
    cluster.sql("ALTER ROLE two_ways PASSWORD 'two'")
    # The one that could not log in any more asks first, then a new client, then
    # the other: all are served, for somebody's way is open.
    closed.send(query("SELECT 2"))
    with come_from(cluster, FIRST) as new:
        assert new.query("SELECT 3") == [["3"]]
    assert free.query("SELECT 4") == [["4"]]
    assert [message.type for message in closed.until_ready()] == ["T", "D", "C", "Z"]
    closed.finish()
    free.finish()


@pytest.mark.pool_only
def test_a_backend_stays_for_the_one_session_that_could_not_get_another(cluster):
    """Though another one of its pool could: that may leave."""
    could, could_not = come_from(cluster, FIRST), come_from(cluster, SECOND)
    assert could.query("SELECT 1") == could_not.query("SELECT 1") == [["1"]]
    cluster.sql("ALTER ROLE two_ways PASSWORD 'two'")
    others_backends_have_gone(cluster)
    could.finish()
    assert could_not.query("SELECT 2") == [["2"]]
    could_not.finish()


def asks_with_no_way_in(cluster) -> Wire:
    """A session that has asked something when no backend can be opened for it any more."""
    closed = come_from(cluster, SECOND)
    closed.query("SELECT 1")
    let_idle_backends_go(cluster)
    wait_until(lambda: backends(cluster, "two_ways") == [(0,)], what="idle backends have gone")
    cluster.sql("ALTER ROLE two_ways PASSWORD 'two'")
    closed.send(query("SELECT 2"))
    return closed


@pytest.mark.pool_only
def test_a_client_that_is_let_in_gets_a_backend_though_one_before_it_did_not(cluster):
    """What failed on behalf of an old session says nothing of a new one."""
    closed = asks_with_no_way_in(cluster)
    cluster.wait_for_log("could not start a backend for user")
    with come_from(cluster, SECOND, "two") as new:
        assert new.query("SELECT 3") == [["3"]]
    assert [message.type for message in closed.until_ready()] == ["T", "D", "C", "Z"]
    closed.finish()


@pytest.mark.pool_only
@pytest.mark.parametrize(
    "cluster",
    [
        {
            "shared_preload_libraries": "pg_baton, auth_delay",
            "auth_delay.milliseconds": 1500,
            "pg_baton.login": "dispatcher",
            "pg_baton.max_backends": 1,
        }
    ],
    ids=["slow refusals"],
    indirect=True,
)
def test_a_client_that_is_let_in_gets_a_backend_though_one_before_it_is_just_being_refused(cluster):
    """What fails was begun by the password of before; and there is no room for
    another attempt until it has."""
    closed = asks_with_no_way_in(cluster)
    wait_until(lambda: backends(cluster, "two_ways") == [(1,)], what="a backend is being opened")
    with come_from(cluster, SECOND, "two") as new:
        assert new.query("SELECT 3") == [["3"]]
    assert [message.type for message in closed.until_ready()] == ["T", "D", "C", "Z"]
    closed.finish()


@pytest.mark.pool_only
def test_a_backend_stays_for_a_session_whose_password_expires(cluster):
    """By time alone: nobody changes anything meanwhile."""
    until = cluster.sql("SELECT (now() + interval '8 s')::text")[0][0]
    cluster.sql(f"ALTER ROLE two_ways VALID UNTIL '{until}'")
    with come_from(cluster, SECOND) as session:

        def has_expired() -> bool:
            session.query("SELECT 1")
            return cluster.sql(f"SELECT now() > '{until}'") == [(True,)]

        wait_until(has_expired, what="its password has expired")
        others_backends_have_gone(cluster)
        assert session.query("SELECT 2") == [["2"]]
