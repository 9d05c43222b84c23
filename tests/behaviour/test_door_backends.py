"""Connections that have not logged in, while the server works for them: a backend
authenticates the client, or the server is to give it a backend of its own or to take
its cancel request. The limits hold for these connections as well."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from harness.cluster import HOST
from harness.health import stop, wait_until
from harness.slow_ldap import SlowLdap
from harness.wire import Wire, cancel, query, startup

pytestmark = pytest.mark.pool_only

HBA = ["host all by_scram all scram-sha-256", "host replication by_scram all scram-sha-256"]
ELSEWHERE = "127.0.0.2"
MOST = 10
WAYS = {
    "a_backend_authenticates_it": ({"login": "server"}, {"database": "postgres"}),
    "a_backend_becomes_its_own": ({"native_dbuser_names": "native/*"}, {"database": "native"}),
    "a_wal_sender_becomes_its_own": ({}, {"replication": "true"}),
}


@pytest.fixture
def door(make_cluster):
    def make(server: dict[str, object] | None = None, **limits: object):
        parameters = {f"pg_baton.{name}": value for name, value in limits.items()}
        cluster = make_cluster(
            hba=HBA, parameters={"pg_baton.max_backends": 4, "max_wal_senders": 40, **parameters, **(server or {})}
        )
        cluster.sql("CREATE EXTENSION pg_baton")
        cluster.sql("CREATE ROLE by_scram LOGIN REPLICATION PASSWORD 'correct'")
        cluster.sql("CREATE DATABASE native")
        return cluster

    return make


def is_closed(wire: Wire) -> bool:
    wire.sock.settimeout(20)
    with contextlib.suppress(ConnectionResetError):
        return wire.sock.recv(100) == b""
    return True


def ask(cluster, who: dict[str, str]) -> Wire:
    """A connection that has been asked for its password."""
    wire = Wire.open(HOST, cluster.pool_port)
    wire.send(startup({"user": "by_scram", **who}))
    assert wire.read().type == "R"
    return wire


def logs_in(cluster, who: dict[str, str]) -> None:
    database = who.get("database", "")
    options = {key: value for key, value in who.items() if key != "database"}
    Wire.login(HOST, cluster.pool_port, user="by_scram", password="correct", database=database, **options).leave()


def logins(cluster) -> int:
    return cluster.sql("SELECT connections - sessions FROM pg_baton_dispatchers")[0][0]


@pytest.mark.parametrize("way", WAYS)
def test_clients_that_say_nothing_to_a_backend_keep_no_login_out(door, way):
    limits, who = WAYS[way]
    cluster = door(max_unauthenticated=MOST, **limits)
    silent = []
    for _ in range(4 * MOST):
        silent.append(ask(cluster, who))
        assert logins(cluster) <= MOST
    logs_in(cluster, who)
    logs_in(cluster, {"database": "postgres"})
    assert all(is_closed(one) for one in silent[: 3 * MOST])
    for one in silent:
        one.close()
    wait_until(lambda: logins(cluster) == 0, what="nobody logs in any more")


@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_was_let_in_is_no_login_any_more(door, way):
    limits, who = WAYS[way]
    cluster = door(max_unauthenticated=MOST, **limits)
    database = who.get("database", "")
    options = {key: value for key, value in who.items() if key != "database"}
    inside = [
        Wire.login(HOST, cluster.pool_port, user="by_scram", password="correct", database=database, **options)
        for _ in range(MOST // 2)
    ]
    assert logins(cluster) == 0
    silent = [ask(cluster, who) for _ in range(MOST + 2)]
    for wire in [*inside, *silent]:
        wire.close()
    wait_until(lambda: logins(cluster) == 0, what="nobody logs in any more")


def test_a_burst_of_slow_logins_all_get_in_a_few_at_a_time(make_cluster):
    """All come from one address. Each login takes longer than a client may owe an answer, and there
    are many times as many logins as may be under way."""
    with SlowLdap(1.2) as ldap:
        cluster = make_cluster(
            hba=[ldap.line("by_ldap")], parameters={"pg_baton.max_backends": 2, "max_connections": 40}
        )
        cluster.sql("CREATE ROLE by_ldap LOGIN")

        def log_in(_: int) -> Wire:
            return Wire.login(HOST, cluster.pool_port, user="by_ldap", password="any", timeout_s=60)

        with ThreadPoolExecutor(24) as threads:
            sessions = list(threads.map(log_in, range(24)))
        for session in sessions:
            assert session.query("SELECT current_user") == [["by_ldap"]]
            session.close()
        # an eighth of max_connections, less the places kept for other addresses
        assert 1 < ldap.most <= 40 // 8


@pytest.mark.parametrize("way", WAYS)
def test_a_client_may_answer_slowly_while_no_login_waits(door, way):
    limits, who = WAYS[way]
    cluster = door(**limits)
    with ask(cluster, who) as slow:
        time.sleep(2)
        logs_in(cluster, who)
        assert slow.silent(0.1)
        wait_until(lambda: logins(cluster) == 1, what="the slow one alone logs in")


def test_a_login_at_a_backend_hears_nothing_else_at_server_stop(door):
    limits, who = WAYS["a_backend_authenticates_it"]
    cluster = door(**limits)
    with ask(cluster, who) as wire:
        cluster.stop("fast")
        # as on the server's own port
        assert wire.until_closed() == []


def test_a_native_login_waits_for_a_lock_as_on_the_server_s_port(door):
    cluster = door({"authentication_timeout": "1s"}, native_dbuser_names="native/*")
    with psycopg.connect(cluster.direct()) as locker, contextlib.ExitStack() as stack:
        # After authentication a connection waits for this lock last.
        locker.execute("ALTER DATABASE native RENAME TO other")
        wires = []
        for port in (cluster.port, cluster.pool_port):
            wire = stack.enter_context(Wire.open(HOST, port))
            wire.send(startup({"user": "postgres", "database": "native"}))
            wires.append(wire)
        time.sleep(3)
        locker.rollback()
        assert [wire.until_ready()[-1].type for wire in wires] == ["Z", "Z"]


def test_cancel_requests_to_the_server_block_no_login_or_cancel(door):
    """The requests come faster than the postmaster forks; here the postmaster stands still."""
    cluster = door(max_unauthenticated=100, native_dbuser_names="native/*")
    Wire.login(HOST, cluster.pool_port).leave()
    with Wire.login(HOST, cluster.pool_port, database="native") as native:
        native.send(query("SELECT pg_sleep(600)"))
        wrong = struct.pack("!I", struct.unpack("!I", native.cancel_key)[0] ^ 1)
        stop(cluster.postmaster_pid())
        try:
            flood = [send_cancel(cluster, native.backend_pid, wrong) for _ in range(300)]
            with Wire.login(HOST, cluster.pool_port) as session:
                assert session.query("SELECT 1") == [["1"]]
            own = send_cancel(cluster, native.backend_pid, native.cancel_key, ELSEWHERE)
            flood += [send_cancel(cluster, native.backend_pid, wrong) for _ in range(300)]
            wait_until(lambda: sum(one.has_input() for one in flood) > 500, what="most are let go")
            assert not own.has_input()
        finally:
            os.kill(cluster.postmaster_pid(), signal.SIGCONT)
        assert native.until_ready()[-2].fields()["C"] == "57014"
        assert is_closed(own)
        assert all(is_closed(one) for one in flood)
        for one in [own, *flood]:
            one.close()
        logs_in(cluster, {"database": "native"})


def send_cancel(cluster, pid: int, key: bytes, source: str = "") -> Wire:
    wire = Wire.open(HOST, cluster.pool_port, source=source)
    wire.send(cancel(pid, key))
    return wire


def test_a_cancel_request_for_no_server_process_never_reaches_it(door):
    cluster = door()
    with cluster.new_log() as log:
        for pid in (os.getpid(), 0, -1, 1):
            with send_cancel(cluster, pid, b"\0\0\0\1") as wire:
                assert is_closed(wire)
            said = f"PID {pid} in cancel request did not match any process"
            wait_until(lambda: f"LOG:  {said}" in log(), what="it is told")  # noqa: B023
            assert log().count(said) == 1
