"""The usual checks of a port, pg_isready and HAProxy's pgsql-check, tell a pool that hangs from one that serves, and
are no failed logins."""

from __future__ import annotations

import os
import signal
import socket
import subprocess

import pytest
from harness.account import server_program
from harness.health import stop, wait_until
from harness.patroni import HAProxy
from harness.ports import HOST, free_port

pytestmark = [pytest.mark.pool_only, pytest.mark.one_major]

HAPROXY = """
listen pool
    bind {host}:{port}
    option pgsql-check user haproxy
    default-server inter 200ms fall 2 rise 2
    server one {host}:{pool_port} check
"""


@pytest.fixture
def pool(make_cluster):
    """With a password for two roles that do not exist: HAProxy is content when it is asked for one."""
    cluster = make_cluster(
        parameters={"pg_baton.hang_limit_ms": 0}, hba=["host all haproxy,isready 127.0.0.1/32 scram-sha-256"]
    )
    cluster.sql("CREATE EXTENSION pg_baton")
    return cluster


def haproxy_of(pool, directory) -> HAProxy:
    return HAProxy(directory / "haproxy", HAPROXY.format(host=HOST, port=free_port(), pool_port=pool.pool_port))


def pg_isready(pool) -> int:
    command = [server_program("pg_isready"), "-t", "1", "-h", HOST, "-p", str(pool.pool_port), "-U", "isready"]
    return subprocess.run(command, stdout=subprocess.DEVNULL, timeout=20).returncode


def not_let_in(pool) -> list[int]:
    ((failed, abandoned),) = pool.sql("SELECT logins_failed, logins_abandoned FROM pg_baton_dispatchers")
    return [failed, abandoned]


def test_checks_of_the_port_notice_a_pool_that_hangs(pool, tmp_path):
    """Not so a TCP check: a connection is made by the kernel for as long as it has room in the listening socket's queue."""
    (dispatcher,) = pool.dispatcher_pids()
    with haproxy_of(pool, tmp_path) as haproxy:
        wait_until(lambda: haproxy.status("pool", "one") == "UP", what="HAProxy sees the pool")
        assert pg_isready(pool) == 0
        stop(dispatcher)
        try:
            socket.create_connection((HOST, pool.pool_port), timeout=5).close()
            assert pg_isready(pool) == 2
            wait_until(lambda: haproxy.status("pool", "one") == "DOWN", what="HAProxy sees that it hangs")
        finally:
            os.kill(dispatcher, signal.SIGCONT)
        wait_until(lambda: haproxy.status("pool", "one") == "UP", what="HAProxy sees the pool again")
        assert pg_isready(pool) == 0


def test_checks_of_the_port_are_no_failed_logins(pool, tmp_path):
    before = not_let_in(pool)
    with haproxy_of(pool, tmp_path) as haproxy:
        wait_until(lambda: haproxy.status("pool", "one") == "UP", what="HAProxy sees the pool")
    assert pg_isready(pool) == 0
    wait_until(lambda: not_let_in(pool)[1] >= before[1] + 2, what="the checks are counted")
    assert not_let_in(pool)[0] == before[0]
