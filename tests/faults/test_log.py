"""A log that takes nothing: the collector is stopped, or its disk is full."""

from __future__ import annotations

import os
import signal

import pytest

from harness.health import assert_healthy, stop, wait_until
from harness.processes import processes_in
from harness.wire import Wire

pytestmark = pytest.mark.pool_only

# A pipe holds 64 kB: each login is two lines of the dispatcher's with its name.
LOGINS = 600
NAME = "x" * 60


def test_a_log_that_takes_nothing_holds_up_no_session(make_cluster):
    """Directly, backends that have something to log would wait for the collector;
    one line of the dispatcher's must not have all sessions wait."""
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
        # None of so few is lost.
        wait_until(
            lambda: collected().count("connection authorized") >= before + LOGINS,
            what="the lines that waited are written",
        )
    assert_healthy(cluster)
