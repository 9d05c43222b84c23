"""pg_baton repeats a call that the kernel refuses for a moment, and no session loses anything."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.account import become_server_user, run_as_server_user
from harness.cluster import CONTROL_SOCKET
from harness.health import assert_healthy, assert_nothing_spins, stop, wait_until
from harness.plain import counts_descriptors
from harness.wire import Wire, query, startup

HOST = "127.0.0.1"

pytestmark = pytest.mark.pool_only


@contextlib.contextmanager
def dispatcher_limited(cluster, descriptors: int) -> Iterator[None]:
    """The dispatcher gets no descriptor of that number or above."""
    (pid,) = cluster.dispatcher_pids()
    line = next(one for one in Path(f"/proc/{pid}/limits").read_text().splitlines() if "open files" in one)
    before = line.split()[3]
    run_as_server_user(["prlimit", f"--pid={pid}", f"--nofile={descriptors}:"])
    try:
        yield
    finally:
        run_as_server_user(["prlimit", f"--pid={pid}", f"--nofile={before}:"])


@counts_descriptors
def test_dispatcher_that_can_accept_no_client_does_not_spin(make_cluster):
    """The descriptor that the dispatcher keeps for this case cannot be used either."""
    cluster = make_cluster(parameters={"pg_baton.max_backends": 2})
    cluster.sql("CREATE EXTENSION pg_baton")
    with Wire.login(HOST, cluster.pool_port) as session, Wire.open(HOST, cluster.pool_port) as late:
        session.query("SELECT 1")
        with dispatcher_limited(cluster, 3):
            late.send(startup({"user": "postgres", "database": "postgres"}))
            stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            directory = os.open(cluster.data, os.O_DIRECTORY)
            stranger.connect(f"/proc/self/fd/{directory}/{CONTROL_SOCKET}")
            os.close(directory)
            cluster.wait_for_log("could not accept new connections: .*Too many open files")
            assert_nothing_spins(cluster)
            assert session.query("SELECT 2") == [["2"]]
        late.until_ready(20)
        assert late.query("SELECT 3") == [["3"]]
        stranger.close()
    assert_healthy(cluster)


@contextlib.contextmanager
def one_under_way() -> Iterator[None]:
    """The server's user has sent a descriptor that no process has received."""
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            become_server_user()
            one, other = socket.socketpair()
            socket.send_fds(one, [b"x"], [other.fileno()])
            os.write(go, b"x")
            while True:
                signal.pause()
        finally:
            os._exit(1)
    try:
        assert os.read(ready, 1) == b"x"
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(go)


@pytest.mark.parametrize("to", ["a backend", "the queue"])
def test_too_many_descriptors_under_way_cost_no_backend(make_cluster, to):
    """ETOOMANYREFS: the kernel counts the descriptors under way by user."""
    cluster = make_cluster(parameters={"pg_baton.max_backends": 1, "pg_baton.dispatcher_log": "debug"})
    cluster.sql("CREATE EXTENSION pg_baton")
    with Wire.login(HOST, cluster.pool_port) as session, Wire.login(HOST, cluster.pool_port) as busy:
        session.query("SELECT 1")
        busy.query("SELECT 1")
        if to == "the queue":
            busy.query("BEGIN")
        else:
            wait_until(lambda: cluster.sql("SELECT state FROM pg_baton_backends") == [("idle",)], what="it is free")
        before = cluster.sql("SELECT pid FROM pg_baton_backends")
        with dispatcher_limited(cluster, 0), one_under_way():
            session.send(query("SELECT 2"))
            cluster.wait_for_log("could not be sent, it waits a moment: Too many references")
            assert_nothing_spins(cluster)
        if to == "the queue":
            busy.query("COMMIT")
        assert [m.row() for m in session.until_ready(20) if m.type == "D"] == [[b"2"]]
        assert cluster.sql("SELECT pid FROM pg_baton_backends") == before
    assert_healthy(cluster)


def test_server_with_a_full_backlog_is_asked_again_the_same_way(make_cluster):
    """Over TCP this role may not log in: the pool must not take that for the answer."""
    cluster = make_cluster(parameters={"pg_baton.max_backends": 2}, hba=["host all guest all reject"])
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.sql("CREATE ROLE guest LOGIN")
    postmaster = cluster.postmaster_pid()
    crowd: list[socket.socket] = []
    stop(postmaster)
    try:
        with pytest.raises(BlockingIOError):
            for _ in range(10000):
                crowd.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
                crowd[-1].connect(str(cluster.home / f".s.PGSQL.{cluster.port}"))
        with Wire.open(str(cluster.home), cluster.pool_port) as guest:
            # a database that has no backend yet
            guest.send(startup({"user": "guest", "database": "template1"}))
            cluster.wait_for_log("could not connect to the server: Resource temporarily unavailable")
            for one in crowd:
                one.close()
            os.kill(postmaster, signal.SIGCONT)
            assert guest.until_ready(30)[-1].type == "Z"
            assert guest.query("SELECT current_user") == [["guest"]]
    finally:
        os.kill(postmaster, signal.SIGCONT)
        for one in crowd:
            one.close()
    assert_healthy(cluster)


def test_a_start_with_too_few_descriptors_is_logged(make_cluster):
    cluster = make_cluster(parameters={"pg_baton.max_sessions": 1000, "max_connections": 50})
    ((launcher,),) = cluster.sql("SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'pg_baton%'")
    run_as_server_user(["prlimit", f"--pid={launcher}", "--nofile=1024:1024"])
    (dispatcher,) = cluster.dispatcher_pids()
    cluster.expect_in_log("dispatcher .* terminated by signal 9")
    os.kill(dispatcher, signal.SIGKILL)
    line = cluster.wait_for_log("WARNING:  pg_baton: the limit of open files .*")
    assert "(1024) suffices for 724 sessions, or 362 by TLS; pg_baton.max_sessions is 1000" in line
