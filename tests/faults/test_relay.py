"""The process of TLS relays outlives its dispatcher, serves its clients to the end, and harms nobody else by its own end."""

from __future__ import annotations

import os
import signal

import pytest
from harness.certificates import Authority, make_secure
from harness.cluster import HOST, SUPERUSER
from harness.health import DISPATCHER_KILLED, assert_healthy, stop, wait_for_next_dispatcher, wait_until
from harness.wire import Closed, Wire, query

pytestmark = pytest.mark.pool_only


@pytest.fixture
def cluster(run):
    cluster = run.cluster("relay", parameters={"pg_baton.max_backends": 4})
    make_secure(cluster, Authority(run.directory / "relay certificates"))
    cluster.start()
    cluster.sql("CREATE EXTENSION pg_baton")
    yield cluster
    cluster.finish()


def logged_in(cluster, secure: bool) -> Wire:
    wire = Wire.login(HOST, cluster.pool_port, user=SUPERUSER, secure=secure, plain=True)
    wire.query("SET my.state = 'kept'")
    return wire


def by_tls(cluster) -> Wire:
    return logged_in(cluster, secure=True)


def plain(cluster) -> Wire:
    return logged_in(cluster, secure=False)


def has_its_state(wire: Wire) -> bool:
    return wire.query("SELECT current_setting('my.state'), pg_backend_pid()") == [["kept", str(wire.backend_pid)]]


def kill_dispatcher(cluster) -> None:
    (dispatcher,) = cluster.dispatcher_pids()
    os.kill(dispatcher, signal.SIGKILL)
    wait_for_next_dispatcher(cluster, dispatcher)


def test_relay_process_serves_its_clients_after_its_dispatcher_and_ends_with_the_last(cluster):
    """A row that is on its way when the dispatcher dies arrives, too: nothing of it passes through the dispatcher."""
    cluster.expect_in_log(DISPATCHER_KILLED)
    first = by_tls(cluster)
    (old,) = cluster.relay_pids()
    reading = by_tls(cluster)
    reading.send(query("SELECT repeat('x', 1000) FROM generate_series(1, 30000)"))
    kill_dispatcher(cluster)
    kill_dispatcher(cluster)
    assert sum(message.type == "D" for message in reading.until_ready()) == 30000
    second = by_tls(cluster)
    assert has_its_state(first) and has_its_state(second) and has_its_state(reading)
    # the process of the dispatcher in between had no client
    wait_until(lambda: len(cluster.relay_pids()) == 2 and old in cluster.relay_pids(), what="two processes of relays")
    first.finish()
    reading.finish()
    wait_until(lambda: old not in cluster.relay_pids(), what="the process without clients has ended")
    assert has_its_state(second)
    second.finish()
    assert_healthy(cluster)


def test_end_of_the_relay_process_ends_its_clients_alone(cluster):
    cluster.expect_in_log("the process of TLS relays has ended")
    secure, other, in_transaction = by_tls(cluster), plain(cluster), plain(cluster)
    in_transaction.query("BEGIN; CREATE TEMP TABLE mine AS SELECT 1 AS one")
    (old,), (relay,) = cluster.dispatcher_pids(), cluster.relay_pids()
    os.kill(relay, signal.SIGKILL)
    with pytest.raises(Closed):
        secure.query("SELECT 1")
    wait_for_next_dispatcher(cluster, old)
    assert has_its_state(other)
    assert in_transaction.query("SELECT one FROM mine") == [["1"]]
    new = by_tls(cluster)
    assert has_its_state(new)
    for wire in (secure, other, in_transaction, new):
        wire.close()
    assert_healthy(cluster)


def test_stopped_relay_process_delays_its_clients_alone(cluster):
    secure, other = by_tls(cluster), plain(cluster)
    (relay,) = cluster.relay_pids()
    stop(relay)
    try:
        secure.send(query("SELECT current_setting('my.state')"))
        assert has_its_state(other)
        waiting = Wire.open(HOST, cluster.pool_port, plain=True)
        waiting.sock.settimeout(1)
        with pytest.raises(TimeoutError):
            waiting.secure()
        waiting.close()
        late = plain(cluster)
        assert has_its_state(late)
    finally:
        os.kill(relay, signal.SIGCONT)
    assert [message.row() for message in secure.until_ready() if message.type == "D"] == [[b"kept"]]
    for wire in (secure, other, late):
        wire.close()
    assert_healthy(cluster)


def test_signals_of_a_service_manager_do_not_end_relays(cluster):
    secure = by_tls(cluster)
    (relay,) = cluster.relay_pids()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        os.kill(relay, number)
    assert has_its_state(secure) and cluster.relay_pids() == [relay]
    secure.close()
