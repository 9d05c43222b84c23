"""Processes that end at the worst moment: backends, the dispatcher, the server."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import psycopg
import pytest
from harness.cluster import CONTROL_SOCKET
from harness.debugger import needs_gdb, stopped_at
from harness.health import (
    CRASH,
    DISPATCHER_KILLED,
    Load,
    assert_healthy,
    assert_nothing_spins,
    assert_serves,
    stop,
    wait_for_next_dispatcher,
    wait_until,
    wait_until_replaced,
)
from harness.plain import counts_descriptors
from harness.processes import ITS_PROCESS, processes_in
from harness.wire import Closed, LoginFailed, Wire, copy_data, query, startup

pytestmark = pytest.mark.pool_only


def login(cluster, **options) -> Wire:
    return Wire.login("127.0.0.1", cluster.pool_port, **options)


@pytest.fixture(params=["normal", "forced"])
def cluster(make_cluster, request):
    cluster = make_cluster(
        parameters={
            "pg_baton.max_backends": 3,
            "pg_baton.force_migration": request.param == "forced",
            "restart_after_crash": True,
            "synchronous_commit": True,
        }
    )
    cluster.sql("CREATE EXTENSION pg_baton")
    return cluster


def ends_with(wire: Wire, timeout_s: float = 20) -> list[str]:
    """The SQLSTATEs of the errors a connection got before its end."""
    return [m.fields()["C"] for m in wire.until_closed(timeout_s) if m.type == "E"]


def test_backend_ended_by_pg_terminate_backend_while_it_works(cluster):
    with login(cluster) as witness:
        for _ in range(4):
            wire = login(cluster, application_name="victim")
            wire.send(query("SELECT pg_sleep(60)"))
            wait_until(
                lambda: (
                    cluster.sql(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'victim'"
                        " AND state = 'active'"
                    )
                    == [(True,)]
                ),
                what="the victim runs",
            )
            assert ends_with(wire) == ["57P01"]
            assert witness.query("SELECT 1") == [["1"]]
    assert_healthy(cluster)


# gdb's commands that make a process raise an error
THROW = [
    "call (char) ((char (*)(int, const char *)) errstart)(21, (const char *) 0)",
    "call (void) ((void (*)(const char *, int, const char *)) errfinish)((char *) 0, 0, (char *) 0)",
]


@needs_gdb
def test_backend_ending_in_hand_over_loses_only_leaving_session(make_cluster):
    """The session that the backend took from the ready queue is not in the slot of any backend yet."""
    cluster = make_cluster(parameters={"pg_baton.max_backends": 2})
    cluster.sql("CREATE EXTENSION pg_baton")
    with login(cluster) as held, login(cluster) as other, login(cluster) as queued:
        for session in (held, other, queued):
            session.query("SELECT 1")
            session.query("SELECT 1")
        other.query("BEGIN")
        held.query("BEGIN")
        ((pid,),) = held.query(ITS_PROCESS)
        queued.send(query("SELECT 'served'"))
        debugger = ["gdb", "-p", str(pid), "-batch", "-nx"]
        # where the backend prepares to give back the session that it holds
        commands = ["set breakpoint pending off", "handle SIGUSR1 SIGALRM nostop noprint pass"]
        commands += ["break baton_context_capture", "shell echo ready", "continue", "delete breakpoints", *THROW]
        for command in commands:
            debugger += ["-ex", command]
        with subprocess.Popen(
            debugger, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                next(line for line in process.stdout if line.startswith("ready"))
                held.send(query("COMMIT"))
                assert [m.fields()["S"] for m in held.until_closed(20) if m.type == "E"] == ["FATAL"]
                process.wait(60)
            finally:
                process.kill()
        assert [m.row() for m in queued.until_ready(20) if m.type == "D"] == [[b"served"]]
        other.query("COMMIT")
    assert_healthy(cluster)


@needs_gdb
def test_error_between_transactions_ends_only_its_own_session(cluster):
    """The error must not unwind into the server's loop, which would report it to
    the client in place then, and shift later answers to that client by one."""
    with login(cluster) as witness, login(cluster, application_name="victim") as victim:
        # A lock keeps the victim on one backend.
        victim.query("SELECT pg_advisory_lock(1)")
        witness.query("SELECT 1")
        ((pid,),) = cluster.sql("SELECT backend_pid FROM pg_baton_sessions WHERE application_name = 'victim'")
        debugger = ["gdb", "-p", str(pid), "-batch", "-nx"]
        for command in THROW:
            debugger += ["-ex", command]
        # gdb returns when the backend exits.
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(debugger, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
        found = victim.until_closed(20)
        assert [m.fields()["S"] for m in found if m.type == "E"] == ["FATAL"]
        assert [m.type for m in found if m.type == "Z"] == []
        assert witness.query("SELECT 2") == [["2"]]
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        wait_until(lambda: cluster.sql(locks) == [(0,)], what="its lock has gone with it")
    assert_serves(cluster)
    assert_healthy(cluster)


def test_idle_backends_that_are_terminated_are_replaced(cluster):
    """A session whose backend is ended while it is idle either lives on or is
    told 57P01 as in stock; sessions that the dispatcher holds live on."""
    sessions = [login(cluster) for _ in range(8)]
    for session in sessions:
        session.query("SELECT 1")
    ended = cluster.sql("SELECT pid, pg_terminate_backend(pid) FROM pg_baton_backends WHERE pid IS NOT NULL")
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid, _ in ended), what="they have ended")
    alive = 0
    for session in sessions:
        try:
            assert session.query("SELECT 1") == [["1"]]
            alive += 1
        except Exception as failure:
            assert "57P01" in str(failure) or isinstance(failure, (Closed, OSError)), failure
        session.close()
    assert alive >= len(sessions) - 3
    assert_healthy(cluster)


def test_killed_backend_restarts_server_and_spares_idle_sessions(cluster):
    cluster.expect_in_log(*CRASH)
    idle = [login(cluster) for _ in range(6)]
    for number, session in enumerate(idle):
        session.query(f"SET my.number = '{number}'")
        session.query(f"PREPARE mine AS SELECT {number}")
    busy = login(cluster, application_name="busy")
    pid = int(busy.query(ITS_PROCESS)[0][0])
    busy.query("BEGIN")
    pid = int(busy.query(ITS_PROCESS)[0][0])
    time.sleep(0.3)
    os.kill(pid, signal.SIGKILL)
    codes = ends_with(busy)
    assert codes == [] or codes[0] in ("57P02", "57P01", "57P03", "58000", "08006"), codes
    busy.close()
    wait_for_crash_restart(cluster)
    alive = 0
    for number, session in enumerate(idle):
        try:
            assert session.query("SHOW my.number") == [[str(number)]]
            assert session.query("EXECUTE mine") == [[str(number)]]
            alive += 1
        except (Closed, OSError):
            pass
        except Exception as failure:
            assert "57P0" in str(failure), failure
        session.close()
    # Sessions that lingered on one of at most three backends may be lost.
    assert alive >= len(idle) - 3, "idle sessions did not live on"
    assert_healthy(cluster)


def wait_for_crash_restart(cluster) -> None:
    """Waits until the postmaster has seen that a process has died, has ended all
    others because of it, and the pool serves again."""
    cluster.wait_for_log("all server processes terminated; reinitializing")
    cluster.wait_pool_ready()


def test_dispatcher_killed_without_clients_is_replaced(cluster):
    cluster.expect_in_log(DISPATCHER_KILLED)
    for _ in range(3):
        (old,) = cluster.dispatcher_pids()
        os.kill(old, signal.SIGKILL)
        wait_for_next_dispatcher(cluster, old)
    assert_healthy(cluster)


def test_dispatcher_killed_under_load(cluster):
    """The server is unharmed, a running transaction finishes, a new dispatcher
    serves within seconds, nothing spins or leaks."""
    cluster.expect_in_log(DISPATCHER_KILLED)
    postmaster = cluster.postmaster_pid()
    cluster.sql("CREATE TABLE finished (a int)")
    with Load(cluster, 10) as load:
        load.wait_for_answers()
        for turn in range(3):
            busy = login(cluster)
            busy.query("BEGIN")
            busy.query(f"INSERT INTO finished VALUES ({turn})")
            (old,) = cluster.dispatcher_pids()
            os.kill(old, signal.SIGKILL)
            assert busy.query("SELECT 'still here'") == [["still here"]]
            busy.query("COMMIT")
            assert cluster.sql(f"SELECT count(*) FROM finished WHERE a = {turn}") == [(1,)]
            busy.finish()
            wait_for_next_dispatcher(cluster, old)
            load.wait_for_answers()
    assert load.wrong == []
    assert cluster.postmaster_pid() == postmaster and cluster.process.poll() is None
    assert len(cluster.dispatcher_pids()) == 1
    assert_healthy(cluster)
    named = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND application_name <> ''"
    wait_until(lambda: cluster.sql(named)[0][0] <= 4, what="no more backends than the pool may have")


def test_session_in_first_transaction_outlives_the_dispatcher(cluster):
    """Its backend would give it back at the transaction's end, but the dispatcher that would take it has ended."""
    cluster.expect_in_log(DISPATCHER_KILLED)
    with psycopg.connect(cluster.direct()) as lock, login(cluster) as session:
        lock.execute("SELECT pg_advisory_lock(7)")
        session.send(query("SELECT pg_advisory_xact_lock(7), 'first'"))
        wait_until(
            lambda: cluster.sql("SELECT count(*) FROM pg_locks WHERE NOT granted") == [(1,)],
            what="it waits for the lock",
        )
        replace_dispatcher(cluster)
        lock.execute("SELECT pg_advisory_unlock(7)")
        assert [m.type for m in session.until_ready(20)] == ["T", "D", "C", "Z"]
        assert session.query("SELECT 2") == [["2"]]
    assert_healthy(cluster)


@pytest.mark.parametrize("begin", [False, True], ids=["alone", "in a transaction"])
def test_session_within_ignored_message_outlives_the_dispatcher(cluster, begin):
    cluster.expect_in_log(DISPATCHER_KILLED)
    ignored = copy_data(1000 * b"x")
    with login(cluster) as session:
        session.send((query("BEGIN") if begin else b"") + query("SELECT 1") + ignored[:9])
        for _ in range(2 if begin else 1):
            session.until_ready()
        replace_dispatcher(cluster)
        session.send(ignored[9:99])
        session.send(ignored[99:] + query("SELECT 2"))
        assert [m.row() for m in session.until_ready(20) if m.type == "D"] == [[b"2"]]
        assert session.query("SELECT 3") == [["3"]]
    assert_healthy(cluster)


@needs_gdb
def test_starting_backend_leaves_its_slot_to_the_next_dispatcher(make_cluster):
    """The backend has been welcomed, and has not written anything into its slot yet."""
    cluster = make_cluster(parameters={"pg_baton.max_backends": 3})
    cluster.sql("CREATE EXTENSION pg_baton; CREATE ROLE somebody LOGIN")
    cluster.expect_in_log(DISPATCHER_KILLED)
    slots = "SELECT pid, state FROM pg_baton_backends ORDER BY pid"
    starting = "SELECT 1 FROM pg_baton_backends WHERE state = 'starting'"
    # this backend has not held a session yet
    early_one = "SELECT pid FROM pg_baton_backends WHERE user_name IS NULL AND pid <> 0"
    with psycopg.connect(cluster.direct(), autocommit=True) as direct:
        with Wire.open("127.0.0.1", cluster.pool_port) as early:
            # the delay leaves time to stop the backend
            early.send(startup({"user": "somebody", "database": "postgres", "options": "-c post_auth_delay=10"}))
            wait_until(lambda: direct.execute(early_one).fetchall() != [], what="a backend starts")
            ((pid,),) = direct.execute(early_one).fetchall()
            with stopped_at(pid, "baton_arena_map") as stop:
                stop.wait()
                replace_dispatcher(cluster)
                with login(cluster, user="somebody") as session:
                    session.query("BEGIN")
                    # a second backend may start beside a transaction that is open
                    wait_until(lambda: direct.execute(starting).fetchall() == [], what="no backend starts")
                    before = direct.execute(slots).fetchall()
                    stop.go.touch()
                    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), what="the early one has ended")
                    after = direct.execute(slots).fetchall()
                    assert set(before) <= set(after) and pid not in dict(after)
                    session.query("COMMIT")
    assert_healthy(cluster)


def test_session_queued_at_dead_dispatcher_is_served_by_the_next_one(make_cluster):
    cluster = make_cluster(parameters={"pg_baton.max_backends": 1})
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.expect_in_log(DISPATCHER_KILLED)
    with psycopg.connect(cluster.direct()) as lock, login(cluster) as busy:
        queued = login(cluster)
        for session in (busy, queued) * 2:
            session.query("SELECT 1")
        lock.execute("SELECT pg_advisory_lock(7)")
        busy.send(query("SELECT pg_advisory_xact_lock(7)"))
        # else the backend, which holds `queued`, might receive that session's query first
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        wait_until(lambda: cluster.sql(waits) == [(1,)], what="the backend is busy")
        queued.send(query("SELECT 'queued'"))
        wait_until(lambda: cluster.sql("SELECT waiting FROM pg_baton_pools") == [(1,)], what="one waits")
        (old,) = cluster.dispatcher_pids()
        os.kill(old, signal.SIGKILL)
        wait_until_replaced(cluster, old)
        lock.execute("SELECT pg_advisory_unlock(7)")
        assert [m.type for m in busy.until_ready(20)] == ["T", "D", "C", "Z"]
        assert [m.row() for m in queued.until_ready(20) if m.type == "D"] == [[b"queued"]]
        with login(cluster) as newcomer:
            assert newcomer.query("SELECT 4") == [["4"]]
            queued.finish()
        assert busy.query("SELECT 5") == [["5"]]
    assert_healthy(cluster)


def replace_dispatcher(cluster) -> None:
    (old,) = cluster.dispatcher_pids()
    os.kill(old, signal.SIGKILL)
    wait_for_next_dispatcher(cluster, old)


def test_unresponsive_dispatcher_does_not_stop_the_server(cluster):
    (pid,) = cluster.dispatcher_pids()
    with login(cluster) as session:
        session.query("BEGIN")
        stop(pid)
        try:
            assert cluster.sql("SELECT 1") == [(1,)]
            assert session.query("SELECT 1") == [["1"]]
            session.query("COMMIT")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert session.query("SELECT 2") == [["2"]]
    assert_healthy(cluster)


def test_views_of_dispatcher_with_full_backlog_can_be_cancelled(cluster):
    """The dispatcher is stopped and its socket's backlog is full, so connect() would block for ever."""
    (pid,) = cluster.dispatcher_pids()
    crowd: list[socket.socket] = []
    stop(pid)
    try:
        with pytest.raises(BlockingIOError):
            while len(crowd) < 10_000:
                knock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                crowd.append(knock)
                knock.setblocking(False)
                knock.connect(str(cluster.data / CONTROL_SOCKET))
        with psycopg.connect(cluster.direct(), autocommit=True) as session:
            session.execute("SET statement_timeout = '500ms'")
            with pytest.raises(psycopg.errors.QueryCanceled):
                session.execute("SELECT * FROM pg_baton_pools")
    finally:
        os.kill(pid, signal.SIGCONT)
        for knock in crowd:
            knock.close()
    wait_until(lambda: cluster.sql("SELECT count(*) FROM pg_baton_dispatchers") == [(1,)], what="it answers again")
    assert_healthy(cluster)


def test_next_launcher_takes_over_the_dispatcher_of_an_ended_one(cluster):
    """The next launcher also notices its end: an adopted dispatcher that dies is replaced like any other."""
    cluster.expect_in_log(r"terminating background worker \"pg_baton launcher\"")
    with login(cluster) as session:
        session.query("SET my.number = '1'")
        (dispatcher,) = cluster.dispatcher_pids()
        cluster.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'pg_baton launcher'")
        cluster.wait_for_takeover(dispatcher)
        assert cluster.dispatcher_pids() == [dispatcher]
        assert session.query("SHOW my.number") == [["1"]]
    os.kill(dispatcher, signal.SIGKILL)
    wait_for_next_dispatcher(cluster, dispatcher)
    assert_healthy(cluster)


def test_login_while_the_launcher_is_replaced_waits_for_the_next(cluster):
    """On the server's own port no client notices that the launcher has ended."""
    cluster.expect_in_log(r"terminating background worker \"pg_baton launcher\"")
    (dispatcher,) = cluster.dispatcher_pids()
    # A role that the pool knows, and a role that it does not know.
    login(cluster).finish()
    cluster.sql("CREATE ROLE new_one LOGIN")
    with cluster.new_log() as log:
        cluster.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'pg_baton launcher'")
        wait_until(lambda: "the launcher has gone" in log(), what="it has gone")
        for options in ({}, {"user": "new_one"}):
            with login(cluster, **options) as session:
                assert session.query("SELECT 1") == [["1"]]
    cluster.wait_for_takeover(dispatcher)
    assert_healthy(cluster)


def test_killed_launcher_restarts_server_and_the_pool_comes_back(cluster):
    cluster.expect_in_log(*CRASH)
    launchers = [p.pid for p in cluster.processes() if p.command.startswith("postgres: pg_baton launcher")]
    assert len(launchers) == 1, cluster.processes()
    with login(cluster) as session:
        session.query("SELECT 1")
        os.kill(launchers[0], signal.SIGKILL)
        wait_for_crash_restart(cluster)
    wait_until(lambda: len(cluster.dispatcher_pids()) == 1, what="one dispatcher")
    assert_healthy(cluster)


@pytest.mark.parametrize("mode", ["smart", "fast", "immediate"])
def test_server_stopped_while_sessions_are_there(cluster, mode):
    idle = [login(cluster) for _ in range(6)]
    for session in idle:
        session.query("SELECT 1")
    busy = login(cluster)
    if mode != "smart":
        busy.query("BEGIN")
    started = time.monotonic()
    number = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode]
    cluster.process.send_signal(number)
    if mode == "smart":
        # A smart shutdown waits for clients; clients of the pool are told at
        # once or served to their end, but the shutdown must come to an end.
        time.sleep(0.5)
        busy.finish()
        for session in idle[:3]:
            session.finish()
    for session in idle[3 if mode == "smart" else 0 :] + ([] if mode == "smart" else [busy]):
        codes = ends_with(session)
        assert set(codes) <= {"57P01", "57P02"}, codes
        if mode != "immediate":
            assert codes, "the client was not told why"
        session.close()
    cluster.process.wait(60)
    wait_until(lambda: processes_in(cluster.data) == [], what="no process left")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", cluster.pool_port)) != 0
    assert time.monotonic() - started < 60
    cluster.stop()
    cluster.start()
    assert_serves(cluster)


def test_server_stopped_under_load_and_started_again(cluster):
    with Load(cluster, 10) as load:
        for mode in ("fast", "immediate"):
            load.wait_for_answers()
            cluster.stop(mode)
            cluster.start()
            load.wait_for_answers()
    assert load.wrong == []
    assert_healthy(cluster)


def test_postmaster_killed_leaves_nothing_running(cluster):
    with Load(cluster, 4) as load:
        load.wait_for_answers(50)
        os.kill(cluster.postmaster_pid(), signal.SIGKILL)
        cluster.process.wait(60)
        load.stopping.set()
    wait_until(lambda: processes_in(cluster.data) == [], what="no process left")
    cluster.process = None
    for name in ("postmaster.pid",):
        (cluster.data / name).unlink(missing_ok=True)
    for leftover in cluster.home.glob(".s.PGSQL.*"):
        leftover.unlink()
    cluster.start()
    assert_serves(cluster)


@counts_descriptors
def test_descriptor_limit_refuses_new_clients_and_serves_others(make_cluster):
    """When the dispatcher's descriptors run out, it does not spin, clients that are
    logged in are served, and later clients get in when others have left."""
    cluster = make_cluster(start=False, parameters={"pg_baton.max_backends": 3})
    wrapper = cluster.home / "limited"
    program = cluster.parameters.get("pg_baton.dispatcher_program") or cluster.run.stage.program
    # each further thread has an epoll; the keeper needs five more; clients that log in at the end may come before others are forgotten
    limit = 74 + 4 * int(cluster.parameters.get("pg_baton.dispatchers", 1))
    wrapper.write_text(f'#!/bin/sh\nulimit -n {limit}\nexec "{program}" "$@"\n')
    wrapper.chmod(0o755)
    cluster.set_parameters({"pg_baton.dispatcher_program": wrapper})
    cluster.start()
    cluster.sql("CREATE EXTENSION pg_baton")
    sessions: list[Wire] = []
    crowd: list[Wire] = []
    try:
        with pytest.raises(LoginFailed) as refused:
            for _ in range(limit):
                sessions.append(login(cluster))
        assert refused.value.fields["C"] == "53300"
        assert refused.value.fields["M"] == "sorry, too many clients already"
        # a client that asks for encryption first sees the text as well
        with pytest.raises(psycopg.OperationalError, match="sorry, too many clients already"):
            psycopg.connect(cluster.pool(), sslmode="prefer")
        # (on TCP the kernel keeps back clients that send nothing)
        crowd = [Wire.open(str(cluster.home), cluster.pool_port) for _ in range(100)]
        # more clients than the dispatcher can listen to: they get the error without a request
        assert ends_with(crowd[-1]) == ["53300"]
        for session in sessions:
            assert session.query("SELECT 1") == [["1"]]
        assert_nothing_spins(cluster)
        # the dispatcher does not wait long for a client that sends no request
        for silent in crowd:
            silent.until_closed(20)
        for session in sessions:
            assert session.query("SELECT 2") == [["2"]]
    finally:
        for wire in crowd:
            wire.close()
        for session in sessions:
            session.finish()
    # Few clients fit in: the first client to come back must not find clients that are still leaving.
    wait_until(
        lambda: cluster.sql("SELECT count(*) FROM pg_baton_sessions") == [(0,)], what="the crowd's sessions have ended"
    )
    wait_until(lambda: _can_log_in(cluster), what="a client gets in again")
    assert_healthy(cluster)


def _can_log_in(cluster) -> bool:
    try:
        Wire.login("127.0.0.1", cluster.pool_port, timeout_s=5).finish()
        return True
    except Exception:
        return False


def test_a_library_that_is_not_preloaded_leaves_a_plain_server(make_cluster):
    cluster = make_cluster(start=False, parameters={"shared_preload_libraries": ""})
    cluster.start(wait_for_pool=False)
    assert cluster.sql("SELECT 1") == [(1,)]


def test_taken_port_is_reported_in_the_log_and_the_server_runs(make_cluster):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        cluster = make_cluster(start=False, parameters={"pg_baton.port": taken.getsockname()[1]})
        cluster.start(wait_for_pool=False)
        assert cluster.sql("SELECT 1") == [(1,)]
        cluster.wait_for_log(rf"{taken.getsockname()[1]}")
        assert_nothing_spins(cluster)


def test_missing_dispatcher_program_is_reported_in_the_log(make_cluster):
    cluster = make_cluster(start=False, parameters={"pg_baton.dispatcher_program": "/nowhere/baton"})
    cluster.start(wait_for_pool=False)
    assert cluster.sql("SELECT 1") == [(1,)]
    cluster.wait_for_log(r"/nowhere/baton")
    assert_nothing_spins(cluster)


def test_ps_shows_the_dispatcher_with_its_cluster_s_name(make_cluster):
    cluster = make_cluster(parameters={"cluster_name": "15/main"})
    (dispatcher,) = cluster.dispatcher_pids()
    assert Path(f"/proc/{dispatcher}/cmdline").read_bytes() == b"baton-dispatcher: 15/main\0"
