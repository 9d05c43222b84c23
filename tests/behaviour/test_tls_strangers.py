"""A client that connects by TLS and does not get in costs no other client anything."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import time
from pathlib import Path

import psycopg
import pytest
from harness import openssl_client
from harness.certificates import Authority, client_hello, make_secure
from harness.cluster import HOST
from harness.health import wait_until
from harness.processes import memory_kb
from harness.relays import relay_threads
from harness.wire import SSL_REQUEST, Wire, query, startup, sync

pytestmark = pytest.mark.one_major

AUTHENTICATION_TIMEOUT_S = 3
MANY_IDLE = 400


@pytest.fixture(scope="module")
def authority(run):
    return Authority(run.directory / "strangers")


@pytest.fixture(scope="module")
def server(run, authority):
    cluster = run.cluster(
        "tls strangers",
        parameters={"pg_baton.max_backends": 12, "authentication_timeout": f"{AUTHENTICATION_TIMEOUT_S}s"},
    )
    make_secure(cluster, authority)
    cluster.start()
    yield cluster
    cluster.finish()


def memory(server) -> int:
    """Of the dispatcher and its relays, in kB."""
    return sum(memory_kb(pid) for pid in server.dispatcher_pids() + server.relay_pids())


def descriptors(server) -> int:
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in server.dispatcher_pids() + server.relay_pids())


def held(server, wires) -> int:
    """The number of these connections of whose other end a process still holds a descriptor."""
    ports = {wire.sock.getsockname()[1] for wire in wires}
    # a set: a table that changes while it is read may show a line twice
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        here, there = (int(address.split(":")[1], 16) for address in fields[1:3])
        if here == server.pool_port and there in ports and fields[9] != "0":
            found.add(there)
    return len(found)


def knock(server) -> socket.socket:
    raw = socket.create_connection(("127.0.0.1", server.pool_port), timeout=30)
    raw.sendall(SSL_REQUEST)
    assert raw.recv(1) == b"S"
    return raw


def is_served(server) -> None:
    with psycopg.connect(server.pool(sslmode="require")) as session:
        assert session.execute("SELECT 1").fetchone() == (1,)


# the bytes that the strangers send after the answer to SSLRequest
STRANGERS = {
    "nothing": lambda hello: b"",
    "half_a_hello": lambda hello: hello[: len(hello) // 2],
    "a_hello_and_no_more": lambda hello: hello,
    "a_long_record_that_never_ends": lambda hello: b"\x16\x03\x01\x40\x00\x01\x01\x00\x00" + b"x" * 4000,
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_client_with_unfinished_handshake_is_cut_off_in_time(server, kind):
    is_served(server)
    before, memory_before = descriptors(server), memory(server)
    strangers = [knock(server) for _ in range(200)]
    for stranger in strangers:
        stranger.sendall(STRANGERS[kind](client_hello()))
    is_served(server)
    # OpenSSL's buffers for a handshake, and no more
    assert memory(server) - memory_before < len(strangers) * 128
    for stranger in strangers:
        while stranger.recv(65536):
            pass
        stranger.close()
    wait_until(lambda: descriptors(server) <= before + 2, what="descriptors of strangers are closed")
    is_served(server)


@pytest.mark.parametrize("ends", ["closes", "resets"])
def test_client_that_vanishes_in_mid_handshake_leaves_nothing(server, ends):
    is_served(server)
    before = descriptors(server)
    hello = client_hello()
    for length in (0, 1, 5, 100, len(hello)):
        for _ in range(20):
            stranger = knock(server)
            stranger.sendall(hello[:length])
            if ends == "resets":
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            stranger.close()
    wait_until(lambda: descriptors(server) <= before + 2, what="descriptors of who has gone are closed")
    is_served(server)


def test_garbage_ends_at_once(server):
    """The connection ends sooner than an earlier connection that sends nothing."""
    for garbage in (b"\0" * 100, b"GET / HTTP/1.0\r\n\r\n", os.urandom(1000), b"\x16\x03\x01\xff\xff" + b"z" * 2000):
        silent = knock(server)
        stranger = knock(server)
        stranger.sendall(garbage)
        got = b""
        try:
            while more := stranger.recv(65536):
                got += more
        except ConnectionResetError:
            pass
        # an alert, if anything
        assert len(got) < 100
        stranger.close()
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.recv(1)
        silent.close()
    is_served(server)


def test_words_in_the_clear_after_the_request_are_refused(server):
    """A man in the middle could have inserted the bytes (CVE-2021-23214)."""
    raw = socket.create_connection(("127.0.0.1", server.pool_port), timeout=30)
    raw.sendall(SSL_REQUEST + b"x" * 20)
    got = b""
    while more := raw.recv(65536):
        got += more
    assert got[:1] == b"S" and b"received unencrypted data after SSL request" in got
    raw.close()


def test_client_that_changes_keys_endlessly_is_disconnected(server):
    """Each change costs more than a query of its own. A few changes cost no client anything."""
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'changes keys'"
    client = openssl_client.Client(server.pool_port, openssl_client.TLS_1_3)
    packet = startup({"user": "postgres", "database": "postgres", "application_name": "changes keys"})
    for at in range(0, len(packet), 10):
        client.sock.sendall(client.key_updates(5) + client.data(packet[at : at + 10]))
    client.sock.sendall(client.key_updates(5) + client.data(query("SELECT pg_sleep(600)")))
    wait_until(lambda: server.sql(sessions) == [(1,)], what="a session that changes its keys")
    start = len(server.log())
    with contextlib.suppress(ConnectionError):
        for _ in range(10):
            client.sock.sendall(client.key_updates(1000))
        while client.sock.recv(65536):
            pass
    server.wait_for_log("SSL error: the client changes its keys too often", start=start)
    client.free()
    client.sock.close()
    # its backend notices the end as on a connection that has been lost
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'changes keys'")
    is_served(server)


def test_data_among_many_changes_of_keys_changes_nothing(server):
    """One byte of a startup packet after each few hundred: a round of the relay's thread would take as long for it."""
    start = len(server.log())
    client = openssl_client.Client(server.pool_port, openssl_client.TLS_1_3)
    packet = startup({"user": "postgres", "database": "postgres"})
    with contextlib.suppress(ConnectionError):
        for at in range(10):
            client.sock.sendall(client.key_updates(300) + client.data(packet[at : at + 1]))
        while client.sock.recv(65536):
            pass
    server.wait_for_log("SSL error: the client changes its keys too often", start=start)
    client.free()
    client.sock.close()
    is_served(server)


@pytest.mark.skipif(
    "libasan" in os.environ.get("BATON_TEST_PRELOAD", ""), reason="AddressSanitizer keeps what was freed"
)
def test_slow_reader_slows_no_other_client_and_gets_all_rows(server):
    rows, wide = 3000, 10_000
    # a slow reader for each relay thread: the threads get clients in turn, so no thread is without a slow reader
    slow = [Wire.open("127.0.0.1", server.pool_port).secure()]
    slow += [Wire.open("127.0.0.1", server.pool_port).secure() for _ in relay_threads(server.relay_pids())[1:]]
    before = memory(server)
    for wire in slow:
        wire.log_in("postgres", "postgres")
        wire.send(query(f"SELECT repeat('x', {wide}) FROM generate_series(1, {rows})"))
    time.sleep(1)
    started = time.monotonic()
    with psycopg.connect(server.pool(sslmode="require"), autocommit=True) as session:
        for _ in range(200):
            session.execute("SELECT 1")
    # this measures no speed: a blocked session would wait for ever
    assert time.monotonic() - started < 60
    # 60 MB wait in the backends, not in the relays
    assert memory(server) - before < 4096
    for wire in slow:
        assert sum(message.type == "D" for message in wire.until_ready()) == rows
        wire.finish()


NOT_READING = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'reads nothing' AND wait_event = 'ClientWrite'"
)


@pytest.mark.timeout(240)
@pytest.mark.pool_only
def test_client_that_does_not_read_the_last_bytes_is_cut_off(server):
    """The session has ended. Its client lives, reads nothing, and may go on sending."""
    wires = []
    for _ in range(4):
        raw = socket.socket()
        # before the connection is made, so that the kernel takes in little for it
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.settimeout(30)
        raw.connect((HOST, server.pool_port))
        wire = Wire(raw).secure()
        wire.log_in("postgres", "postgres", application_name="reads nothing")
        wire.send(query("SELECT repeat('x', 10000) FROM generate_series(1, 5000)"))
        wires.append(wire)
    full = 0

    def are_full() -> bool:
        nonlocal full
        for wire in wires:
            # makes the relay send as much as the kernel takes by now
            wire.send(sync())
        full = full + 1 if server.sql(NOT_READING) == [(len(wires),)] else 0
        return full > 20

    wait_until(are_full, what="nothing goes on: all between backends and clients is full")
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'reads nothing'")

    def are_cut() -> bool:
        for wire in wires[:2]:
            with contextlib.suppress(OSError):
                wire.send(query("SELECT 1"))
        return held(server, wires) == 0

    assert held(server, wires) == len(wires)
    # LAST_BYTES_TIMEOUT (tls/threads.rs) is half of this limit
    wait_until(are_cut, 60, "descriptors of who takes nothing are closed")
    is_served(server)
    for wire in wires:
        wire.sock.close()


# kB of the dispatcher's memory, with OpenSSL 3.0 and from 3.2 on; design/tls.md has the kernel's share
OPENSSL_3_0 = ssl.OPENSSL_VERSION_INFO < (3, 2)
MOST_OF_IDLE = {"without_certificate": 16 if OPENSSL_3_0 else 24, "with_certificate": 19 if OPENSSL_3_0 else 27}


@pytest.mark.parametrize("kind", MOST_OF_IDLE)
def test_an_idle_session_costs_little(make_cluster, authority, kind):
    # a cluster of its own: a dispatcher reuses memory that earlier sessions have left
    server = make_cluster(start=False)
    make_secure(server, authority)
    server.start()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if kind == "with_certificate":
        pair = authority.sign("idle", "/CN=idle")
        context.load_cert_chain(pair.certificate, pair.key)

    def come_in() -> Wire:
        wire = Wire.open(HOST, server.pool_port, plain=True).secure(context)
        wire.log_in("postgres", "postgres")
        wire.query("SELECT repeat('x', 100000)")
        return wire

    warm = [come_in() for _ in range(20)]
    before = memory(server)
    idle = [come_in() for _ in range(MANY_IDLE)]

    def cost() -> float:
        return (memory(server) - before) / len(idle)

    wait_until(lambda: cost() < MOST_OF_IDLE[kind], 60, what="an idle session's memory is small")
    for what in ("1", "2"):
        for wire in idle:
            assert wire.query(f"SELECT repeat('{what}', 20000)") == [[what * 20000]]
    for wire in idle[::2]:
        wire.close()
    # including the memory that the C library keeps of sessions that have gone
    wait_until(lambda: cost() < MOST_OF_IDLE[kind], 60, what="sessions that have ended leave little")
    for wire in [*warm, *idle[1::2]]:
        assert wire.query("SELECT 3") == [["3"]]
        wire.close()
