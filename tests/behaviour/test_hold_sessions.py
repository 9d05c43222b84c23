"""A restart of the server costs idle sessions nothing (pg_baton.hold_sessions)."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time

import pytest
from faults.test_chaos import GONE, Session, living
from harness.account import run_as_server_user
from harness.cluster import HOST
from harness.health import DISPATCHER_KILLED, assert_healthy, hold_for, wait_until
from harness.wire import QueryFailed, Wire, query

pytestmark = pytest.mark.pool_only

HOLD_S = 60
MOST_BACKENDS = 4
ROUNDS = int(os.environ.get("BATON_TEST_ROUNDS", "6"))
IDLE = int(os.environ.get("BATON_TEST_IDLE", "20"))
RESTARTS = int(os.environ.get("BATON_TEST_RESTARTS", "3"))


@pytest.fixture
def cluster(make_cluster):
    cluster = make_cluster(parameters={"pg_baton.max_backends": MOST_BACKENDS, "pg_baton.hold_sessions": f"{HOLD_S}s"})
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.sql("CREATE SEQUENCE drawn")
    yield cluster
    if cluster.process is not None:
        hold_for(cluster, "0")


def stop(cluster, mode: str) -> None:
    """Stops the server alone: others of its processes hold its sessions."""
    number = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT, "kill": signal.SIGKILL}[mode]
    cluster.process.send_signal(number)
    cluster.process.wait(60)
    # after a SIGKILL the server refuses to start as long as a backend is there
    wait_until(
        lambda: not any(process.command.startswith("postgres") for process in cluster.processes()),
        what="the server's processes have ended",
    )


def at_rest(cluster) -> None:
    """Waits until no backend has a session."""
    wait_until(
        lambda: cluster.sql("SELECT count(*) FROM pg_baton_backends WHERE session_id IS NOT NULL") == [(0,)],
        what="no session lingers on a backend",
    )


class Known:
    """A session whose state the test knows."""

    def __init__(self, cluster, number: int) -> None:
        self.wire = Wire.login(HOST, cluster.pool_port)
        self.number = number
        self.wire.query(f"SET my.number = '{number}'; SET work_mem = '{100 + number % 900}kB'")
        self.wire.query(f"PREPARE mine AS SELECT {number}")
        ((self.drawn,),) = self.wire.query("SELECT nextval('drawn')")

    def assert_has_its_state(self) -> None:
        assert self.wire.query("SELECT current_setting('my.number'), current_setting('work_mem')") == [
            [str(self.number), f"{100 + self.number % 900}kB"]
        ]
        assert self.wire.query("EXECUTE mine") == [[str(self.number)]]
        assert self.wire.query("SELECT currval('drawn'), pg_backend_pid()") == [
            [self.drawn, str(self.wire.backend_pid)]
        ]


def idle_sessions(cluster) -> list[Known]:
    return [Known(cluster, number) for number in range(20)]


def assert_all_go_on(cluster, sessions: list[Known]) -> None:
    for session in sessions:
        session.assert_has_its_state()
    for session in sessions:
        session.wire.close()
    assert_healthy(cluster)


@pytest.mark.parametrize("mode", ["fast", "smart", "immediate", "kill"])
def test_idle_sessions_go_on_after_a_restart(cluster, mode):
    sessions = idle_sessions(cluster)
    if mode in ("immediate", "kill"):
        at_rest(cluster)
    stop(cluster, mode)
    cluster.start()
    assert_all_go_on(cluster, sessions)


def test_sessions_go_on_after_many_restarts(cluster):
    sessions = idle_sessions(cluster)
    for _ in range(5):
        stop(cluster, "fast")
        cluster.start()
        sessions[0].assert_has_its_state()
        cluster.sql("SELECT pg_baton_restart_dispatcher()")
        at_rest(cluster)
    assert_all_go_on(cluster, sessions)


def test_what_clients_ask_and_who_comes_while_the_server_is_away_waits(cluster):
    sessions = idle_sessions(cluster)
    stop(cluster, "fast")
    for session in sessions:
        session.wire.send(query("SELECT nextval('drawn')"))
    came: list[list] = []

    def come() -> None:
        with Wire.login(HOST, cluster.pool_port, timeout_s=60) as wire:
            came.append(wire.query("SELECT 'in'"))

    newcomers = [threading.Thread(target=come) for _ in range(5)]
    for thread in newcomers:
        thread.start()
    time.sleep(1)
    assert not came
    cluster.start()
    drawn = set()
    for session in sessions:
        (row,) = [message.row() for message in session.wire.until_ready() if message.type == "D"]
        session.drawn = row[0].decode()
        drawn.add(session.drawn)
    assert len(drawn) == len(sessions), "each request is answered once"
    for thread in newcomers:
        thread.join(60)
    assert came == [[["in"]]] * 5
    assert_all_go_on(cluster, sessions)


class Shared(Session):
    """Its statements are transactions of their own, and it is never dedicated."""

    def __init__(self, cluster, number: int) -> None:
        super().__init__(cluster, number)
        self.operations = [getattr(Session, f"does_{what}") for what in ("set", "reset", "prepare", "draw", "pause")]

    def live(self, over: threading.Event) -> None:
        while not over.is_set():
            try:
                self.random.choice(self.operations)(self)
                self.check()
            except GONE:
                self.lost += 1
                self.come_again()


def test_under_load_a_restart_ends_the_sessions_whose_statements_run_and_no_other(cluster):
    """BATON_TEST_RESTARTS=50 makes it as many, BATON_TEST_IDLE=1000 has as many idle sessions."""
    cluster.sql("CREATE TABLE kept (client int)")
    idle = [Known(cluster, number) for number in range(IDLE)]
    sessions = [Shared(cluster, number) for number in range(30)]
    ends = []
    with living(sessions) as failures:
        for _ in range(RESTARTS):
            time.sleep(1)
            before = sum(session.lost for session in sessions)
            began = time.monotonic()
            stop(cluster, "fast")
            cluster.start()
            away_s = time.monotonic() - began
            time.sleep(1)
            ends.append(sum(session.lost for session in sessions) - before)
    longest_s = max(session.longest_s for session in sessions)
    print(f"{ends} sessions ended; the longest answer {longest_s:.3f} s, the server last away for {away_s:.3f} s")
    assert failures == []
    assert max(ends) <= MOST_BACKENDS
    for session in sessions:
        session.wire.close()
    assert_all_go_on(cluster, idle)


def test_transactions_and_dedicated_sessions_end_as_on_a_direct_connection(cluster):
    idle, busy, dedicated = (Known(cluster, number) for number in range(3))
    busy.wire.query("BEGIN")
    dedicated.wire.query("CREATE TEMP TABLE mine ()")
    stop(cluster, "fast")
    for ended in (busy, dedicated):
        (error,) = [message for message in ended.wire.until_closed() if message.type == "E"]
        assert error.fields()["C"] == "57P01"
    cluster.start()
    assert_all_go_on(cluster, [idle])


def test_sessions_go_on_if_the_dispatcher_dies_while_the_server_stops(cluster):
    cluster.expect_in_log(DISPATCHER_KILLED)
    sessions = idle_sessions(cluster)
    moments = random.Random(1)
    for _ in range(ROUNDS):
        at_rest(cluster)
        (dispatcher,) = cluster.dispatcher_pids()
        # a negative moment: the next dispatcher has already begun its start
        moment = moments.uniform(-0.1, 0.05)
        if moment > 0:
            cluster.process.send_signal(signal.SIGINT)
        time.sleep(max(moment, 0))
        with contextlib.suppress(ProcessLookupError):
            os.kill(dispatcher, signal.SIGKILL)
        time.sleep(max(-moment, 0))
        if moment <= 0:
            cluster.process.send_signal(signal.SIGINT)
        cluster.process.wait(60)
        cluster.start()
        sessions[0].assert_has_its_state()
    assert_all_go_on(cluster, sessions)


def test_sessions_of_a_standby_go_on_after_its_restart_and_when_it_comes_back_as_a_primary(cluster):
    stop(cluster, "fast")
    (cluster.data / "standby.signal").touch()
    cluster.start()
    wire = Wire.login(HOST, cluster.pool_port)
    wire.query("SET my.number = '1'")
    stop(cluster, "fast")
    cluster.start()
    asked = "SELECT pg_is_in_recovery(), current_setting('my.number')"
    assert wire.query(asked) == [["t", "1"]]
    stop(cluster, "fast")
    (cluster.data / "standby.signal").unlink()
    cluster.start()
    assert wire.query(asked) == [["f", "1"]]
    assert wire.parameters["in_hot_standby"] == "off"
    wire.close()
    assert_healthy(cluster)


def test_sessions_end_when_no_server_comes_in_time(cluster):
    hold_for(cluster, "1s")
    sessions = idle_sessions(cluster)
    stop(cluster, "fast")
    for session in sessions:
        (error,) = [message for message in session.wire.until_closed(20) if message.type == "E"]
        fields = error.fields()
        assert (fields["S"], fields["C"]) == ("FATAL", "57P01")
        assert fields["M"] == "terminating connection due to administrator command"
    wait_until(lambda: cluster.processes() == [], what="nothing of the server is left")
    cluster.start()


def test_keeper_says_nothing_to_a_client_whose_backend_outlives_the_postmaster(cluster):
    """A backend that computes does not notice the postmaster's death, and answers afterwards."""
    hold_for(cluster, "1s")
    wire = Wire.login(HOST, cluster.pool_port)
    until = "clock_timestamp() + interval '4 s'"
    wire.send(query(f"DO $$ DECLARE e timestamptz := {until}; BEGIN WHILE clock_timestamp() < e LOOP END LOOP; END $$"))
    wait_until(
        lambda: (
            cluster.sql("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'DO %' AND state = 'active'") == [(1,)]
        ),
        what="the statement runs",
    )
    stop(cluster, "kill")
    assert [message.type for message in wire.until_closed(20)] == ["C", "Z"]
    wait_until(lambda: cluster.processes() == [], what="nothing of the server is left")
    cluster.start()


def test_signal_to_the_keeper_ends_the_sessions_once_the_server_has_ended(cluster):
    """As systemd sends it to all processes of a service: its stop does not wait for held sessions."""
    sessions = idle_sessions(cluster)
    (keeper,) = [process.pid for process in cluster.processes() if process.command.startswith("baton-keeper")]
    os.kill(keeper, signal.SIGTERM)
    sessions[0].assert_has_its_state()
    stop(cluster, "fast")
    for session in sessions:
        (error,) = [message for message in session.wire.until_closed(20) if message.type == "E"]
        assert error.fields()["C"] == "57P01"
    wait_until(lambda: cluster.processes() == [], what="nothing of the server is left")
    cluster.start()


def test_a_session_goes_back_to_what_the_next_server_has(cluster):
    """RESET, a parameter that is gone, and a role's setting that has changed; and its key cancels its statements."""
    cluster.sql("ALTER ROLE postgres SET lock_timeout = '11s'")
    session = Known(cluster, 1)
    at_start = Wire.login(HOST, cluster.pool_port, options="-c statement_timeout=77s")
    stop(cluster, "fast")
    cluster.set_parameters({"maintenance_work_mem": "7MB", "work_mem": "9MB"})
    cluster.start()
    cluster.sql("ALTER ROLE postgres RESET lock_timeout")
    session.assert_has_its_state()
    wire = session.wire
    assert wire.query("SHOW maintenance_work_mem") == [["7MB"]]
    wire.query("RESET work_mem")
    assert wire.query("SHOW work_mem") == [["9MB"]]
    assert wire.query("SHOW lock_timeout") == [["11s"]]
    assert at_start.query("SHOW statement_timeout") == [["77s"]]
    at_start.query("SET statement_timeout = 0; RESET statement_timeout")
    assert at_start.query("SHOW statement_timeout") == [["77s"]]
    wire.send(query("SELECT pg_sleep(60)"))
    wait_until(
        lambda: cluster.sql("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'") == [(1,)],
        what="the statement runs",
    )
    wire.cancel_request()
    (error,) = [message for message in wire.until_ready(20) if message.type == "E"]
    assert error.fields()["C"] == "57014"
    wire.close()
    at_start.close()
    assert_healthy(cluster)


def assert_all_end(cluster, sessions: list[Known]) -> None:
    for session in sessions:
        (error,) = [message for message in session.wire.until_closed(20) if message.type == "E"]
        assert error.fields()["C"] == "57P01"


def test_sessions_of_a_primary_end_if_it_comes_back_as_a_standby(cluster):
    sessions = idle_sessions(cluster)
    stop(cluster, "fast")
    (cluster.data / "standby.signal").touch()
    cluster.expect_in_log("the server has become a standby")
    cluster.start()
    assert_all_end(cluster, sessions)
    with Wire.login(HOST, cluster.pool_port) as wire:
        assert wire.query("SELECT pg_is_in_recovery()") == [["t"]]


def test_sessions_of_a_primary_go_on_at_a_standby_if_they_are_to_be_kept(cluster):
    cluster.set_parameters({"pg_baton.keep_after_demotion": "on"})
    sessions = idle_sessions(cluster)
    stop(cluster, "fast")
    (cluster.data / "standby.signal").touch()
    cluster.start()
    wire = sessions[0].wire
    assert wire.query("SELECT pg_is_in_recovery(), current_setting('my.number')") == [["t", "0"]]
    assert wire.parameters["in_hot_standby"] == "on"
    with pytest.raises(QueryFailed, match="25006"):
        wire.query("CREATE TABLE written ()")
    assert_all_go_on(cluster, sessions)


def test_sessions_end_if_the_server_has_been_copied_back_to_an_earlier_state(cluster):
    """A role of then may have the OID of another one of now."""
    stop(cluster, "fast")
    run_as_server_user(["cp", "-a", str(cluster.data), f"{cluster.data}.earlier"])
    cluster.start()
    cluster.sql("CREATE ROLE someone LOGIN")
    sessions = idle_sessions(cluster)
    stop(cluster, "fast")
    # but for the folder that has the keeper's socket, as pg_basebackup leaves it out
    copy_back = 'cd "$0" && rm -rf base global pg_[!s]* && rm -rf "$0.earlier/pg_stat_tmp" && cp -a "$0.earlier/." .'
    run_as_server_user(["sh", "-c", copy_back, str(cluster.data)])
    cluster.expect_in_log("the server has been restored to an earlier state")
    cluster.start()
    assert_all_end(cluster, sessions)
    assert cluster.sql("SELECT count(*) FROM pg_roles WHERE rolname = 'someone'") == [(0,)]


def test_sessions_that_the_next_server_has_no_room_for_end_with_an_error(cluster):
    sessions = idle_sessions(cluster)
    stop(cluster, "fast")
    cluster.set_parameters({"pg_baton.max_sessions": 15})
    cluster.start(wait_for_pool=False)
    ended = []
    for session in sessions:
        session.wire.send(query("SELECT 1"))
        first = session.wire.read_until("ET")[-1]
        if first.type == "E":
            assert (first.fields()["S"], first.fields()["C"]) == ("FATAL", "57P01")
            ended.append(session)
        else:
            session.wire.until_ready()
    assert 5 <= len(ended) <= 8
    for session in ended:
        session.wire.close()
    assert_all_go_on(cluster, [session for session in sessions if session not in ended])
