"""pg_baton_sessions says what a restart of the dispatcher would do to each session."""

from __future__ import annotations

import psycopg
import pytest
from harness.certificates import Authority, make_secure
from harness.health import wait_until
from harness.plain import while_the_dispatcher_is_away

pytestmark = [pytest.mark.pool_only, while_the_dispatcher_is_away]


def lives(connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True


def test_view_tells_whom_a_restart_of_the_dispatcher_ends(run):
    """Each session fares as the view said; `baton upgrade` counts by the same column."""
    names = {"pg_baton.native_dbuser_names": "postgres/native"}
    cluster = run.cluster("restart cost", parameters={"pg_baton.max_backends": 6, **names})
    make_secure(cluster, Authority(run.directory / "restart cost certificates"))
    cluster.start()
    try:
        cluster.sql("CREATE EXTENSION pg_baton")
        cluster.sql("CREATE ROLE native LOGIN")
        sessions = {}
        for name, statement in {
            "idle": "SELECT 1",
            "in a transaction": "BEGIN",
            "dedicated": "CREATE TEMP TABLE kept ()",
            "native": "SELECT 1",
            "tls": "BEGIN",
            "native tls": "SELECT 1",
        }.items():
            options = {"sslmode": "require" if "tls" in name else "disable", "application_name": name}
            options["user"] = "native" if "native" in name else "postgres"
            sessions[name] = psycopg.connect(cluster.pool(**options), autocommit=True)
            sessions[name].execute(statement)
        expected = {
            "idle": (False, "unaffected"),
            "in a transaction": (False, "unaffected"),
            "dedicated": (False, "unaffected"),
            "native": (False, "unaffected"),
            "tls": (True, "ends"),
            "native tls": (True, "ends"),
        }
        look = "SELECT application_name, tls, dispatcher_restart FROM pg_baton_sessions"
        wait_until(lambda: {name: row for name, *row in map(list, cluster.sql(look))}["idle"][1] == "unaffected")
        assert {name: (tls, restart) for name, tls, restart in cluster.sql(look)} == expected
        cluster.sql("SELECT pg_baton_restart_dispatcher()")
        alive = {name: lives(connection) for name, connection in sessions.items()}
        assert alive == {name: restart != "ends" for name, (_, restart) in expected.items()}
        for connection in sessions.values():
            connection.close()
    finally:
        cluster.finish()
