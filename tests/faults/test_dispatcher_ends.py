"""A dispatcher that is asked to end."""

from __future__ import annotations

import os
import signal

import pytest
from harness.health import Load, assert_healthy, wait_for_next_dispatcher, wait_until
from harness.processes import processes_in
from harness.wire import Wire, query

pytestmark = pytest.mark.pool_only


def login(cluster, **options) -> Wire:
    return Wire.login("127.0.0.1", cluster.pool_port, **options)


@pytest.fixture
def cluster(make_cluster):
    cluster = make_cluster(parameters={"pg_baton.max_backends": 3})
    cluster.sql("CREATE EXTENSION pg_baton")
    return cluster


def test_sigterm_to_dispatcher_waits_for_no_transaction(cluster):
    """Another dispatcher serves; sessions on backends go on, and so do idle ones."""
    (old,) = cluster.dispatcher_pids()
    idle = [login(cluster) for _ in range(4)]
    for session in idle:
        session.query("SELECT 1")
        session.query("SELECT 1")
    with login(cluster) as open_one, login(cluster) as running:
        open_one.query("BEGIN")
        running.send(query("SELECT pg_sleep(3), 'ran'"))
        held = "SELECT count(*) FROM pg_baton_backends WHERE state = 'busy'"
        wait_until(lambda: cluster.sql(held) == [(2,)], what="both are on backends")
        os.kill(old, signal.SIGTERM)
        wait_for_next_dispatcher(cluster, old)
        assert open_one.query("SELECT 1") == [["1"]]
        open_one.query("COMMIT")
        for session in idle:
            assert session.query("SELECT 2") == [["2"]]
            session.finish()
        assert [m.row() for m in running.until_ready(20) if m.type == "D"] == [[b"", b"ran"]]
    assert_healthy(cluster)


def test_sigterm_to_dispatcher_under_load_loses_no_transaction(cluster):
    cluster.sql("CREATE TABLE finished (a int)")
    with Load(cluster, 10) as load:
        for turn in range(3):
            load.wait_for_answers()
            busy = login(cluster)
            busy.query("BEGIN")
            busy.query(f"INSERT INTO finished VALUES ({turn})")
            (old,) = cluster.dispatcher_pids()
            os.kill(old, signal.SIGTERM)
            wait_for_next_dispatcher(cluster, old)
            busy.query("COMMIT")
            busy.finish()
    assert load.wrong == []
    assert cluster.sql("SELECT count(*) FROM finished") == [(3,)]
    assert_healthy(cluster)


def test_sigterm_to_all_processes_of_a_server_is_a_smart_stop(make_cluster):
    """A service manager may signal the dispatcher before the postmaster says that it stops."""
    cluster = make_cluster()
    (dispatcher,) = cluster.dispatcher_pids()
    with login(cluster) as idle, login(cluster) as busy:
        idle.query("SELECT 1")
        busy.query("BEGIN")
        os.kill(dispatcher, signal.SIGTERM)
        cluster.process.send_signal(signal.SIGTERM)
        assert [m.fields()["C"] for m in idle.until_closed(20) if m.type == "E"] == ["57P01"]
        assert busy.query("SELECT 1") == [["1"]]
        assert cluster.dispatcher_pids() == [dispatcher]
        busy.send(query("COMMIT"))
        assert [m.fields()["C"] for m in busy.until_closed(20) if m.type == "E"] == ["57P01"]
    cluster.process.wait(60)
    wait_until(lambda: processes_in(cluster.data) == [], what="no process left")
    assert "leaves sessions to the next dispatcher" not in cluster.log()
