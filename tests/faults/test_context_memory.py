"""More than pg_baton.session_memory holds: a session that does not fit keeps its backend
and loses nothing."""

from __future__ import annotations

import pytest
from harness.health import assert_healthy, wait_until
from harness.wire import Wire, bind, execute, parse, sync

pytestmark = pytest.mark.pool_only


def login(cluster, **options) -> Wire:
    return Wire.login("127.0.0.1", cluster.pool_port, **options)


def test_context_memory_reached_dedicates_and_loses_nothing(make_cluster):
    # Forced migration, so that contexts are stored after each transaction.
    cluster = make_cluster(
        parameters={"pg_baton.session_memory": "1MB", "pg_baton.max_backends": 9, "pg_baton.force_migration": True}
    )
    cluster.sql("CREATE EXTENSION pg_baton")
    sessions = [login(cluster, application_name=f"m{n}") for n in range(5)]
    try:
        for number, session in enumerate(sessions):
            for part in range(8):
                session.query(f"SELECT set_config('my.large{part}', repeat('{number}{part}', 30000), false)")
        for _ in range(3):
            for number, session in enumerate(sessions):
                for part in (0, 7):
                    assert session.query(
                        f"SELECT current_setting('my.large{part}') = repeat('{number}{part}', 30000)"
                    ) == [["t"]]
        causes = {
            row[0] for row in cluster.sql("SELECT dedicated_cause FROM pg_baton_sessions WHERE mode = 'dedicated'")
        }
        assert any(cause and "memory" in cause.lower() for cause in causes), causes
        for session in sessions:
            session.query("RESET ALL")
            session.query("DISCARD ALL")
        wait_until(
            lambda: cluster.sql("SELECT count(*) FROM pg_baton_sessions WHERE mode = 'dedicated'") == [(0,)],
            what="all shared again",
        )
    finally:
        for session in sessions:
            session.finish()
    assert_healthy(cluster)


def test_context_memory_reached_keeps_the_last_unnamed_statement(make_cluster):
    cluster = make_cluster(
        parameters={"pg_baton.session_memory": "1MB", "pg_baton.max_backends": 4, "pg_baton.force_migration": True}
    )
    cluster.sql("CREATE EXTENSION pg_baton")

    def dedicated() -> set[str]:
        rows = cluster.sql("SELECT application_name FROM pg_baton_sessions WHERE dedicated_cause LIKE '%memory%'")
        return {name for (name,) in rows}

    use = bind([]) + execute() + sync()
    with login(cluster, application_name="fills") as fills, login(cluster, application_name="parses") as parses:
        parses.ask(parse("SELECT 'first'") + sync())
        assert [m.row() for m in parses.ask(use) if m.type == "D"] == [[b"first"]]
        for number in range(100):
            fills.query(f"SELECT set_config('my.large{number}', repeat('{number}', 15000), false)")
            if dedicated():
                break
        parses.ask(parse(f"SELECT 'second' /* {'x' * 60000} */") + sync())
        wait_until(lambda: "parses" in dedicated(), what="no room for the second text")
        parses.ask(parse("SELECT 'first'") + sync())
        fills.query("RESET ALL")
        fills.query("DISCARD ALL")
        fills.finish()
        wait_until(lambda: not dedicated(), what="room again")
        for _ in range(3):
            assert [m.row() for m in parses.ask(use) if m.type == "D"] == [[b"first"]]
    assert_healthy(cluster)


def test_prepared_statements_beyond_context_memory(make_cluster):
    cluster = make_cluster(parameters={"pg_baton.session_memory": "1MB", "pg_baton.max_backends": 4})
    cluster.sql("CREATE EXTENSION pg_baton")
    with login(cluster) as session, login(cluster) as other:
        for number in range(400):
            session.query(f"PREPARE s{number} AS SELECT {number}, '{'x' * 4000}'")
        for number in range(0, 400, 37):
            assert session.query(f"EXECUTE s{number}")[0][0] == str(number)
            assert other.query("SELECT 1") == [["1"]]
        session.query("DEALLOCATE ALL")
    assert_healthy(cluster)
