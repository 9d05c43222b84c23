"""One role cannot take pg_baton.session_memory from the others, and gets its own back."""

from __future__ import annotations

import os
import signal
import time

import pytest
from harness.health import stop, wait_until
from harness.wire import Wire, bind, describe_statement, execute, parse, sync

pytestmark = pytest.mark.pool_only

MEMORY_MB = 32
FILL = """DO $$ BEGIN FOR i IN 1..900 LOOP
    EXECUTE format('SET app.v%s = %L', i, repeat(md5(random()::text || i), 300));
END LOOP; END $$"""


def log_in(cluster, user: str) -> Wire:
    return Wire.login("127.0.0.1", cluster.pool_port, user=user)


def kept_for_memory(cluster, user: str) -> int:
    """Sessions of the role that keep their backends for want of memory."""
    query = f"SELECT count(*) FROM pg_baton_sessions WHERE user_name = '{user}' AND dedicated_cause = 'context memory'"
    ((count,),) = cluster.sql(query)
    return count


def test_a_role_that_fills_session_memory_leaves_others_theirs(installation, bystanders):
    """It gets no more than is left for others, and then keeps backends; another role's sessions are shared."""
    cluster = installation(pg_baton__session_memory=f"{MEMORY_MB}MB")
    with bystanders(cluster) as beside:
        hostile = [log_in(cluster, "low") for _ in range(8)]
        for session in hostile:
            session.query(FILL)
            session.query("SELECT 1")
        ((used, limit),) = cluster.sql("SELECT memory_bytes, memory_limit_bytes FROM pg_baton_dispatchers")
        assert limit / 4 < used <= limit * 3 / 4
        assert kept_for_memory(cluster, "low") > 0
        own = [log_in(cluster, "other") for _ in range(10)]
        for number, session in enumerate(own):
            session.query(f"SET app.own = 'of {number}'")
            session.ask(parse(f"SELECT {number}", "s") + sync())
        for number, session in enumerate(own):
            assert session.query("SHOW app.own") == [[f"of {number}"]]
            assert session.query("EXECUTE s") == [[str(number)]]
        assert kept_for_memory(cluster, "other") == 0
        # what is taken back is room again
        for session in hostile:
            session.query("DISCARD ALL")
        wait_until(lambda: kept_for_memory(cluster, "low") == 0, what="all share again")
        for session in [*hostile, *own]:
            session.finish()
        beside.all_go_on()


def test_one_large_value_takes_no_more_than_a_role_s_share(installation):
    """A single value of nine tenths of the memory stays on its backend; another role's sessions are shared."""
    cluster = installation(pg_baton__session_memory=f"{MEMORY_MB}MB")
    hostile, own = log_in(cluster, "low"), log_in(cluster, "other")
    hostile.query(f"SELECT length(set_config('app.v', repeat('x', {MEMORY_MB * 920_000}), false))")
    hostile.query("SELECT 1")
    assert kept_for_memory(cluster, "low") == 1
    own.query("SELECT length(set_config('app.own', repeat('y', 1000000), false))")
    assert own.query("SELECT length(current_setting('app.own'))") == [["1000000"]]
    assert kept_for_memory(cluster, "other") == 0
    assert hostile.query("SELECT length(current_setting('app.v'))") == [[str(MEMORY_MB * 920_000)]]
    for session in (hostile, own):
        session.finish()


def test_bulk_writers_go_on_when_their_statements_have_shrunk(installation, bystanders):
    """More sessions than max_connections, each with a large unnamed statement, more than fit together."""
    cluster = installation(pg_baton__session_memory=f"{MEMORY_MB}MB", max_connections=40)
    cluster.sql("CREATE TABLE bulk (v text); GRANT INSERT ON bulk TO low")
    values = ",".join(["('" + "x" * 50_000 + "')"] * 20)
    sessions = []
    with bystanders(cluster) as beside:
        for number in range(50):
            session = log_in(cluster, "low")
            text = f"INSERT INTO bulk VALUES {values} -- {number}"
            answer = session.ask(parse(text) + bind() + execute() + sync())
            assert [m for m in answer if m.type == "C"], answer
            sessions.append(session)
        beside.all_go_on(3)
        for _ in range(2):
            for number, session in enumerate(sessions):
                answer = session.ask(parse(f"SELECT {number}") + bind() + execute() + sync())
                assert [m.row() for m in answer if m.type == "D"] == [[str(number).encode()]]
        wait_until(lambda: kept_for_memory(cluster, "low") == 0, what="all share again")
        for session in sessions:
            session.finish()
        beside.all_go_on()


def test_a_large_unnamed_statement_is_kept_while_there_is_room(installation):
    """Within the share it is the session's on any backend."""
    cluster = installation(pg_baton__session_memory=f"{MEMORY_MB}MB", pg_baton__force_migration="on")
    sessions = [log_in(cluster, "low") for _ in range(5)]
    for number, session in enumerate(sessions):
        session.ask(parse(f"SELECT {number} -- {'x' * 200_000}") + sync())
    for _ in range(3):
        for number, session in enumerate(sessions):
            answer = session.ask(describe_statement() + bind() + execute() + sync())
            assert [m.row() for m in answer if m.type == "D"] == [[str(number).encode()]]
    for session in sessions:
        session.finish()


def test_values_committed_at_once_stay_within_a_role_s_share(installation):
    """The dispatcher stands still as eight sessions return to it, each with a value of a quarter of the memory."""
    cluster = installation(
        pg_baton__session_memory=f"{MEMORY_MB}MB", pg_baton__max_backends=10, pg_baton__force_migration="on"
    )
    (dispatcher,) = cluster.dispatcher_pids()
    hostile = [log_in(cluster, "low") for _ in range(8)]
    length = MEMORY_MB * 250_000
    for session in hostile:
        session.query("BEGIN")
        session.query(f"SELECT length(set_config('app.v', repeat('x', {length}), false))")
    stop(dispatcher)
    try:
        for session in hostile:
            session.query("COMMIT")
        # their backends look for room after the answer
        time.sleep(1)
    finally:
        os.kill(dispatcher, signal.SIGCONT)
    wait_until(lambda: kept_for_memory(cluster, "low") > 0, what="sessions that keep their backends")
    ((used, limit),) = cluster.sql("SELECT memory_bytes, memory_limit_bytes FROM pg_baton_dispatchers")
    assert used <= limit * 5 / 8
    own = log_in(cluster, "other")
    own.query("SELECT length(set_config('app.own', repeat('y', 1000000), false))")
    assert own.query("SELECT length(current_setting('app.own'))") == [["1000000"]]
    # A backend that keeps a session for lack of memory looks once a second whether there is room.
    wait_until(lambda: kept_for_memory(cluster, "other") == 0, what="the other role's session is shared")
    for session in hostile:
        assert session.query("SELECT length(current_setting('app.v'))") == [[str(length)]]
    for session in (*hostile, own):
        session.finish()
