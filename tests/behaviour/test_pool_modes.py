"""Sessions share backends, or keep a backend each, as the administrator configures it:
for a role, for a database, for all, or while there are few sessions."""

from __future__ import annotations

import psycopg
import pytest
from harness.health import wait_until
from harness.wire import Wire

pytestmark = pytest.mark.pool_only


@pytest.fixture
def cluster(make_cluster):
    one = make_cluster(parameters={"pg_baton.max_backends": 2, "max_connections": 30})
    one.sql("CREATE EXTENSION pg_baton")
    one.sql("CREATE ROLE app LOGIN")
    one.sql("CREATE ROLE other LOGIN")
    return one


def served(crowd, cluster, count: int, user: str) -> list[Wire]:
    wires = crowd(cluster, count, user=user)
    for wire in wires:
        wire.query("SELECT 1")
    return wires


def causes(cluster, user: str) -> set[str | None]:
    rows = cluster.sql(f"SELECT DISTINCT dedicated_cause FROM pg_baton_sessions WHERE user_name = '{user}'")
    return {cause for (cause,) in rows}


def backends(cluster, user: str) -> int:
    """The number of backends that serve that user's sessions now."""
    return cluster.sql(f"SELECT count(DISTINCT backend_pid) FROM pg_baton_sessions WHERE user_name = '{user}'")[0][0]


def test_sessions_are_dedicated_while_their_role_s_mode_says_so(cluster, crowd):
    apps, others = served(crowd, cluster, 5, "app"), served(crowd, cluster, 5, "other")
    cluster.sql("ALTER ROLE app SET pg_baton.pool_mode = dedicated")
    # The mode counts for existing sessions, from their next transaction on.
    wait_until(lambda: [app.query("SELECT 1") for app in apps] and causes(cluster, "app") == {"pool mode"})
    assert backends(cluster, "app") == 5
    assert causes(cluster, "other") == {None}
    for other in others:
        assert other.query("SELECT 1") == [["1"]]
    # The mode ends even for sessions that send nothing.
    cluster.sql("ALTER ROLE app RESET pg_baton.pool_mode")
    wait_until(lambda: causes(cluster, "app") == {None}, what="they share again")
    assert [app.query("SELECT 1") for app in apps] == 5 * [[["1"]]]
    wait_until(
        lambda: len(cluster.sql("SELECT 1 FROM pg_baton_backends WHERE state <> 'retiring'")) <= 2,
        what="what is too many goes",
    )


def test_all_can_be_dedicated_by_the_configuration_file(cluster, crowd):
    cluster.set_parameters({"pg_baton.pool_mode": "dedicated"})
    cluster.reload()
    cluster.sql("ALTER ROLE other SET pg_baton.pool_mode = shared")
    apps, others = served(crowd, cluster, 4, "app"), served(crowd, cluster, 4, "other")
    wait_until(lambda: [app.query("SELECT 1") for app in apps] and causes(cluster, "app") == {"pool mode"})
    for other in others:
        other.query("SELECT 1")
    assert causes(cluster, "other") == {None}
    cluster.set_parameters({"pg_baton.pool_mode": "shared"})
    cluster.reload()
    wait_until(lambda: causes(cluster, "app") == {None}, what="they share again")


def test_few_sessions_have_a_backend_each_and_many_share(cluster, crowd):
    cluster.set_parameters({"pg_baton.sharing_threshold": 6})
    cluster.reload()
    few = served(crowd, cluster, 5, "app")
    wait_until(lambda: [app.query("SELECT 1") for app in few] and causes(cluster, "app") == {"few sessions"})
    assert backends(cluster, "app") == 5
    many = served(crowd, cluster, 4, "other")
    wait_until(lambda: causes(cluster, "app") == {None}, what="too many for a backend each")
    for wire in few + many:
        assert wire.query("SELECT 1") == [["1"]]
    for wire in many:
        wire.finish()
    wait_until(lambda: [app.query("SELECT 1") for app in few] and causes(cluster, "app") == {"few sessions"})
    cluster.set_parameters({"pg_baton.sharing_threshold": 0})
    cluster.reload()
    wait_until(lambda: causes(cluster, "app") == {None}, what="they share again")


def test_a_mode_is_one_of_three_and_only_superusers_set_it(cluster):
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="shared, dedicated, native"):
        cluster.sql("ALTER ROLE app SET pg_baton.pool_mode = statement")
    with psycopg.connect(cluster.pool(user="app"), autocommit=True) as connection:
        for statement in ("ALTER ROLE app SET pg_baton.pool_mode = dedicated", "SET pg_baton.pool_mode = dedicated"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
