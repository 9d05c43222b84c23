"""The levels at which a setting of a pool can be given, and the level that counts.

The checks are for a role that has sessions in the database postgres. They need a
database `elsewhere` and a role `owner`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .cluster import Cluster
from .health import wait_until

# In PostgreSQL's order, the weakest level first; each with its name in pg_settings.
LEVELS = {
    "the file": "configuration file",
    "ROLE ALL": "global",
    "DATABASE postgres": "database",
    "ROLE {role}": "user",
    "ROLE {role} IN DATABASE postgres": "database user",
}

# Levels of other roles and databases, which do not count for this role and database.
OTHERS = ("DATABASE elsewhere", "ROLE owner", "ROLE {role} IN DATABASE elsewhere")


def give(cluster: Cluster, level: str, name: str, value: object) -> None:
    """Gives the setting a value at a level; None takes it back."""
    if level == "the file":
        cluster.set_parameters({f"pg_baton.{name}": value})
        cluster.reload()
    elif value is None:
        cluster.sql(f"ALTER {level} RESET pg_baton.{name}")
    else:
        cluster.sql(f"ALTER {level} SET pg_baton.{name} = '{value}'")


def shown(cluster: Cluster, role: str, name: str) -> tuple[str, str]:
    """The value in force for the role, and its source."""
    ((setting, source),) = cluster.sql(
        "SELECT setting || coalesce(unit, ''), source FROM pg_baton_pool_settings"
        f" WHERE user_name = '{role}' AND database = 'postgres' AND name = 'pg_baton.{name}'"
    )
    return setting, source


def assert_closest_counts(
    cluster: Cluster,
    role: str,
    name: str,
    given: Sequence[object],
    expected: Sequence[object],
    without: object,
    seen: Callable[[], object],
) -> None:
    """At each level the value in `given` has the effect in `expected`, as seen() shows it; `without` is the
    effect without any value."""
    ((default,),) = cluster.sql(
        f"SELECT boot_val || coalesce(unit, '') FROM pg_settings WHERE name = 'pg_baton.{name}'"
    )
    levels = [(level.format(role=role), source) for level, source in LEVELS.items()]
    (closest, _) = levels[-1]
    others = [level.format(role=role) for level in OTHERS]

    def counts(effect: object, source: str, what: str) -> None:
        wait_until(lambda: seen() == effect and shown(cluster, role, name)[1] == source, what=f"{what}: {effect}")

    try:
        counts(without, "default", "at first")
        assert shown(cluster, role, name) == (default, "default")
        for level in others:
            give(cluster, level, name, given[-1])
        # The closest level is set first; the levels that are set after it do not displace it.
        give(cluster, closest, name, given[-1])
        counts(expected[-1], "database user", closest)
        for (level, _), value in list(zip(levels, given))[:-1]:
            give(cluster, level, name, value)
        for (level, source), effect in reversed(list(zip(levels, expected))):
            counts(effect, source, level)
            give(cluster, level, name, None)
        counts(without, "default", "again")
        for (level, source), value, effect in zip(levels, given, expected):
            give(cluster, level, name, value)
            counts(effect, source, f"{level}, set after those before it")
    finally:
        for level in [*(level for level, _ in levels), *others]:
            give(cluster, level, name, None)
