"""Each setting of a pool can be given to all roles, to a database, to a role, and
to a role in a database: what is given most closely counts, for a pool that runs,
and as long as it is given. Superusers give them.

What counts is told by what it does to sessions that are there all the time; no
view shows it but that of memory. Weights and reserves: test_pool_shares.py, for a
role."""

from __future__ import annotations

import contextlib

import psycopg
import pytest

from harness.crowds import commit_as_they_begin
from harness.health import wait_until
from harness.ports import HOST
from harness.wire import Wire, query

pytestmark = pytest.mark.pool_only

BACKENDS = 8
APPS = 7

# As PostgreSQL ranks them, those that give way first.
LEVELS = ("ROLE ALL", "DATABASE postgres", "ROLE app", "ROLE app IN DATABASE postgres")

# Rows about others, which count for nobody here.
OTHERS = ("DATABASE elsewhere", "ROLE owner", "ROLE app IN DATABASE elsewhere")


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
def apps(cluster):
    """Sessions that are there all the time."""
    with contextlib.ExitStack() as stack:
        wires = []
        for _ in range(APPS):
            wires.append(Wire.login(HOST, cluster.pool_port, user="app"))
            stack.callback(wires[-1].close)
            wires[-1].query("SELECT 1")
        yield wires


def count(cluster, what: str) -> int:
    return cluster.sql(f"SELECT count(*) FROM {what}")[0][0]


def backends(cluster, _apps) -> int:
    return count(cluster, "pg_baton_backends WHERE user_name = 'app' AND state NOT IN ('starting', 'retiring')")


def transactions(cluster, apps) -> int:
    """So many of them can be in one at a time."""
    for app in apps:
        app.send(query("BEGIN"))

    def begun() -> int:
        return count(cluster, "pg_baton_sessions WHERE user_name = 'app' AND state = 'idle in transaction'")

    def waiting() -> int:
        return cluster.sql("SELECT sum(waiting)::int FROM pg_baton_pools WHERE user_name = 'app'")[0][0]

    wait_until(lambda: begun() + waiting() == len(apps) and backends(cluster, apps) == begun(), what="they settle")
    result = begun()
    commit_as_they_begin(apps)
    return result


def sessions_said(cluster, _apps) -> int | None:
    """The limit that refuses one more; None if it comes in."""
    try:
        psycopg.connect(cluster.pool(user="app")).close()
    except psycopg.OperationalError as refused:
        _, name, rest = str(refused).partition('"pg_baton.pool_max_sessions" is ')
        assert name, refused
        return int(rest.split()[0])
    return None


def memory(cluster, _apps) -> int | None:
    """In kB."""
    return cluster.sql("SELECT max(memory_limit_bytes)::int / 1024 FROM pg_baton_pools WHERE user_name = 'app'")[0][0]


def mode(cluster, apps) -> str:
    """Of who comes, and of those who are there."""
    with psycopg.connect(cluster.pool(user="app"), autocommit=True) as connection:
        connection.execute("SELECT 1")
        if count(cluster, "pg_baton_sessions WHERE user_name = 'app' AND mode = 'native'"):
            return "native"
    for app in apps:
        app.query("SELECT 1")
    causes = cluster.sql("SELECT DISTINCT dedicated_cause FROM pg_baton_sessions WHERE user_name = 'app'")
    return {"pool mode": "dedicated", None: "shared"}[causes[0][0]] if len(causes) == 1 else "some differ"


# What is given at each level, what it does, what is so where nothing is given, how
# it is looked at.
SETTINGS = {
    "pool_max_backends": ((5, 4, 3, 2), (5, 4, 3, 2), APPS, transactions),
    "pool_min_backends": ((2, 4, 3, 5), (2, 4, 3, 5), 0, backends),
    "pool_max_sessions": ((5, 4, 6, 3), (5, 4, 6, 3), None, sessions_said),
    "pool_memory": (("'300kB'", "'200kB'", "'1MB'", 100), (300, 200, 1024, 100), None, memory),
    "pool_mode": (2 * ("dedicated", "native"), 2 * ("dedicated", "native"), "shared", mode),
}


def assert_closest_counts(cluster, name: str, given, expected, without, seen) -> None:
    def set_to(level: str, value) -> None:
        cluster.sql(f"ALTER {level} SET pg_baton.{name} = {value}")

    try:
        wait_until(lambda: seen() == without, what=f"{without} at first")
        for level in OTHERS:
            set_to(level, given[3])
        # The closest one first is not put aside by those that come after it.
        set_to(LEVELS[3], given[3])
        wait_until(lambda: seen() == expected[3], what=f"{LEVELS[3]}: {expected[3]}")
        for level, value in zip(LEVELS[:3], given):
            set_to(level, value)
        for level, value in reversed(list(zip(LEVELS, expected))):
            wait_until(lambda: seen() == value, what=f"{level}: {value}")
            cluster.sql(f"ALTER {level} RESET pg_baton.{name}")
        wait_until(lambda: seen() == without, what=f"{without} again")
        for level, value, effect in zip(LEVELS, given, expected):
            set_to(level, value)
            wait_until(lambda: seen() == effect, what=f"{level}: {effect}, set after those before it")
    finally:
        for level in LEVELS + OTHERS:
            cluster.sql(f"ALTER {level} RESET pg_baton.{name}")


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_set_most_closely_counts_for_a_running_pool(cluster, apps, name):
    given, expected, without, look = SETTINGS[name]
    assert_closest_counts(cluster, name, given, expected, without, lambda: look(cluster, apps))


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
def test_who_is_no_superuser_can_neither_set_nor_lift_it(cluster, name):
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
            # As with any of the server's own, it leaves what only superusers may set.
            connection.execute("ALTER ROLE owner IN DATABASE owned RESET ALL")
        assert cluster.sql("SELECT setdatabase, setrole, setconfig FROM pg_db_role_setting ORDER BY 1, 2") == before
    finally:
        cluster.sql(f"ALTER ROLE owner IN DATABASE owned RESET pg_baton.{name}")
