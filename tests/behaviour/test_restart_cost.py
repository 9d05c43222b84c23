"""A restart of the dispatcher costs no session anything, by TLS or not, shared, dedicated or native."""

from __future__ import annotations

import psycopg
import pytest
from harness.certificates import Authority, make_secure
from harness.health import wait_until

pytestmark = pytest.mark.pool_only


@pytest.fixture
def cluster(run):
    names = {"pg_baton.native_dbuser_names": "postgres/native"}
    cluster = run.cluster("restart cost", parameters={"pg_baton.max_backends": 8, **names})
    make_secure(cluster, Authority(run.directory / "restart cost certificates"))
    cluster.start()
    yield cluster
    cluster.finish()


def test_sessions_of_all_kinds_go_on_after_a_restart_of_the_dispatcher(cluster):
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.sql("CREATE ROLE native LOGIN")
    sessions = {}
    for tls in ("disable", "require"):
        for kind, statement in {
            "idle": "SELECT 1",
            "in a transaction": "BEGIN",
            "dedicated": "CREATE TEMP TABLE kept ()",
            "native": "SELECT 1",
        }.items():
            options = {"sslmode": tls, "user": "native" if kind == "native" else "postgres"}
            sessions[kind, tls] = session = psycopg.connect(cluster.pool(**options), autocommit=True)
            session.execute(f"SET my.kind = '{kind}'")
            session.execute(statement)
    look = "SELECT pid, tls FROM pg_baton_sessions WHERE mode <> 'native' ORDER BY pid"
    before = cluster.sql(look)
    for _ in range(2):
        cluster.sql("SELECT pg_baton_restart_dispatcher()")
        for (kind, _tls), session in sessions.items():
            found = session.execute("SELECT current_setting('my.kind'), pg_backend_pid()").fetchone()
            assert found == (kind, session.info.backend_pid)
        wait_until(lambda: cluster.sql(look) == before, what="the view has all sessions again")
    for session in sessions.values():
        session.close()
