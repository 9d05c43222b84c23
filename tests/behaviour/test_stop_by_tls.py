"""A server that stops gives clients by TLS the time that it gives to other clients.

The bytes of a TLS connection pass through the dispatcher, so it has to run for as long."""

from __future__ import annotations

import os
import signal
import time

import pytest
from harness.account import run_as_server_user, server_program
from harness.certificates import Authority, make_secure
from harness.cluster import HOST
from harness.health import stop, wait_until
from harness.wire import Wire, query

pytestmark = pytest.mark.pool_only

# More than relays have to send their last bytes (tls/threads.rs).
LONGER_THAN_LAST_BYTES_S = 6
# More than sockets hold on the way to a standby that reads nothing.
MUCH_WAL = "INSERT INTO numbers SELECT n, repeat('x', 1000) FROM generate_series(1, 40000) n"


@pytest.fixture
def primary(make_cluster):
    cluster = make_cluster(
        start=False,
        parameters={
            "pg_baton.max_backends": 3,
            "wal_level": "replica",
            "wal_keep_size": "1GB",
            "pg_baton.native_dbuser_names": "native/*",
        },
    )
    make_secure(cluster, Authority(cluster.home / "authority"))
    cluster.start()
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.sql("CREATE DATABASE native")
    return cluster


@pytest.fixture
def standby(primary, make_cluster):
    standby = make_cluster(start=False)
    standby.become_standby_of(primary)
    conninfo = primary.pool(dbname=None, sslmode="require", sslcert="/nonexistent")
    # The standby does not request missing WAL by another connection.
    standby.set_parameters({"primary_conninfo": conninfo, "wal_retrieve_retry_interval": "10min"})
    standby.start()
    streaming = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
    wait_until(lambda: primary.sql(streaming) == [(1,)], what="it streams")
    return standby


def begin_to_stop(cluster, number: int, says: str) -> None:
    with cluster.new_log() as log:
        os.kill(cluster.postmaster_pid(), number)
        wait_until(lambda: f"received {says} shutdown request" in log(), what="the server begins to stop")


def still_runs(cluster) -> None:
    """Checks that the server and its dispatcher run for longer than relays have for their last bytes."""
    dispatchers = cluster.dispatcher_pids()
    assert dispatchers
    end = time.monotonic() + LONGER_THAN_LAST_BYTES_S
    while time.monotonic() < end:
        assert cluster.process.poll() is None and cluster.dispatcher_pids() == dispatchers, cluster.log_tail()
        time.sleep(0.2)


def is_gone(cluster) -> None:
    wait_until(lambda: not cluster.processes(), what="the server and its dispatcher are gone")
    # A process that exits loses its working directory a moment before it can be waited for.
    cluster.process.wait(timeout=20)


def walreceiver(standby) -> int:
    ((pid,),) = standby.sql("SELECT pid FROM pg_stat_wal_receiver")
    return pid


def last_checkpoint(cluster) -> str:
    said = run_as_server_user([server_program("pg_controldata"), "-D", str(cluster.data)])
    lines = dict(line.split(":", 1) for line in said.splitlines() if ":" in line)
    assert lines["Database cluster state"].strip() == "shut down"
    return lines["Latest checkpoint location"].strip()


def test_a_standby_by_tls_gets_all_of_a_primary_that_stops_fast(primary, standby):
    receiver = walreceiver(standby)
    primary.sql("CREATE TABLE numbers (n integer, t text)")
    stop(receiver)
    try:
        primary.sql(MUCH_WAL)
        begin_to_stop(primary, signal.SIGINT, "fast")
        still_runs(primary)
    finally:
        os.kill(receiver, signal.SIGCONT)
    is_gone(primary)
    checkpoint = last_checkpoint(primary)
    got = f"SELECT pg_last_wal_receive_lsn() > '{checkpoint}', pg_last_wal_receive_lsn()"
    wait_until(lambda: standby.sql("SELECT count(*) FROM pg_stat_wal_receiver") == [(0,)], what="the stream is over")
    assert standby.sql(got)[0][0], (checkpoint, standby.sql(got))


def test_native_tls_transaction_ends_before_a_smart_stop(primary):
    with Wire.login(HOST, primary.pool_port, database="native", secure=True) as wire:
        wire.query("CREATE TABLE kept (n integer)")
        wire.query("BEGIN")
        begin_to_stop(primary, signal.SIGTERM, "smart")
        still_runs(primary)
        wire.query("INSERT INTO kept VALUES (1)")
        wire.query("COMMIT")
        wire.leave()
    is_gone(primary)
    primary.start()
    assert primary.sql("SELECT n FROM kept", dbname="native") == [(1,)]


def test_client_that_reads_nothing_delays_no_fast_stop(primary):
    with Wire.login(HOST, primary.pool_port, database="native", secure=True) as wire:
        wire.send(query("SELECT repeat('x', 1000) FROM generate_series(1, 1000000)"))
        in_the_way = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'"
        wait_until(lambda: primary.sql(in_the_way) == [(1,)], what="its backend waits for it")
        primary.stop("fast")
        assert not primary.processes()


def test_standby_that_reads_nothing_delays_no_immediate_stop(primary, standby):
    # libpq's message for a connection that a server closes without a message.
    standby.expect_in_log("This probably means the server terminated abnormally")
    receiver = walreceiver(standby)
    primary.sql("CREATE TABLE numbers (n integer, t text)")
    stop(receiver)
    try:
        primary.sql(MUCH_WAL)
        primary.stop("immediate")
        assert not primary.processes()
    finally:
        os.kill(receiver, signal.SIGCONT)
