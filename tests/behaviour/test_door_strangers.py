"""Strangers who mean no good, as many as they like, with a load beside them: its
clients notice nothing, and what strangers cost has a bound."""

from __future__ import annotations

import os
import resource
import socket
import struct
import threading
import time

import pytest
from harness import openssl_client
from harness.certificates import Authority, client_hello, make_secure
from harness.cluster import HOST
from harness.health import Load, assert_serves, wait_until
from harness.processes import memory_kb
from harness.wire import SSL_REQUEST, Wire, cancel, message, startup, text

pytestmark = pytest.mark.pool_only

WAITING = 300
ATTACKERS = 3
SILENT_PAUSE_S = 0.02
# of the dispatcher, for all that wait: OpenSSL's own of a handshake, and a login
MOST_KB_EACH = 128


@pytest.fixture(scope="module")
def server(run):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    cluster = run.cluster(
        "door strangers",
        hba=[
            "host replication by_scram all scram-sha-256",
            "host all postgres 127.0.0.9/32 trust",
            "host all by_scram,nobody all scram-sha-256",
            "host all in_clear,no_one all password",
            # asks for a password before it looks for its server, which nobody needs
            'host all by_server all ldap ldapserver=127.0.0.1 ldapprefix="cn="',
        ],
        # longer than is waited for below: a login that is kept is seen
        parameters={
            "pg_baton.max_backends": 4,
            "pg_baton.max_unauthenticated": WAITING,
            "authentication_timeout": "10min",
            # a backend for each that the server authenticates
            "max_connections": WAITING + 100,
        },
    )
    make_secure(cluster, Authority(run.directory / "door-strangers"))
    cluster.start()
    for role in ("by_scram", "in_clear", "by_server"):
        cluster.sql(f"CREATE ROLE {role} LOGIN PASSWORD 'correct'")
    cluster.sql("CREATE EXTENSION pg_baton")
    ((cluster.a_process,),) = cluster.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
    yield cluster
    cluster.finish()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


HELLO = client_hello()
PACKET = startup({"user": "postgres", "database": "postgres"})


def knock(server) -> socket.socket:
    return socket.create_connection((HOST, server.pool_port), timeout=30)


def silent(server, number: int) -> socket.socket:
    """So many that they are still there when the kernel has them accepted, after a second
    without a word (TCP_DEFER_ACCEPT)."""
    time.sleep(SILENT_PAUSE_S)
    return knock(server)


def half_a_packet(server, number: int) -> socket.socket:
    one = knock(server)
    one.sendall(PACKET[: 1 + number % (len(PACKET) - 1)])
    return one


def a_long_packet(server, number: int) -> socket.socket:
    one = knock(server)
    one.sendall(struct.pack("!II", 10_000, 3 << 16) + b"user\0" + b"x" * 9_000)
    return one


def garbage(server, number: int) -> None:
    with knock(server) as one:
        one.sendall(os.urandom(1 + number % 3000))


def half_a_handshake(server, number: int) -> socket.socket:
    one = knock(server)
    one.sendall(SSL_REQUEST)
    assert one.recv(1) in (b"S", b"E")
    one.sendall(HELLO[: number % 2000])
    return one


def a_handshake_and_no_more(server, number: int) -> socket.socket:
    wire = Wire.open(HOST, server.pool_port).secure()
    wire.send(PACKET[:5])
    return wire.sock


def resets(server, number: int) -> None:
    one = half_a_handshake(server, number) if number % 2 else half_a_packet(server, number)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()


def guesses(server, number: int) -> None:
    """Of users that are there and that are not, by SCRAM and in the clear."""
    user = ("by_scram", "nobody", "in_clear", "no_one")[number % 4]
    with Wire.open(HOST, server.pool_port) as wire:
        found = wire.log_in(user, "postgres", f"guess {number}")
        assert found[-1].fields()["C"] in ("28P01", "53300")


def guesses_by_tls(server, number: int) -> None:
    with Wire.open(HOST, server.pool_port).secure() as wire:
        found = wire.log_in(("by_scram", "nobody")[number % 2], "postgres", f"guess {number}")
        assert found[-1].fields()["C"] in ("28P01", "53300")


def renegotiates(server, number: int) -> socket.socket:
    """A new handshake is asked for before it says who it is, and in the middle of that."""
    client = openssl_client.Client(server.pool_port, openssl_client.TLS_1_2)
    said = client.data(PACKET[: number % len(PACKET)]) if number % 2 else b""
    return send_and_stay(client, said + client.renegotiate())


def changes_its_keys(server, number: int) -> socket.socket:
    """And has the server change its own, which each time has to say so."""
    client = openssl_client.Client(server.pool_port, openssl_client.TLS_1_3)
    # some of them so often that they are sent away
    return send_and_stay(client, client.key_updates(50 if number % 4 else 1000))


def send_and_stay(client: openssl_client.Client, said: bytes) -> socket.socket:
    client.free()
    client.sock.sendall(said)
    return client.sock


def asks_and_never_answers(server, number: int) -> socket.socket:
    wire = Wire.open(HOST, server.pool_port)
    wire.send(startup({"user": "by_scram", "database": "postgres"}))
    assert wire.read().type in "RE"
    wire.send(message("p", text("SCRAM-SHA-256"))[: number % 15])
    return wire.sock


def asks_a_backend_and_never_answers(server, number: int) -> socket.socket:
    """One that authenticates it, or would be its own."""
    wire = Wire.open(HOST, server.pool_port)
    who = {"user": "by_server", "database": "postgres"}
    if number % 10 == 0:
        who = {"user": "by_scram", "database": "postgres", "replication": "true"}
    wire.send(startup(who))
    assert wire.read().type in "RE"
    wire.send(message("p", text("guess"))[: number % 5])
    return wire.sock


def cancels_what_the_server_does(server, number: int) -> socket.socket:
    """By a key that is wrong, a process that knows nothing of the pool."""
    one = knock(server)
    one.sendall(cancel(server.a_process, struct.pack("!I", number)))
    return one


KINDS = [
    silent, half_a_packet, a_long_packet, garbage, half_a_handshake, a_handshake_and_no_more, resets, guesses,
    asks_and_never_answers, guesses_by_tls, renegotiates, changes_its_keys, asks_a_backend_and_never_answers,
    cancels_what_the_server_does,
]  # fmt: skip


class Attack:
    """So many at it, without a pause; what they hold they hold to the end."""

    def __init__(self, server, kind) -> None:
        self.stopping = threading.Event()
        self.count = 0
        self.held: list[socket.socket] = []
        self.threads = [threading.Thread(target=self.run, args=(server, kind), daemon=True) for _ in range(ATTACKERS)]

    def run(self, server, kind) -> None:
        while not self.stopping.is_set():
            self.count += 1
            try:
                one = kind(server, self.count)
            except (OSError, AssertionError):
                continue
            if one is not None:
                self.held.append(one)
                if len(self.held) > 2 * WAITING:
                    self.held.pop(0).close()

    def __enter__(self) -> Attack:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
        for one in self.held:
            one.close()


def accepted(server) -> int:
    return server.sql("SELECT accepted FROM pg_baton_dispatchers")[0][0]


@pytest.mark.parametrize("kind", KINDS)
def test_strangers_cost_nobody_his_service(server, kind):
    assert_serves(server)
    with Load(server, clients=4, by_tls=2) as load:
        load.wait_for_answers(50)
        before = memory_kb(*server.dispatcher_pids())
        were = accepted(server)
        with Attack(server, kind):
            wait_until(lambda: accepted(server) - were > WAITING + 200, what="strangers at the door")
            load.wait_for_answers(300)
            # nor his way in; by TLS he is at the door for longer, and of the strangers' own address whoever
            # has been there longest goes (login/limits.rs)
            assert_serves(server, source="127.0.0.9" if server.by_tls else "")
            grown = memory_kb(*server.dispatcher_pids()) - before
            (waiting,) = server.sql("SELECT connections FROM pg_baton_dispatchers")[0]
        load.stop()
        assert load.wrong == [] and load.lost == []
    # refused is what a stranger may be, and cut off
    assert waiting <= WAITING + 4 + 6 + 2
    assert grown < (WAITING + 50) * MOST_KB_EACH, f"{grown} kB"
    wait_until(
        lambda: server.sql("SELECT connections FROM pg_baton_dispatchers") == [(0,)], what="the strangers' connections"
    )
