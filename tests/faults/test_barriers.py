"""A statement that waits until all processes of the server have taken notice
(DROP DATABASE does, by a barrier) does not wait for a process that waits for the
dispatcher, nor for a process that was just starting; and a backend that is told
to end does not wait for the dispatcher either."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.control_memory import ControlMemory, constant
from harness.debugger import needs_gdb
from harness.health import assert_healthy, stop, wait_until
from harness.wire import Closed, Wire, query, startup

HOST = "127.0.0.1"

pytestmark = pytest.mark.pool_only


@pytest.fixture
def cluster(make_cluster):
    cluster = make_cluster(parameters={"pg_baton.max_backends": 3})
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.sql("CREATE DATABASE wanted")
    return cluster


@contextlib.contextmanager
def dispatcher_stopped(cluster) -> Iterator[None]:
    (pid,) = cluster.dispatcher_pids()
    stop(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def drop(cluster) -> None:
    """Drops the database; the statement must come to an end."""
    with Wire.login(HOST, cluster.port, timeout_s=30) as admin:
        admin.query("DROP DATABASE wanted", timeout_s=30)


def is_asleep(pid: int) -> bool:
    """True if the process has been in a wait of the kernel for a second or longer."""

    def switches() -> str:
        status = Path(f"/proc/{pid}/status").read_text()
        return "".join(line for line in status.splitlines() if line.startswith(("State", "voluntary")))

    before = switches()
    time.sleep(1)
    return "sleeping" in before and before == switches()


def test_backend_that_is_not_welcomed_holds_up_no_barrier(cluster):
    """The backend attaches in the same way as a backend that the dispatcher opens."""
    memory = ControlMemory(cluster)
    slot = memory.header.backend_slots - 1
    words = memory.backend_slot(slot)
    with dispatcher_stopped(cluster), Wire.open(HOST, cluster.port) as wire:
        words.attach_token, words.state = 1, constant("BATON_BACKEND_STARTING")
        options = f"-c pg_baton.attach={slot}:1:10:0"
        wire.send(startup({"user": "postgres", "database": "postgres", "options": options, "_pq_.pg_baton": ""}))
        # the backend is welcomed, or not, after its first ReadyForQuery
        wire.until_ready(20)
        wait_until(lambda: is_asleep(words.pid), what="a backend waits for its welcome")
        drop(cluster)
        os.kill(words.pid, signal.SIGTERM)
        assert [m.fields()["C"] for m in wire.until_closed(20) if m.type == "E"] == ["57P01"]
    assert_healthy(cluster)


def one_waits(cluster) -> bool:
    """Does the backend that gives this session back wait for the dispatcher?"""
    shown = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'Extension' AND backend_type = 'client backend'"
    return cluster.sql(shown) == [(1,)]


def no_room(cluster, session) -> int:
    """A backend gives this session back, and has more to send to the stopped dispatcher than
    the socket between them holds.  Returns the backend's process ID."""
    ((pid, _, _),) = [m.row() for m in session.until_ready(20) if m.type == "D"]
    wait_until(lambda: one_waits(cluster), what="it waits for room")
    return int(pid)


@contextlib.contextmanager
def much_to_tell(cluster) -> Iterator[Wire]:
    # the session is given back after its first transaction (pass_baton in idle.c)
    with Wire.login(HOST, cluster.pool_port) as session:
        large = "length(set_config('my.large', repeat('x', 3000000), false))"
        session.send(query(f"SELECT harness.its_process(), {large}, pg_sleep(1)"))
        wait_until(
            lambda: cluster.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == [(1,)],
            what="it runs",
        )
        yield session


def test_backend_without_room_to_send_holds_up_no_barrier(cluster):
    with much_to_tell(cluster) as session:
        with dispatcher_stopped(cluster):
            no_room(cluster, session)
            drop(cluster)
        assert session.query("SELECT length(current_setting('my.large'))") == [["3000000"]]
    assert_healthy(cluster)


@pytest.mark.parametrize("by", ["its process", "its session"])
def test_backend_without_room_to_send_ends_when_terminated(cluster, by):
    with much_to_tell(cluster) as session:
        with dispatcher_stopped(cluster):
            pid = no_room(cluster, session)
            number = pid if by == "its process" else session.backend_pid
            assert cluster.sql(f"SELECT pg_terminate_backend({number})") == [(True,)]
            wait_until(lambda: not Path(f"/proc/{pid}").exists(), what="it has ended")
        # the session's change is lost, and the session must not go on without it
        with pytest.raises((Closed, OSError)):
            session.query("SELECT current_setting('my.large')")
    assert_healthy(cluster)


def test_backend_without_room_to_send_ends_when_the_server_stops(cluster):
    with much_to_tell(cluster) as session:
        (dispatcher,) = cluster.dispatcher_pids()
        stop(dispatcher)
        no_room(cluster, session)
        try:
            cluster.process.send_signal(signal.SIGINT)
            # the postmaster ends when no backend is left
            cluster.process.wait(30)
        finally:
            os.kill(dispatcher, signal.SIGCONT)
        cluster.stop()
        with pytest.raises((Closed, OSError)):
            session.query("SELECT 1")


# Stops a starting process where it has noted the generation of the barriers, and receives
# no signal yet: when ProcSignalInit() (procsignal.c) is about to set MyProcSignalSlot, the
# last variable that the function writes; the spinlock of the slot (18) is free.
STOP_IN_START = """
set pagination off
set breakpoint pending off
set follow-fork-mode child
set detach-on-fork on
handle SIGUSR1 SIGUSR2 SIGALRM SIGTERM SIGCHLD nostop noprint pass
break ProcSignalInit
shell touch {directory}/attached
continue
delete breakpoints
python
import re
start = int(gdb.parse_and_eval("$pc"))
code = gdb.selected_frame().architecture().disassemble(start, count=200)
end = next(n for n, one in enumerate(code) if "on_shmem_exit" in one["asm"])
# of x86-64; elsewhere the last memory barrier, which is near enough up to 17
stores = [one["addr"] for one in code[:end] if re.match(r"mov +%\\w+,0x\\w+\\(%rip\\)", one["asm"])]
barriers = [one["addr"] for one in code[:end] if one["asm"].startswith(("mfence", "dmb"))]
gdb.execute("break *%d" % (stores or barriers)[-1])
end
continue
delete breakpoints
shell touch {directory}/reached
shell while [ -d {directory} ] && [ ! -e {directory}/go ]; do sleep 0.02; done
detach
"""


@needs_gdb
def test_process_that_was_just_starting_holds_up_no_barrier(cluster):
    """The race is the server's own (pg_process.c): a direct connection has it as well."""
    dropped = threading.Event()
    with tempfile.TemporaryDirectory() as name, Wire.login(HOST, cluster.port) as witness:
        directory = Path(name)
        script = directory / "commands"
        script.write_text(STOP_IN_START.format(directory=name))
        admin = Wire.login(HOST, cluster.port)
        debugger = subprocess.Popen(
            ["gdb", "-p", str(cluster.postmaster_pid()), "-batch", "-nx", "-x", str(script)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until((directory / "attached").exists, what="gdb is attached")
            late: list[list[list[str | None]]] = []

            def come() -> None:
                with Wire.login(HOST, cluster.port) as starting:
                    late.append(starting.query("SELECT 1"))
                    dropped.wait(60)

            coming = threading.Thread(target=come)
            coming.start()
            wait_until((directory / "reached").exists, what="a process is about to enter itself")
            admin.send(query("DROP DATABASE wanted"))
            wait_until(
                lambda: (
                    witness.query("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ProcSignalBarrier'")
                    == [["1"]]
                ),
                what="the statement waits for the others",
            )
            (directory / "go").touch()
            debugger.wait(30)
            assert [m.type for m in admin.until_ready(20)] == ["C", "Z"]
            dropped.set()
            coming.join(30)
            assert late == [[["1"]]]
        finally:
            (directory / "go").touch()
            debugger.kill()
            debugger.wait()
            admin.close()
    assert_healthy(cluster)
