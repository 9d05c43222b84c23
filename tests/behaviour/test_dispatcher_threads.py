"""pg_baton.dispatchers: whichever of the dispatcher's threads waits for a session,
it is served, cancelled, ended and forgotten as with one thread.

Normally the main thread waits for all of them, as one is enough; under forced migration
each waits for its own (design/scheduler.md)."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from harness.health import wait_until
from harness.wire import Wire, query

pytestmark = pytest.mark.pool_only


@pytest.fixture(params=[2, 4], ids=lambda number: f"{number}-threads")
def number_of_threads(request):
    return request.param


@pytest.fixture
def number_of_sessions(number_of_threads):
    """A session is the thread's of its index modulo their number: three of each."""
    return 3 * number_of_threads


@pytest.fixture(params=["normal", "forced"])
def server(make_cluster, request, number_of_threads):
    cluster = make_cluster(
        parameters={
            "pg_baton.dispatchers": number_of_threads,
            "pg_baton.max_backends": 2,
            "pg_baton.force_migration": request.param == "forced",
        }
    )
    cluster.sql("CREATE EXTENSION pg_baton")
    return cluster


@pytest.fixture
def sessions(server, number_of_sessions):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Wire.login("127.0.0.1", server.pool_port)) for _ in range(number_of_sessions)]


def threads(server) -> list[str]:
    names = Path(f"/proc/{server.dispatcher_pids()[0]}/task").glob("*/comm")
    return sorted(name for path in names if (name := path.read_text().strip()).startswith("sessions"))


def test_there_are_so_many_threads(server, number_of_threads):
    # A thread gives itself its name, after its start.
    expected = [f"sessions {number}" for number in range(1, number_of_threads)]
    wait_until(lambda: threads(server) == expected, what=f"the threads are {expected}")


def test_each_is_served_again_and_again(sessions):
    for number, session in enumerate(sessions):
        session.query(f"SET application_name = 'number {number}'")
    for _ in range(20):
        for session in sessions:
            session.send(query("SHOW application_name"))
        for number, session in enumerate(sessions):
            assert [m.row() for m in session.until_ready(30) if m.type == "D"] == [[f"number {number}".encode()]]


def test_each_session_is_cancelled_both_waiting_and_served(server, sessions):
    holders, others = sessions[:2], sessions[2:]
    for holder in holders:
        holder.query("BEGIN")
    for other in others:
        other.send(query("SELECT 1"))
    waiting = "SELECT count(*) FROM pg_baton_sessions WHERE state = 'waiting'"
    wait_until(lambda: server.sql(waiting) == [(len(others),)], what="all others wait")
    for other in others:
        other.cancel_request()
    for other in others:
        assert [m.fields()["C"] for m in other.until_ready(30) if m.type == "E"] == ["57014"]
    for holder in holders:
        holder.send(query("SELECT pg_sleep(60)"))
    served = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    wait_until(lambda: server.sql(served) == [(len(holders),)], what="they sleep")
    for holder in holders:
        holder.cancel_request()
        assert [m.fields()["C"] for m in holder.until_ready(30) if m.type == "E"] == ["57014"]
        holder.query("ROLLBACK")


def test_each_session_ends_by_leave_loss_idle_timeout_or_request(server, sessions, number_of_sessions):
    live = "SELECT count(*) FROM pg_baton_sessions"
    assert server.sql(live) == [(number_of_sessions,)]
    by_kind = [sessions[first::3] for first in range(3)]  # of each thread, one each
    for session in by_kind[0]:
        session.close()
    for session in by_kind[1]:
        server.sql(f"SELECT pg_terminate_backend({session.backend_pid})")
        assert [m.fields()["C"] for m in session.until_closed(30) if m.type == "E"] == ["57P01"]
    for session in by_kind[2]:
        session.query("SET idle_session_timeout = 100")
    for session in by_kind[2]:
        assert [m.fields()["C"] for m in session.until_closed(30) if m.type == "E"] == ["57P05"]
    wait_until(lambda: server.sql(live) == [(0,)], what="all have ended")
