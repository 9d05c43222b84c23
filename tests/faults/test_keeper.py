"""A dispatcher's death or replacement costs no session: its keeper has their sockets, and the next dispatcher adopts them."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import pytest
from harness.cluster import HOST, SUPERUSER
from harness.health import DISPATCHER_KILLED, Load, assert_healthy, stop, wait_for_next_dispatcher, wait_until
from harness.plain import while_the_dispatcher_is_away
from harness.processes import processes_in
from harness.wire import Closed, Wire, query

pytestmark = pytest.mark.pool_only


@pytest.fixture
def cluster(make_cluster):
    cluster = make_cluster(parameters={"pg_baton.max_backends": 3})
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.sql("CREATE SEQUENCE drawn")
    cluster.expect_in_log(DISPATCHER_KILLED)
    return cluster


class Known:
    """A session whose state the test knows."""

    def __init__(self, wire: Wire, number: int) -> None:
        self.wire = wire
        self.number = number
        wire.query(f"SET my.number = '{number}'")
        wire.query(f"PREPARE mine AS SELECT {number}")
        ((self.drawn,),) = wire.query("SELECT nextval('drawn')")

    def assert_has_its_state(self) -> None:
        assert self.wire.query("SHOW my.number") == [[str(self.number)]]
        assert self.wire.query("EXECUTE mine") == [[str(self.number)]]
        assert self.wire.query("SELECT currval('drawn'), pg_backend_pid()") == [
            [self.drawn, str(self.wire.backend_pid)]
        ]


def assert_healthy_without(cluster, wires) -> None:
    for wire in wires:
        wire.close()
    assert_healthy(cluster)


def kill(cluster) -> int:
    (old,) = cluster.dispatcher_pids()
    os.kill(old, signal.SIGKILL)
    return old


@while_the_dispatcher_is_away
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM], ids=lambda by: by.name)
def test_idle_sessions_keep_their_state(cluster, crowd, by):
    known = [Known(wire, number) for number, wire in enumerate(crowd(cluster, 20))]
    shown = "SELECT pid, user_name, database, client_addr FROM pg_baton_sessions WHERE backend_pid IS NULL ORDER BY 1"
    before = {row[0]: row for row in cluster.sql(shown)}
    (old,) = cluster.dispatcher_pids()
    os.kill(old, by)
    wait_for_next_dispatcher(cluster, old)
    after = {row[0]: row for row in cluster.sql(shown)}
    assert len(before) >= 17
    assert before.items() <= after.items()
    for session in known:
        session.assert_has_its_state()
    assert_healthy_without(cluster, [session.wire for session in known])


@while_the_dispatcher_is_away
def test_cancel_key_and_termination_reach_an_adopted_session(cluster, crowd):
    adopted, ended, *_ = crowd(cluster, 8)
    old = kill(cluster)
    wait_for_next_dispatcher(cluster, old)
    adopted.send(query("SELECT pg_sleep(60)"))
    running = f"SELECT state FROM pg_baton_sessions WHERE pid = {adopted.backend_pid}"
    wait_until(lambda: cluster.sql(running) == [("active",)], what="it runs")
    adopted.cancel_request()
    assert [m.fields()["C"] for m in adopted.until_ready(20) if m.type == "E"] == ["57014"]
    assert cluster.sql(f"SELECT pg_terminate_backend({ended.backend_pid})") == [(True,)]
    assert ended.until_closed()[-1].fields()["C"] == "57P01"


@while_the_dispatcher_is_away
def test_request_sent_while_no_dispatcher_is_there_is_answered_once(cluster, crowd):
    wires = crowd(cluster, 12)
    old = kill(cluster)
    for number, wire in enumerate(wires):
        wire.send(query(f"SELECT {number}"))
    for number, wire in enumerate(wires):
        assert [m.row() for m in wire.until_ready(20) if m.type == "D"] == [[str(number).encode()]]
        assert wire.query("SELECT 'next'") == [["next"]]
    wait_for_next_dispatcher(cluster, old)
    assert_healthy_without(cluster, wires)


@while_the_dispatcher_is_away
def test_dispatchers_killed_one_after_the_other_lose_nothing(cluster, crowd):
    """Each at another moment of its start: before, while and after it adopts."""
    known = [Known(wire, number) for number, wire in enumerate(crowd(cluster, 40))]
    moments = random.Random(1)
    for _ in range(6):
        old = kill(cluster)
        wait_until(lambda old=old: cluster.dispatcher_pids() not in ([], [old]), what="the next one")
        time.sleep(moments.uniform(0, 0.1))
    for session in known:
        session.assert_has_its_state()
    assert_healthy_without(cluster, [session.wire for session in known])


@while_the_dispatcher_is_away
def test_dispatcher_killed_under_load_costs_no_session(cluster):
    with Load(cluster, 12) as load:
        for _ in range(4):
            load.wait_for_answers()
            wait_for_next_dispatcher(cluster, kill(cluster))
        load.wait_for_answers()
    assert (load.wrong, load.lost) == ([], [])
    assert_healthy(cluster)


@while_the_dispatcher_is_away
def test_change_that_was_reported_is_never_undone(cluster):
    """A transaction ends with another setting; if the dispatcher dies then, the session has it or is lost."""
    undone: list[tuple[str, str]] = []
    changes = lost = 0
    over = threading.Event()

    def change() -> None:
        nonlocal changes, lost
        while not over.is_set():
            try:
                with Wire.login(HOST, cluster.pool_port, user=SUPERUSER, timeout_s=30) as wire:
                    turn = 0
                    while not over.is_set():
                        turn += 1
                        wire.query(f"SET my.turn = '{turn}'")
                        ((found,),) = wire.query("SHOW my.turn")
                        if found != str(turn):
                            undone.append((found, str(turn)))
                        changes += 1
            except (Closed, OSError):
                lost += 1

    threads = [threading.Thread(target=change) for _ in range(9)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        before = changes
        wait_until(lambda before=before: changes > before + 300, what="settings change")
        wait_for_next_dispatcher(cluster, kill(cluster))
    over.set()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert undone == []
    # one for each backend that has just told the dispatcher of a change
    assert lost <= 5 * 3
    assert_healthy(cluster)


@while_the_dispatcher_is_away
def test_session_whose_last_change_was_not_stored_is_not_adopted(make_cluster):
    """A backend gives it back to a dispatcher that is stopped, and then dies."""
    cluster = make_cluster(parameters={"pg_baton.max_backends": 1, "pg_baton.force_migration": True})
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.expect_in_log(DISPATCHER_KILLED)
    with Wire.login(HOST, cluster.pool_port, user=SUPERUSER) as changes, Wire.login(HOST, cluster.pool_port) as waits:
        changes.query("SET my.turn = 'before'")
        changes.query("BEGIN")
        changes.query("SET my.turn = 'after'")
        (old,) = cluster.dispatcher_pids()
        stop(old)
        waits.send(query("SELECT 'waited'"))
        changes.query("COMMIT")
        wait_for_next_dispatcher(cluster, kill(cluster))
        try:
            assert changes.query("SHOW my.turn") == [["after"]]
        except (Closed, OSError):
            pass
        assert [m.row() for m in waits.until_ready(20) if m.type == "D"] == [[b"waited"]]
    assert_healthy(cluster)


@while_the_dispatcher_is_away
def test_sessions_end_with_the_dispatcher_if_the_keeper_has_died(cluster, crowd):
    wires = crowd(cluster, 12)
    for wire in wires:
        wire.query("SELECT 1")
    (keeper,) = [p.pid for p in processes_in(cluster.data) if "baton-keeper" in p.command]
    os.kill(keeper, signal.SIGKILL)
    old = kill(cluster)
    wait_for_next_dispatcher(cluster, old)
    ended = 0
    for wire in wires:
        try:
            assert wire.query("SELECT 2") == [["2"]]
        except (Closed, OSError):
            ended += 1
    assert ended >= 9
    assert_healthy_without(cluster, wires)
