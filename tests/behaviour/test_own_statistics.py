"""pg_stat_xact_*: a session sees what it has counted, and nothing of another's.

PostgreSQL keeps in the process what a session has done, for up to a second; a
backend of the pool does so for one session after the other.
"""

from __future__ import annotations

import pytest
from harness.wire import Wire

ROWS = "SELECT sum(n_tup_ins) FROM pg_stat_xact_user_tables WHERE relname = 'counted'"
SCANS = "SELECT sum(seq_scan) FROM pg_stat_xact_user_tables WHERE relname = 'counted'"
CALLS = "SELECT sum(calls) FROM pg_stat_xact_user_functions WHERE funcname = 'counts'"


@pytest.fixture(scope="module", params=["normal", "forced"])
def few(run, request):
    forced = request.param == "forced"
    cluster = run.cluster(
        f"own-statistics-{request.param}",
        parameters={
            "pg_baton.max_backends": 2 if forced else 1,
            "pg_baton.force_migration": forced,
            "track_functions": "all",
        },
    )
    try:
        cluster.start()
        cluster.sql("CREATE TABLE counted (v int)")
        cluster.sql("CREATE FUNCTION counts() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'")
        yield cluster
    finally:
        cluster.finish()


def number(session: Wire, question: str) -> int:
    ((value,),) = session.query(question)
    return int(value or 0)


def test_a_session_never_sees_what_another_has_counted(few):
    with Wire.login("127.0.0.1", few.pool_port) as busy, Wire.login("127.0.0.1", few.pool_port) as other:
        for _ in range(20):
            busy.query(
                "INSERT INTO counted SELECT generate_series(1, 7); SELECT counts(); SELECT count(*) FROM counted"
            )
            assert [number(other, question) for question in (ROWS, SCANS, CALLS)] == [0, 0, 0]
        busy.finish()
        other.finish()


def test_a_session_sees_what_it_has_counted_itself(few):
    """In a transaction, among others that count too; from the second time on for sure."""
    for port in (few.port, few.pool_port):
        with Wire.login("127.0.0.1", port) as session, Wire.login("127.0.0.1", port) as busy:
            for turn in range(10):
                busy.query("INSERT INTO counted VALUES (1)")
                session.query("BEGIN")
                before = [number(session, question) for question in (ROWS, CALLS)]
                session.query("INSERT INTO counted SELECT generate_series(1, 7)")
                session.query("SELECT counts()")
                after = [number(session, question) for question in (ROWS, CALLS)]
                session.query("COMMIT")
                counted = [new - old for new, old in zip(after, before, strict=True)]
                assert counted == [7, 1] or (port == few.pool_port and turn < 2 and counted == [0, 0])
            session.finish()
            busy.finish()
