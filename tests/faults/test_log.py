"""The dispatcher's log: a collector that takes nothing, and a file that takes all."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
from pathlib import Path

import pytest
from harness.health import assert_healthy, stop, wait_for_next_dispatcher, wait_until
from harness.processes import processes_in
from harness.wire import Wire

pytestmark = pytest.mark.pool_only

# A pipe holds 64 kB; the dispatcher logs two lines for each login, with this name.
LOGINS = 600
NAME = "x" * 60
# sys/ptrace.h
PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207


def test_a_log_that_takes_nothing_holds_up_no_session(make_cluster):
    """On a direct connection, a backend with a line to log would wait for the collector;
    a line of the dispatcher must not make all sessions wait."""
    cluster = make_cluster(
        parameters={
            "pg_baton.max_backends": 2,
            "logging_collector": True,
            "log_directory": "collected",
            "log_filename": "server.log",
            "log_rotation_age": 0,
            "log_connections": True,
            "log_disconnections": True,
        }
    )

    cluster.sql("CREATE EXTENSION pg_baton")

    def login() -> Wire:
        return Wire.login("127.0.0.1", cluster.pool_port, application_name=NAME)

    def collected() -> str:
        return (cluster.data / "collected" / "server.log").read_text()

    (collector,) = [p.pid for p in processes_in(cluster.data) if "logger" in p.command]
    with login() as one, login() as other:
        assert one.query("SELECT 1") == other.query("SELECT 1") == [["1"]]
        before = collected().count("connection authorized")
        stop(collector)
        try:
            for number in range(LOGINS):
                with login() as passing:
                    assert passing.query(f"SELECT {number}") == [[str(number)]]
            assert one.query("SELECT 2") == other.query("SELECT 2") == [["2"]]
            for number in range(20):
                # The launcher, which is asked about each new name, does not wait for the log either.
                with Wire.open("127.0.0.1", cluster.pool_port) as refused:
                    assert refused.log_in(f"unknown {number}", "postgres")[-1].type == "E"
        finally:
            os.kill(collector, signal.SIGCONT)
        # The lines are few enough that none is lost.
        wait_until(
            lambda: collected().count("connection authorized") >= before + LOGINS,
            what="the lines that waited are written",
        )
    assert_healthy(cluster)


def log_writer(cluster) -> int:
    """The process that writes the dispatcher's lines, once it is there."""
    found: list[int] = []

    def is_there() -> bool:
        found[:] = [p.pid for p in cluster.processes() if "pg_baton log writer" in p.command]
        return len(found) == 1

    wait_until(is_there, what="a log writer")
    return found[0]


def refuse(cluster, user: str) -> None:
    with Wire.open("127.0.0.1", cluster.pool_port) as wire:
        assert wire.log_in(user, "postgres")[-1].type == "E"


NUMBERS = itertools.count()


def is_server_s(cluster) -> bool:
    """A login fails; whether its line is of the log writer, with a log_line_prefix."""
    user = f"user {next(NUMBERS)}"  # a line of the same role might be left out
    with cluster.new_log() as log:
        refuse(cluster, user)
        wait_until(lambda: f'role "{user}" does not exist' in log(), what="its line")
        return f'{user}@postgres FATAL:  role "{user}" does not exist' in log()


def test_without_a_log_writer_lines_go_to_standard_error(make_cluster):
    """None is lost, and the next log writer writes them again."""
    cluster = make_cluster(parameters={"pg_baton.max_backends": 2, "log_line_prefix": "%m [%p] %u@%d "})
    cluster.sql("CREATE EXTENSION pg_baton")
    wait_until(lambda: is_server_s(cluster), what="lines of the log writer")
    before = log_writer(cluster)
    stop(before)
    os.kill(before, signal.SIGTERM)
    with cluster.new_log() as log:
        for number in range(5):
            refuse(cluster, f"held {number}")
        os.kill(before, signal.SIGCONT)
        wait_until(lambda: all(f'role "held {n}" does not exist' in log() for n in range(5)), what="lines are written")
        for number in range(5):
            assert log().count(f'role "held {number}" does not exist') == 1
    cluster.expect_in_log('background worker "pg_baton log writer"')
    wait_until(lambda: before not in [p.pid for p in cluster.processes()], what="it has ended")
    assert not is_server_s(cluster) or log_writer(cluster) != before
    wait_until(lambda: is_server_s(cluster), what="lines of the next log writer")
    assert log_writer(cluster) != before
    assert_healthy(cluster)


def test_a_new_dispatcher_s_lines_come_through_the_log_writer(make_cluster):
    cluster = make_cluster(parameters={"pg_baton.max_backends": 2, "log_line_prefix": "%m [%p] %u@%d "})
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.expect_in_log(r"dispatcher \(PID \d+\) has ended: child process was terminated by signal 9")
    wait_until(lambda: is_server_s(cluster), what="lines of the log writer")
    writer = log_writer(cluster)
    (dispatcher,) = cluster.dispatcher_pids()
    os.kill(dispatcher, signal.SIGKILL)
    wait_for_next_dispatcher(cluster, dispatcher)
    wait_until(lambda: is_server_s(cluster), what="lines of the log writer")
    assert log_writer(cluster) == writer
    assert_healthy(cluster)


def test_a_stopping_server_s_last_lines_are_in_the_csvlog(make_cluster):
    cluster = make_cluster(
        parameters={
            "pg_baton.max_backends": 2,
            "logging_collector": True,
            "log_destination": "csvlog",
            "log_directory": "collected",
            "log_filename": "server.log",
        }
    )
    with Wire.login("127.0.0.1", cluster.pool_port) as idle:
        idle.query("SELECT 1")
        cluster.stop()
    text = (cluster.data / "collected" / "server.csv").read_text()
    assert "pg_baton: shutting down: the server is stopping" in text
    assert "pg_baton: shut down" in text


def halt(thread: int) -> None:
    """Halts it until this process or the thread's process ends; SIGSTOP would halt the whole process."""
    libc = ctypes.CDLL(None, use_errno=True)
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        assert libc.ptrace(request, thread, None, None) == 0, os.strerror(ctypes.get_errno())


def test_a_log_file_has_the_line_of_a_login_that_was_answered(make_cluster):
    """Where there is no place for a log writer, the dispatcher writes lines itself, and before it answers:
    a thread of its own would do so later, on a busy machine."""
    cluster = make_cluster(
        parameters={
            "pg_baton.max_backends": 2,
            "log_connections": True,
            "max_worker_processes": 1,
            "max_logical_replication_workers": 0,
        }
    )
    assert not [p for p in cluster.processes() if "log writer" in p.command]
    (dispatcher,) = cluster.dispatcher_pids()
    for comm in Path(f"/proc/{dispatcher}/task").glob("*/comm"):
        if comm.read_text() == "log\n":
            halt(int(comm.parent.name))
    with cluster.new_log() as log, Wire.login("127.0.0.1", cluster.pool_port, application_name=NAME):
        assert f"application_name={NAME}" in log()
