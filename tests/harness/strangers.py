"""Hostile strangers at the pool's port, by kind: each kind is a function of a port and a
number, which makes one connection and returns it if it is to be held open.

They are strangers to a server that has RULES in its pg_hba.conf and ROLES. Used by
behaviour/test_door_strangers.py and bench/strangers.py."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable

from . import openssl_client
from .certificates import client_hello
from .control_memory import constant
from .ports import HOST
from .wire import SSL_REQUEST, Wire, cancel, message, startup, text

RULES = [
    "host all by_scram,nobody all scram-sha-256",
    "host all in_clear,no_one all password",
    # The server authenticates; no service answers at port 113.
    "host all by_ident all ident",
    # A backend asks for a password before it looks for the LDAP server, which need not exist.
    'host all by_server all ldap ldapserver=127.0.0.1 ldapprefix="cn="',
    "host replication all all scram-sha-256",
    # The line applies to any user name; the database need not exist.
    "host guessed all all scram-sha-256",
]
ROLES = ("by_scram", "in_clear", "by_ident", "by_server")
ROLES_SQL = [f"CREATE ROLE {role} LOGIN PASSWORD 'correct'" for role in ROLES]

SILENT_PAUSE_S = 0.02
HELLO = client_hello()
PACKET = startup({"user": "postgres", "database": "postgres"})
REFUSED = ("28P01", "28000", "53300")
# The dispatcher's sessions have PIDs from here on; a lower PID may be a process of the server.
FIRST_PID = constant("BATON_FIRST_PID")


def knock(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=30)


def silent(port: int, number: int) -> socket.socket:
    """The pause limits their rate: they are still open when the kernel has them accepted, after
    a second without data (TCP_DEFER_ACCEPT)."""
    time.sleep(SILENT_PAUSE_S)
    return knock(port)


def half_a_packet(port: int, number: int) -> socket.socket:
    one = knock(port)
    one.sendall(PACKET[: 1 + number % (len(PACKET) - 1)])
    return one


def a_long_packet(port: int, number: int) -> socket.socket:
    one = knock(port)
    one.sendall(struct.pack("!II", 10_000, 3 << 16) + b"user\0" + b"x" * 9_000)
    return one


def garbage(port: int, number: int) -> None:
    with knock(port) as one:
        one.sendall(os.urandom(1 + number % 3000))


def half_a_handshake(port: int, number: int) -> socket.socket:
    one = knock(port)
    one.sendall(SSL_REQUEST)
    assert one.recv(1) in (b"S", b"E")
    one.sendall(HELLO[: number % 2000])
    return one


def a_handshake_and_no_more(port: int, number: int) -> socket.socket:
    wire = Wire.open(HOST, port).secure()
    wire.send(PACKET[:5])
    return wire.sock


def resets(port: int, number: int) -> None:
    one = half_a_handshake(port, number) if number % 2 else half_a_packet(port, number)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()


def is_refused(wire: Wire, user: str, database: str = "postgres", password: str = "a guess", **options: str) -> None:
    found = wire.log_in(user, database, password, **options)
    assert found[-1].fields()["C"] in REFUSED


def guesses(port: int, number: int) -> None:
    """Guesses passwords of users that exist and that do not, by SCRAM and in the clear."""
    with Wire.open(HOST, port) as wire:
        is_refused(wire, ("by_scram", "nobody", "in_clear", "no_one")[number % 4])


def guesses_by_tls(port: int, number: int) -> None:
    with Wire.open(HOST, port).secure() as wire:
        is_refused(wire, ("by_scram", "nobody")[number % 2])


def guesses_of_ever_new_users(port: int, number: int) -> None:
    """The dispatcher asks the server about each of these users."""
    with Wire.open(HOST, port) as wire:
        is_refused(wire, f"new_{os.urandom(6).hex()}", "guessed")


def has_the_server_refuse(port: int, number: int) -> None:
    """The server forks a backend for each connection."""
    with Wire.open(HOST, port) as wire:
        is_refused(wire, "by_ident")


def guesses_for_replication(port: int, number: int) -> None:
    """The server forks another backend for each connection, which gets the client's socket."""
    with Wire.open(HOST, port) as wire:
        is_refused(wire, "by_scram", replication="true")


def asks_for_replication_and_never_answers(port: int, number: int) -> socket.socket:
    """The backend of the connection waits with it."""
    wire = Wire.open(HOST, port)
    wire.send(startup({"user": "by_scram", "replication": "true"}))
    assert wire.read().type in "RE"
    return wire.sock


def cancels(port: int, number: int) -> None:
    """Cancels sessions, and processes of the server, about which the dispatcher must ask the server."""
    pid = int.from_bytes(os.urandom(4), "big") % FIRST_PID + (FIRST_PID if number % 2 else 1)
    with knock(port) as one:
        one.sendall(cancel(pid, os.urandom(4)))
        assert one.recv(1) == b""


def renegotiates(port: int, number: int) -> socket.socket:
    """Asks for a new handshake before its startup packet, and in the middle of it."""
    client = openssl_client.Client(port, openssl_client.TLS_1_2)
    said = client.data(PACKET[: number % len(PACKET)]) if number % 2 else b""
    return send_and_stay(client, said + client.renegotiate())


def changes_its_keys(port: int, number: int) -> socket.socket:
    """Also makes the server change its own keys, and announce each change."""
    client = openssl_client.Client(port, openssl_client.TLS_1_3)
    # some change them so often that the server closes their connections
    return send_and_stay(client, client.key_updates(50 if number % 4 else 1000))


def send_and_stay(client: openssl_client.Client, said: bytes) -> socket.socket:
    client.free()
    client.sock.sendall(said)
    return client.sock


def asks_and_never_answers(port: int, number: int) -> socket.socket:
    wire = Wire.open(HOST, port)
    wire.send(startup({"user": "by_scram", "database": "postgres"}))
    assert wire.read().type in "RE"
    wire.send(message("p", text("SCRAM-SHA-256"))[: number % 15])
    return wire.sock


def asks_a_backend_and_never_answers(port: int, number: int) -> socket.socket:
    """The backend authenticates the client."""
    wire = Wire.open(HOST, port)
    wire.send(startup({"user": "by_server", "database": "postgres"}))
    assert wire.read().type in "RE"
    wire.send(message("p", text("guess"))[: number % 5])
    return wire.sock


Kind = Callable[[int, int], "socket.socket | None"]
KINDS: list[Kind] = [
    silent, half_a_packet, a_long_packet, garbage, half_a_handshake, a_handshake_and_no_more, resets, guesses,
    asks_and_never_answers, guesses_by_tls, renegotiates, changes_its_keys, guesses_of_ever_new_users,
    has_the_server_refuse, asks_a_backend_and_never_answers, guesses_for_replication, asks_for_replication_and_never_answers, cancels,
]  # fmt: skip
