"""A dispatcher's death or replacement costs no session: its keeper has their sockets, and the next dispatcher adopts them."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import pytest
from harness.cluster import HOST, SUPERUSER
from harness.health import (
    CRASH,
    DISPATCHER_KILLED,
    Load,
    assert_healthy,
    stop,
    wait_for_next_dispatcher,
    wait_until,
    wait_until_replaced,
)
from harness.processes import processes_in
from harness.wire import Closed, QueryFailed, Wire, query

pytestmark = pytest.mark.pool_only

KILLS = int(os.environ.get("BATON_TEST_KILLS", "4"))
IDLE = int(os.environ.get("BATON_TEST_IDLE", "20"))


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


def ids(cluster) -> dict[int, int]:
    return dict(cluster.sql("SELECT pid, id FROM pg_baton_sessions"))


def states(cluster) -> dict[int, list[str]]:
    return {pid: rest for pid, *rest in cluster.sql("SELECT pid, state, mode FROM pg_baton_sessions")}


def backends_of(cluster, wires) -> set[int]:
    pids = {wire.backend_pid for wire in wires}
    on_one = "SELECT pid, backend_pid FROM pg_baton_sessions WHERE backend_pid IS NOT NULL"
    return {backend for pid, backend in cluster.sql(on_one) if pid in pids}


def wait_until_ended(cluster, backends: set[int]) -> None:
    there = "SELECT pid FROM pg_baton_backends"
    wait_until(lambda: backends.isdisjoint(pid for (pid,) in cluster.sql(there)), what="their backends have ended")


def test_session_on_a_backend_goes_back_to_the_pool(cluster, crowd):
    """An idle one at once, without a word of its client; the others when their transactions end."""
    known = [Known(wire, number) for number, wire in enumerate(crowd(cluster, 3))]
    in_transaction, fails, idle = known
    in_transaction.wire.query("BEGIN; SET LOCAL my.number = 'local'")
    fails.wire.query("BEGIN")
    with pytest.raises(QueryFailed):
        fails.wire.query("SELECT 1 / 0")
    idle.wire.query("SET my.other = 'not told to the dispatcher'")
    before = ids(cluster)
    backends = backends_of(cluster, [session.wire for session in known])
    assert len(backends) == 3
    wait_for_next_dispatcher(cluster, kill(cluster))
    assert ids(cluster) == before
    assert states(cluster)[in_transaction.wire.backend_pid] == ["idle in transaction", "shared"]
    wait_until(lambda: len(backends_of(cluster, [idle.wire])) == 0, what="the idle session is given back")
    idle.assert_has_its_state()
    assert in_transaction.wire.query("SHOW my.number") == [["local"]]
    in_transaction.wire.query("COMMIT")
    fails.wire.query("ROLLBACK")
    wait_until_ended(cluster, backends)
    for session in known:
        session.assert_has_its_state()
    assert_healthy_without(cluster, [session.wire for session in known])


def test_dedicated_session_listens_on(cluster, crowd):
    listens, notifies = crowd(cluster, 2)
    listens.query("LISTEN here")
    wait_for_next_dispatcher(cluster, kill(cluster))
    notifies.query("NOTIFY here, 'first'")
    assert listens.read(20).type == "A"
    cause = f"SELECT mode, dedicated_cause FROM pg_baton_sessions WHERE pid = {listens.backend_pid}"
    wait_until(lambda: cluster.sql(cause) == [("dedicated", "listen")], what="its backend says why")
    listens.query("UNLISTEN *")
    wait_until(lambda: cluster.sql(cause) == [("shared", None)], what="it is shared again")
    assert listens.query("SELECT 1") == [["1"]]
    assert_healthy_without(cluster, [listens, notifies])


def test_cancel_key_reaches_a_statement_that_runs_since_before(cluster, crowd):
    (runs,) = crowd(cluster, 1)
    runs.send(query("SELECT pg_sleep(60)"))
    running = f"SELECT state FROM pg_baton_sessions WHERE pid = {runs.backend_pid}"
    wait_until(lambda: cluster.sql(running) == [("active",)], what="it runs")
    wait_for_next_dispatcher(cluster, kill(cluster))
    assert cluster.sql(running) == [("active",)]
    runs.cancel_request()
    assert [m.fields()["C"] for m in runs.until_ready(20) if m.type == "E"] == ["57014"]
    assert runs.query("SELECT 1") == [["1"]]
    assert_healthy_without(cluster, [runs])


def test_client_that_leaves_before_its_backend_is_adopted_leaves_nothing(cluster, crowd):
    wires = crowd(cluster, 3)
    for wire in wires:
        wire.query("BEGIN")
    old = kill(cluster)
    for wire in wires:
        wire.close()
    wait_for_next_dispatcher(cluster, old)
    wait_until(lambda: cluster.sql("SELECT 1 FROM pg_baton_sessions") == [], what="no session is left")
    assert_healthy(cluster)


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


def test_dispatchers_killed_one_after_the_other_lose_nothing(cluster, crowd):
    """Each at another moment of its start: before, while and after it adopts."""
    known = [Known(wire, number) for number, wire in enumerate(crowd(cluster, 40))]
    known[0].wire.query("BEGIN")
    moments = random.Random(1)
    for _ in range(int(os.environ.get("BATON_TEST_ROUNDS", "6"))):
        wait_until_replaced(cluster, kill(cluster))
        time.sleep(moments.uniform(0, 0.1))
    known[0].wire.query("COMMIT")
    for session in known:
        session.assert_has_its_state()
    assert_healthy_without(cluster, [session.wire for session in known])


def test_dispatcher_killed_under_load_costs_no_session(cluster, crowd):
    """BATON_TEST_KILLS=100 kills as many, BATON_TEST_IDLE=1000 has as many idle sessions."""
    known = [Known(wire, number) for number, wire in enumerate(crowd(cluster, IDLE))]
    with Load(cluster, 12) as load:
        for _ in range(KILLS):
            # the launcher waits longer if one dies in its first second
            time.sleep(1)
            load.wait_for_answers()
            wait_for_next_dispatcher(cluster, kill(cluster))
        load.wait_for_answers()
    print(f"the longest answer {load.longest_s:.3f} s")
    assert (load.wrong, load.lost) == ([], [])
    for session in known:
        session.assert_has_its_state()
    assert_healthy_without(cluster, [session.wire for session in known])


def test_change_that_was_reported_is_never_lost(cluster):
    """A transaction ends with another setting; the session has it, whenever the dispatcher dies."""
    wrong: list[tuple[str, str]] = []
    lost: list[Exception] = []
    changes = 0
    over = threading.Event()

    def change() -> None:
        nonlocal changes
        try:
            with Wire.login(HOST, cluster.pool_port, user=SUPERUSER, timeout_s=30) as wire:
                turn = 0
                while not over.is_set():
                    turn += 1
                    wire.query(f"SET my.turn = '{turn}'")
                    ((found,),) = wire.query("SHOW my.turn")
                    if found != str(turn):
                        wrong.append((found, str(turn)))
                    changes += 1
        except (Closed, OSError) as error:
            lost.append(error)

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
    assert (wrong, lost) == ([], [])
    assert_healthy(cluster)


@pytest.mark.parametrize("kills", [1, 2])
def test_change_that_was_not_stored_is_told_to_the_next_dispatcher(make_cluster, kills):
    """A backend gives the session back to a dispatcher that is stopped, and then dies."""
    cluster = make_cluster(parameters={"pg_baton.max_backends": 1, "pg_baton.force_migration": True})
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.expect_in_log(DISPATCHER_KILLED)
    with Wire.login(HOST, cluster.pool_port, user=SUPERUSER) as changes, Wire.login(HOST, cluster.pool_port) as waits:
        changes.query("SET my.turn = 'before'; SET my.other = 'before'")
        changes.query("PREPARE mine AS SELECT 'mine'")
        changes.query("BEGIN; DEALLOCATE mine; SET my.turn = 'after'; SET my.other TO DEFAULT; SET my.new = 'new'")
        (old,) = cluster.dispatcher_pids()
        stop(old)
        waits.send(query("SELECT 'waited'"))
        changes.query("COMMIT")
        for _ in range(kills):
            wait_for_next_dispatcher(cluster, kill(cluster))
        assert changes.query("SHOW my.turn; SHOW my.new; SHOW my.other") == [["after"], ["new"], [""]]
        with pytest.raises(QueryFailed, match="26000"):
            changes.query("EXECUTE mine")
        assert [m.row() for m in waits.until_ready(20) if m.type == "D"] == [[b"waited"]]
    assert_healthy(cluster)


def test_session_ends_if_its_change_died_with_the_backend(make_cluster):
    """A backend that has told a dead dispatcher of a change is stopped before it can tell the next one, and killed."""
    cluster = make_cluster(parameters={"pg_baton.max_backends": 1, "pg_baton.force_migration": True})
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.expect_in_log(*CRASH)
    with Wire.login(HOST, cluster.pool_port, user=SUPERUSER) as changes, Wire.login(HOST, cluster.pool_port) as other:
        changes.query("SET my.turn = 'before'")
        other.query("SET my.turn = 'of the other'")
        (launcher,) = [p.pid for p in cluster.processes() if "pg_baton launcher" in p.command]
        (old,) = cluster.dispatcher_pids()
        changes.query("BEGIN; SET my.turn = 'after'")
        (backend,) = [
            p.pid for p in cluster.processes() if p.command.startswith("postgres: ") and "idle in tr" in p.command
        ]
        stop(old)
        changes.query("COMMIT")
        stop(launcher)
        os.kill(old, signal.SIGKILL)
        # It notices that the dispatcher has gone. If it does not in time, the session ends all the same.
        time.sleep(0.5)
        stop(backend)
        os.kill(launcher, signal.SIGCONT)
        wait_for_next_dispatcher(cluster, old)
        os.kill(backend, signal.SIGKILL)
        with pytest.raises((Closed, OSError)):
            changes.query("SHOW my.turn")
        assert other.query("SHOW my.turn") == [["of the other"]]
    assert_healthy(cluster)


def keeper_of(cluster) -> int:
    keepers = [p.pid for p in processes_in(cluster.data) if "baton-keeper" in p.command]
    return keepers[0] if len(keepers) == 1 else 0


def test_another_keeper_takes_the_place_of_one_that_has_died(cluster, crowd):
    known = [Known(wire, number) for number, wire in enumerate(crowd(cluster, 12))]
    for _ in range(2):
        first = keeper_of(cluster)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda first=first: keeper_of(cluster) not in (0, first), what="another keeper")
    wait_for_next_dispatcher(cluster, kill(cluster))
    for session in known:
        session.assert_has_its_state()
    assert_healthy_without(cluster, [session.wire for session in known])


def test_sessions_end_with_the_dispatcher_if_the_keeper_has_died(cluster, crowd):
    wires = crowd(cluster, 12)
    for wire in wires:
        wire.query("SELECT 1")
    (old,) = cluster.dispatcher_pids()
    stop(old)
    os.kill(keeper_of(cluster), signal.SIGKILL)
    kill(cluster)
    wait_for_next_dispatcher(cluster, old)
    ended = 0
    for wire in wires:
        try:
            assert wire.query("SELECT 2") == [["2"]]
        except (Closed, OSError):
            ended += 1
    assert ended >= 9
    assert_healthy_without(cluster, wires)
