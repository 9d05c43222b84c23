"""The dispatcher's log: a collector that takes nothing, and a file that takes all."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

import pytest
from harness.health import assert_healthy, stop, wait_until
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
        finally:
            os.kill(collector, signal.SIGCONT)
        # The lines are few enough that none is lost.
        wait_until(
            lambda: collected().count("connection authorized") >= before + LOGINS,
            what="the lines that waited are written",
        )
    assert_healthy(cluster)


def halt(thread: int) -> None:
    """Halts it until this process or the thread's process ends; SIGSTOP would halt the whole process."""
    libc = ctypes.CDLL(None, use_errno=True)
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        assert libc.ptrace(request, thread, None, None) == 0, os.strerror(ctypes.get_errno())


def test_a_log_file_has_the_line_of_a_login_that_was_answered(make_cluster):
    """As on a direct connection, a client that looks after its answer finds the line (PostgreSQL's own
    tests do). A thread of its own would write the line later, on a busy machine."""
    cluster = make_cluster(parameters={"pg_baton.max_backends": 2, "log_connections": True})
    (dispatcher,) = cluster.dispatcher_pids()
    for comm in Path(f"/proc/{dispatcher}/task").glob("*/comm"):
        if comm.read_text() == "log\n":
            halt(int(comm.parent.name))
    with cluster.new_log() as log, Wire.login("127.0.0.1", cluster.pool_port, application_name=NAME):
        assert f"application_name={NAME}" in log()
