"""Each setting of a pool can be given to all by the configuration file, to all
roles, to a database, to a role, and to a role in a database: the closest level
counts, for a pool that runs, and as long as it is given. Superusers give them.

The tests see the value that counts by its effect on sessions that are there all the
time, and in pg_baton_pool_settings, which says where the value comes from. Weights and
reserves: test_pool_shares.py."""

from __future__ import annotations

import psycopg
import pytest
from harness.crowds import commit_as_they_begin
from harness.health import wait_until
from harness.pool_levels import assert_closest_counts
from harness.wire import query

pytestmark = pytest.mark.pool_only

BACKENDS = 8
APPS = 7


@pytest.fixture(scope="module")
def cluster(run):
    one = run.cluster(
        "pool-settings",
        parameters={
            "pg_baton.max_backends": BACKENDS,
            "pg_baton.backend_idle_timeout": "100ms",
            "pg_baton.session_wait_timeout": "60s",
            "max_connections": 60,
        },
    )
    try:
        one.start()
        for statement in (
            "CREATE EXTENSION pg_baton",
            "CREATE ROLE app LOGIN",
            "CREATE ROLE owner LOGIN CREATEROLE",
            "CREATE DATABASE owned OWNER owner",
            "CREATE DATABASE elsewhere",
        ):
            one.sql(statement)
    except BaseException:
        one.destroy()
        raise
    yield one
    one.finish()


@pytest.fixture
def apps(cluster, crowd):
    """Sessions that are there all the time."""
    wires = crowd(cluster, APPS, user="app")
    for wire in wires:
        wire.query("SELECT 1")
    return wires


def count(cluster, what: str) -> int:
    return cluster.sql(f"SELECT count(*) FROM {what}")[0][0]


def backends(cluster, _apps) -> int:
    return count(cluster, "pg_baton_backends WHERE database = 'postgres' AND state NOT IN ('starting', 'retiring')")


def transactions(cluster, apps) -> int:
    """The number of these sessions that can be in a transaction at a time."""
    for app in apps:
        app.send(query("BEGIN"))

    def begun() -> int:
        return count(cluster, "pg_baton_sessions WHERE user_name = 'app' AND state = 'idle in transaction'")

    def waiting() -> int:
        return cluster.sql("SELECT sum(waiting)::int FROM pg_baton_pool_users WHERE user_name = 'app'")[0][0]

    wait_until(lambda: begun() + waiting() == len(apps), what="they settle")
    result = begun()
    commit_as_they_begin(apps)
    return result


def sessions_said(cluster, _apps) -> int | None:
    """The limit that refuses another session; None if that session logs in."""
    try:
        psycopg.connect(cluster.pool(user="app")).close()
    except psycopg.OperationalError as refused:
        _, name, rest = str(refused).partition('"pg_baton.pool_max_sessions" is ')
        assert name, refused
        return int(rest.split()[0])
    return None


def memory(cluster, _apps) -> int | None:
    """The memory limit, in kB."""
    return cluster.sql("SELECT max(memory_limit_bytes)::int / 1024 FROM pg_baton_pool_users WHERE user_name = 'app'")[
        0
    ][0]


def mode(cluster, apps) -> str:
    """The mode of a new session, and of the sessions that are there."""
    with psycopg.connect(cluster.pool(user="app"), autocommit=True) as connection:
        connection.execute("SELECT 1")
        if count(cluster, "pg_baton_sessions WHERE user_name = 'app' AND mode = 'native'"):
            return "native"
    for app in apps:
        app.query("SELECT 1")
    causes = cluster.sql("SELECT DISTINCT dedicated_cause FROM pg_baton_sessions WHERE user_name = 'app'")
    return {"pool mode": "dedicated", None: "shared"}[causes[0][0]] if len(causes) == 1 else "some differ"


# Of each setting: the value at each level, the effect of each, the effect where no value
# is given, and the function that looks at it.
SETTINGS = {
    "pool_max_backends": ((6, 5, 4, 3, 2), (6, 5, 4, 3, 2), APPS, transactions),
    "pool_min_backends": ((3, 2, 4, 1, 5), (3, 2, 4, 1, 5), 0, backends),
    "pool_max_sessions": ((4, 5, 2, 6, 3), (4, 5, 2, 6, 3), None, sessions_said),
    "pool_memory": (("600kB", "300kB", "200kB", "1MB", 100), (600, 300, 200, 1024, 100), None, memory),
    "pool_mode": (
        ("native", "dedicated", "native", "shared", "dedicated"),
        ("native", "dedicated", "native", "shared", "dedicated"),
        "shared",
        mode,
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_set_most_closely_counts_for_a_running_pool(cluster, apps, name):
    given, expected, without, look = SETTINGS[name]
    assert_closest_counts(cluster, "app", name, given, expected, without, lambda: look(cluster, apps))


VALUES = {
    "pool_max_backends": 9,
    "pool_min_backends": 1,
    "pool_reserve": 1,
    "pool_weight": 9,
    "pool_max_sessions": 9,
    "pool_mode": "dedicated",
    "pool_memory": "9MB",
}


@pytest.mark.parametrize("name", VALUES)
def test_non_superusers_can_neither_set_nor_lift_pool_settings(cluster, name):
    value = f"pg_baton.{name} = '{VALUES[name]}'"
    cluster.sql(f"ALTER ROLE owner IN DATABASE owned SET {value}")
    before = cluster.sql("SELECT setdatabase, setrole, setconfig FROM pg_db_role_setting ORDER BY 1, 2")
    try:
        with psycopg.connect(cluster.pool(user="owner", dbname="owned"), autocommit=True) as connection:
            for statement in (
                f"SET {value}",
                *(f"ALTER {level} SET {value}" for level in ("ROLE ALL", "DATABASE owned", "ROLE owner")),
                f"ALTER ROLE owner IN DATABASE owned SET {value}",
                f"ALTER ROLE owner IN DATABASE owned RESET pg_baton.{name}",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement)
            # As with the server's own parameters, RESET ALL leaves those that only superusers may set.
            connection.execute("ALTER ROLE owner IN DATABASE owned RESET ALL")
        assert cluster.sql("SELECT setdatabase, setrole, setconfig FROM pg_db_role_setting ORDER BY 1, 2") == before
    finally:
        cluster.sql(f"ALTER ROLE owner IN DATABASE owned RESET pg_baton.{name}")
