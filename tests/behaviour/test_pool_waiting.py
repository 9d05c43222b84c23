"""Sessions that wait for a backend: their order, and the end of a wait that is too long."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.health import assert_healthy, wait_until
from harness.wire import (
    Wire,
    bind,
    copy_data,
    copy_done,
    copy_fail,
    describe_statement,
    execute,
    flush,
    parse,
    query,
    startup,
    sync,
)

pytestmark = pytest.mark.pool_only


# A session_wait_timeout that a test can wait for, but long enough that a backend which is
# given back in good time does not come too late.
SHORT_WAIT = "2s"


def login(cluster, **options) -> Wire:
    return Wire.login("127.0.0.1", cluster.pool_port, **options)


def test_session_wait_timeout_fails_a_statement_not_the_session(cluster_with):
    cluster = cluster_with(pg_baton__max_backends=1, pg_baton__session_wait_timeout=SHORT_WAIT)
    holder, waiter = login(cluster), login(cluster)
    with holder, waiter:
        waiter.query("SET my.kept = 'yes'")
        holder.query("BEGIN")
        for _ in range(2):
            start = len(cluster.log())
            found = waiter.ask(query("SELECT 1"), timeout_s=20)
            assert found[-1].type == "Z" and found[-1].body == b"I"
            (error,) = [m.fields() for m in found if m.type == "E"]
            assert error["S"] == "ERROR" and error["C"].startswith("53") and error["M"]
            # the error is in the log for the operator, too
            cluster.wait_for_log(f"ERROR:  {error['M']}", start=start)
        holder.query("COMMIT")
        assert waiter.query("SHOW my.kept") == [["yes"]]
        assert holder.query("SELECT 1") == [["1"]]


def test_large_statements_that_waited_too_long_are_each_answered(cluster_with):
    """More of them at once than the dispatcher skips in one turn; their sessions go on."""
    cluster = cluster_with(pg_baton__max_backends=1, pg_baton__session_wait_timeout=SHORT_WAIT)
    waiters = [login(cluster) for _ in range(20)]
    with login(cluster) as holder, ThreadPoolExecutor(len(waiters)) as senders:
        holder.query("BEGIN")
        statement = query("SELECT 1 -- " + "x" * 2_000_000)
        for answer in senders.map(lambda waiter: waiter.ask(statement, timeout_s=60), waiters):
            assert [m.type for m in answer] == ["E", "Z"]
            assert answer[0].fields()["C"] == "53300"
        holder.query("COMMIT")
        for number, waiter in enumerate(waiters):
            assert waiter.query(f"SELECT {number}") == [[f"{number}"]]
            waiter.finish()


def test_a_batch_that_waited_too_long_is_answered_once_a_sync(cluster_with):
    cluster = cluster_with(pg_baton__max_backends=1, pg_baton__session_wait_timeout=SHORT_WAIT)
    holder, waiter = login(cluster), login(cluster)
    with holder, waiter:
        holder.query("BEGIN")
        found = waiter.ask(parse("SELECT 1") + bind([]) + execute() + sync(), timeout_s=20)
        assert [m.type for m in found] == ["E", "Z"]
        assert waiter.silent(0.5)
        holder.query("COMMIT")
        assert waiter.query("SELECT 2") == [["2"]]
        found = waiter.ask(parse("SELECT 3") + bind([]) + execute() + sync())
        assert [m.row() for m in found if m.type == "D"] == [[b"3"]]


def test_a_batch_that_waited_too_long_is_told_before_its_sync(cluster_with):
    """A client that sends Flush waits for its answer before it sends Sync."""
    cluster = cluster_with(pg_baton__max_backends=1, pg_baton__session_wait_timeout=SHORT_WAIT)
    holder, waiter = login(cluster), login(cluster)
    with holder, waiter:
        holder.query("BEGIN")
        waiter.send(parse("SELECT 1") + describe_statement() + flush())
        assert waiter.read(20).fields()["C"] == "53300"
        assert waiter.silent(0.3)
        assert [m.type for m in waiter.ask(bind([]) + execute() + sync(), timeout_s=20)] == ["Z"]
        holder.query("COMMIT")
        assert waiter.query("SELECT 2") == [["2"]]


def test_idle_session_timeout_limits_rest_of_a_timed_out_batch(cluster_with):
    cluster = cluster_with(pg_baton__max_backends=1, pg_baton__session_wait_timeout=SHORT_WAIT)
    holder, waiter = login(cluster), login(cluster)
    with holder, waiter:
        # Longer than BEGIN may take on a busy machine with forced migration.
        waiter.query("SET idle_session_timeout = '6s'")
        holder.query("BEGIN")
        waiter.send(parse("SELECT 1") + flush())
        assert [m.fields()["C"] for m in waiter.until_closed(40) if m.type == "E"] == ["53300", "57P05"]
        holder.query("COMMIT")
    assert_healthy(cluster)


@pytest.mark.parametrize(
    "said", [flush() * 2, copy_done() + copy_data(b"x") + copy_fail("too late")], ids=["flush", "copy"]
)
def test_messages_without_an_answer_get_no_error_for_a_long_wait(cluster_with, said):
    """These messages have no answer, and the request that follows them has not waited."""
    cluster = cluster_with(pg_baton__max_backends=1, pg_baton__session_wait_timeout=SHORT_WAIT)
    holder, waiter, third = login(cluster), login(cluster), login(cluster)
    with holder, waiter, third:
        for _ in range(2):
            waiter.query("SELECT 1")
        holder.query("BEGIN")
        waiter.send(said)
        # the session that waits behind it gets its error later
        assert [m.type for m in third.ask(query("SELECT 1"), timeout_s=20)] == ["E", "Z"]
        # The session waits no more; then the pool waits for the rest of a message.
        waiter.send(said[:3])
        assert [m.type for m in third.ask(query("SELECT 2"), timeout_s=20)] == ["E", "Z"]
        waiter.send(said[3:])
        assert [m.type for m in third.ask(query("SELECT 3"), timeout_s=20)] == ["E", "Z"]
        assert not waiter.buffer and waiter.silent(0)
        holder.query("COMMIT")
        assert waiter.query("SELECT 4") == [["4"]]
        assert third.query("SELECT 5") == [["5"]]
        assert waiter.query("SELECT 6") == [["6"]]


def test_waiting_sessions_are_served_first_come_first_served(cluster_with):
    cluster = cluster_with(pg_baton__max_backends=1)
    holder = login(cluster)
    sessions = [login(cluster) for _ in range(12)]
    try:
        holder.query("BEGIN")
        for number, session in enumerate(sessions, 1):
            session.send(query("SELECT clock_timestamp()"))
            wait_until(lambda: cluster.sql("SELECT waiting FROM pg_baton_pools") == [(number,)], what="it waits")
        holder.query("COMMIT")
        times = [[m.row() for m in s.until_ready() if m.type == "D"][0][0] for s in sessions]
        assert times == sorted(times)
    finally:
        for session in [holder, *sessions]:
            session.finish()


def test_new_sessions_do_not_overtake_the_queue_being_served(cluster_with):
    """Between two sessions of the ready queue the backend is free for a moment,
    longer if it gives back a session after its first transaction."""
    cluster = cluster_with(pg_baton__max_backends=1)
    ask = query("SELECT extract(epoch FROM clock_timestamp())")

    def served_at(sessions):
        return [float(m.row()[0]) for s in sessions for m in s.until_ready() if m.type == "D"]

    for _ in range(20):
        holder = login(cluster)
        early = [login(cluster) for _ in range(30)]
        late = [login(cluster) for _ in range(60)]
        holder.query("BEGIN")
        for session in early:
            session.send(ask)
        wait_until(
            lambda: cluster.sql("SELECT waiting FROM pg_baton_pools") == [(len(early),)], what="the early ones wait"
        )
        holder.send(query("COMMIT"))
        for session in late:
            session.send(ask)
        holder.until_ready()
        assert max(served_at(early)) < min(served_at(late))
        for session in [holder, *early, *late]:
            session.finish()


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("pool", ["own", "another"])
def test_clients_that_give_up_before_the_greeting_do_not_count(cluster_with, pool, how):
    """As on the server's own port, where no client has to wait. In the pool of the
    session that holds the only backend, such clients wait in its ready queue."""
    cluster = cluster_with(pg_baton__max_backends=1, pg_baton__session_wait_timeout="1min")
    cluster.sql("CREATE ROLE limited LOGIN CONNECTION LIMIT 4")
    here = "SELECT count(*) FROM pg_baton_sessions WHERE user_name = 'limited'"
    others = 1 if pool == "own" else 0
    # The dispatcher keeps no greeting for these options: a backend has to greet.
    unknown = {"user": "limited", "database": "postgres", "work_mem": "5MB"}
    with login(cluster, user="limited" if others else "postgres") as holder:
        holder.query("BEGIN")
        waiting = []
        for _ in range(4 - others):
            waiting.append(Wire.open("127.0.0.1", cluster.pool_port))
            waiting[-1].send(startup(unknown))
            assert waiting[-1].read().type == "R"
        assert cluster.sql(here) == [(4,)]
        for wire in waiting:
            getattr(wire, how)()
        wait_until(lambda: cluster.sql(here) == [(others,)], what="they have been noticed")
        new = Wire.open("127.0.0.1", cluster.pool_port)
        new.send(startup(unknown))
        assert new.read().type == "R"
        holder.query("COMMIT")
    assert new.until_ready()[-1].type == "Z"
    assert new.query("SELECT 1") == [["1"]]
    new.finish()
