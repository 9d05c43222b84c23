"""GSSAPI encryption on the pool's port: a backend of the client's own negotiates it, as
on the server's port.

The tests start a KDC of their own (harness/authenticators.py); psycopg's libpq is the client."""

from __future__ import annotations

import concurrent.futures
import contextlib
import socket
import struct
import threading
import time

import psycopg
import pytest
from harness.account import give_to_server_user, pg_config
from harness.authenticators import Kerberos
from harness.cluster import HOST
from harness.gss import Encrypted
from harness.health import wait_until
from harness.wire import GSSENC_REQUEST, SSL_REQUEST, Wire, cancel, query, startup, text

pytestmark = pytest.mark.pool_only

if "gssapi" not in pg_config("configure"):
    pytest.skip("this server is built without GSSAPI", allow_module_level=True)

USERS = {"alice": "correct", "bob": "other"}
ONLY_ENCRYPTED = ["hostgssenc all alice all gss include_realm=0 krb_realm=EXAMPLE.NET"]
FOR_ALL = ["host all alice all gss include_realm=0 krb_realm=EXAMPLE.NET"]
OTHERS = ["host all others all trust"]
ROLES = [
    "CREATE EXTENSION IF NOT EXISTS pg_baton",
    "CREATE ROLE alice LOGIN REPLICATION",
    "CREATE ROLE bob LOGIN",
    "CREATE ROLE others LOGIN",
    "GRANT pg_monitor, pg_signal_backend TO alice",
]
ENCRYPTED = "SELECT gss_authenticated, principal, encrypted FROM pg_stat_gssapi WHERE pid = pg_backend_pid()"


@pytest.fixture(scope="module")
def kerberos(run):
    with Kerberos(run.directory / "kerberos-encryption", USERS) as kerberos:
        give_to_server_user(kerberos.keytab)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in kerberos.environment.items():
                patch.setenv(name, value)
            kerberos.get_ticket("alice", "correct")
            yield kerberos


@pytest.fixture
def world(make_cluster, kerberos):
    """A cluster with these rules and parameters."""

    def make(hba: list[str], **parameters: object):
        cluster = make_cluster(
            hba=hba + OTHERS,
            parameters={"pg_baton.max_backends": 3, "krb_server_keyfile": str(kerberos.keytab), **parameters},
        )
        for statement in ROLES:
            cluster.sql(statement)
        return cluster

    return make


def connect(cluster, direct: bool = False, mode: str = "require", **options: object) -> psycopg.Connection:
    to = cluster.direct if direct else cluster.pool
    options = {"user": "alice", "host": "localhost", "hostaddr": HOST, **options}
    return psycopg.connect(to(gssencmode=mode, **options), autocommit=True)


def refusal(cluster, **options: object) -> str:
    """libpq's error message, without the port."""
    with pytest.raises(psycopg.OperationalError) as failed:
        connect(cluster, **options).close()
    return str(failed.value).split(" failed: ")[-1]


def modes(cluster) -> list[tuple]:
    return cluster.sql("SELECT user_name, mode, dedicated_cause FROM pg_baton_sessions ORDER BY login_time")


NATIVE = ("alice", "native", "GSSAPI encryption")


def test_a_client_that_demands_encryption_gets_it_and_is_native(world):
    cluster = world(ONLY_ENCRYPTED)
    with connect(cluster) as pool, connect(cluster, direct=True) as direct:
        assert pool.execute(ENCRYPTED).fetchone() == direct.execute(ENCRYPTED).fetchone()
        assert pool.execute(ENCRYPTED).fetchone() == (True, "alice@EXAMPLE.NET", True)
        assert modes(cluster) == [NATIVE]
        assert pool.pgconn.used_gssapi


def test_clients_that_ask_where_no_rule_is_about_it_stay_pooled(world):
    """libpq asks for encryption whenever there is a ticket, and goes on without encryption."""
    cluster = world(FOR_ALL)
    with connect(cluster, mode="prefer") as pool:
        assert pool.execute("SELECT 1").fetchone() == (1,)
        assert modes(cluster) == [("alice", "shared", None)]
    assert "server doesn't support GSSAPI encryption, but it was required" in refusal(cluster)


# Rules, and whether a client that asks for encryption is offered it.
RULES = {
    "a hostgssenc line": (ONLY_ENCRYPTED, True),
    "a hostnogssenc line that refuses": (["hostnogssenc all alice all reject", *FOR_ALL], True),
    "a hostgssenc line that refuses": (["hostgssenc all all all reject", *FOR_ALL], False),
    "a hostnogssenc line that does not": (["hostnogssenc all alice all trust", *FOR_ALL], False),
    "no such line": (FOR_ALL, False),
}


def answer(cluster, *before: bytes) -> bytes:
    """The answer to a request for encryption, after these requests."""
    with socket.create_connection((HOST, cluster.pool_port), timeout=20) as client:
        for request in before:
            client.sendall(request)
            assert client.recv(1) == b"N"
        client.sendall(GSSENC_REQUEST)
        return client.recv(1)


def test_rules_and_parameters_in_force_decide_encryption_offers(world):
    cluster = world(FOR_ALL)
    for what, (hba, is_offered) in RULES.items():
        cluster.write_hba(hba + OTHERS)
        cluster.reload()
        expected = b"G" if is_offered else b"N"
        wait_until(lambda: answer(cluster) == expected, what=what)  # noqa: B023
        if not cluster.by_tls:
            assert answer(cluster, SSL_REQUEST) == expected
    for name, value, expected in (
        ("gss_encryption", "on", b"G"),
        ("gss_encryption", "auto", b"N"),
        ("enabled", "off", b"G"),
        ("gss_encryption", "off", b"N"),
    ):
        cluster.set_parameters({f"pg_baton.{name}": value})
        cluster.reload()
        wait_until(lambda: answer(cluster) == expected, what=f"{name} = {value}")  # noqa: B023
    with Wire.open(str(cluster.home), cluster.pool_port) as wire:
        wire.send(GSSENC_REQUEST)
        assert wire.sock.recv(1) == b"N"


WHO = """
    SELECT current_user, current_database(), current_setting('application_name'), current_setting('work_mem'),
           current_setting('my.own', true), inet_client_addr(), a.client_addr, a.application_name, a.backend_type,
           a.client_port = inet_client_port(), inet_server_addr()
    FROM pg_stat_activity a WHERE pid = pg_backend_pid()
"""


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dbname": "", "options": "-c work_mem=7MB -c my.own=x"},
        {"application_name": "caf\u00e9\n"},
        {"dbname": "x" * 63},
        {"dbname": "x" * 80},
        {"dbname": "no such database"},
        {"user": "bob"},
        {"user": "nobody"},
        {"options": "-c no_such_parameter=1"},
        {"options": "-c pg_baton.attach=0:1:10"},
        {"replication": "database"},
        {"replication": "nonsense"},
    ],
    ids=str,
)
def test_a_startup_packet_says_what_it_says_on_the_server_s_port(world, options):
    cluster = world(ONLY_ENCRYPTED)
    cluster.sql("CREATE DATABASE alice")
    cluster.sql(f"CREATE DATABASE {'x' * 63}")
    seen = []
    for direct in (True, False):
        try:
            with connect(cluster, direct=direct, **options) as session:
                seen.append((session.execute(WHO).fetchone(), session.execute(ENCRYPTED).fetchone()))
        except psycopg.OperationalError as error:
            seen.append(str(error).split(" failed: ")[-1])
    if "attach" in str(options):
        assert 'parameter "pg_baton.attach" cannot be set by a client' in seen[1]
    else:
        assert seen[0] == seen[1]


FIRST_PACKETS = {
    "newer protocol": startup({"user": "alice", "database": "postgres"}, (3 << 16) | 9),
    "3.2": startup({"user": "alice", "database": "postgres"}, (3 << 16) | 2),
    "unknown options": startup({"_pq_.a": "1", "user": "alice", "database": "postgres", "_pq_.b": ""}),
    "a ticket": startup({"_pq_.pg_baton.0000000000000001": "", "user": "alice", "database": "postgres"}),
    "trusted": startup({"_pq_.pg_baton_trusted": "", "user": "alice", "database": "postgres"}),
    "no user": startup({"database": "postgres"}),
    "no user, options": startup({"_pq_.a": "1"}),
    "a user twice": startup({"user": "alice"})[:-1] + text("user") + text("bob") + b"\0",
    "empty": startup({}),
    "protocol alone": struct.pack("!II", 8, 3 << 16),
    "no terminator": struct.pack("!II", 18, 3 << 16) + b"user\0alice"[:10],
    "no value": struct.pack("!II", 13, 3 << 16) + b"user\0",
    "more behind": struct.pack("!II", 24, 3 << 16) + b"user\0alice\0\0xyz\0",
    "protocol 2": startup({"user": "alice"}, 2 << 16),
    "protocol 0": startup({"user": "alice"}, 0),
    "protocol 4": startup({"user": "alice"}, 4 << 16),
    "for TLS": SSL_REQUEST,
    "for encryption again": GSSENC_REQUEST,
    "too short": struct.pack("!I", 7) + b"xxx",
    "too long": struct.pack("!I", 10005) + b"x" * 10001,
    "negative": struct.pack("!i", -1) + b"x" * 9,
    "a cancel request of nobody": cancel(99999999, b"abcd"),
    "a cancel request too short": cancel(1, b""),
    "replication": startup({"user": "alice", "replication": "true"}),
    "physical and database": startup({"user": "alice", "replication": "database"})[:-1] + b"replication\0on\0\0",
}


def test_first_encrypted_packets_are_answered_as_on_server_port(world):
    cluster = world(ONLY_ENCRYPTED)
    cluster.sql("CREATE DATABASE alice")
    for what, packet in FIRST_PACKETS.items():
        told = []
        for port in (cluster.port, cluster.pool_port):
            with Encrypted(HOST, port) as client:
                client.send(packet)
                found = client.until("Z", "W")
                said = [
                    (m.type, m.body)
                    for m in found
                    if m.type != "K" and not (m.type == "S" and m.strings()[0] == "in_hot_standby")
                ]
                fields = [m.fields() for m in found if m.type == "E"]
                told.append([(kind, body) for kind, body in said if kind != "E"] + [
                    {name: value for name, value in one.items() if name not in "FLR"} for one in fields
                ])  # fmt: skip
        assert told[0] == told[1], what


def test_an_encrypted_cancel_works_and_its_connection_ends(world):
    cluster = world(ONLY_ENCRYPTED)
    with (
        Wire.login(HOST, cluster.pool_port, user="others") as shared,
        connect(cluster) as native,
        Wire.login(HOST, cluster.port, user="others") as direct,
    ):
        for wire in (shared, direct):
            wire.send(query("SELECT pg_sleep(60)"))
            time.sleep(0.3)
            with Encrypted(HOST, cluster.pool_port) as client:
                client.send(cancel(wire.backend_pid, wire.cancel_key))
                assert client.until("Z") == []
            found = wire.until_ready()
            assert [m.fields()["C"] for m in found if m.type == "E"] == ["57014"]
        # libpq's own cancel request, which is encrypted from 17 on
        began = time.monotonic()
        thread = threading.Timer(0.5, native.cancel_safe)
        thread.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            native.execute("SELECT pg_sleep(60)")
        thread.join()
        assert time.monotonic() - began < 30
        assert native.execute("SELECT 1").fetchone() == (1,)


def test_much_data_both_ways(world):
    cluster = world(ONLY_ENCRYPTED)
    with connect(cluster) as session:
        session.execute("CREATE TEMPORARY TABLE t (a text)")
        with session.cursor().copy("COPY t FROM STDIN") as copy:
            for _ in range(2000):
                copy.write("x" * 1000 + "\n")
        assert session.execute("SELECT sum(length(a)) FROM t").fetchone() == (2_000_000,)
        assert len(session.execute("SELECT a FROM t").fetchall()) == 2000


def test_it_counts_as_a_native_session(world):
    cluster = world(ONLY_ENCRYPTED, **{"pg_baton.max_sessions_per_user": 2})
    with connect(cluster) as first, connect(cluster) as second:
        assert modes(cluster) == [NATIVE] * 2
        assert "too many" in refusal(cluster)
        pids = {session.info.backend_pid for session in (first, second)}
        # The view shows a refused client until its connection has been closed.
        wait_until(
            lambda: {pid for (pid,) in cluster.sql("SELECT pid FROM pg_baton_sessions")} == pids,
            what="they are the sessions",
        )
    wait_until(lambda: modes(cluster) == [], what="they are gone")
    connect(cluster).close()


def is_closed(client: socket.socket) -> bool:
    client.settimeout(20)
    with contextlib.suppress(ConnectionResetError):
        return client.recv(100) == b""
    return True


def test_silent_encryption_requests_keep_no_client_out(world):
    cluster = world(ONLY_ENCRYPTED, **{"pg_baton.max_unauthenticated": 10})
    silent = []
    for _ in range(40):
        one = socket.create_connection((HOST, cluster.pool_port), timeout=20)
        one.sendall(GSSENC_REQUEST)
        assert one.recv(1) == b"G"
        silent.append(one)
    with connect(cluster) as session:
        assert session.execute("SELECT 1").fetchone() == (1,)
    assert all(is_closed(one) for one in silent[:30])
    for one in silent:
        one.close()


def test_a_handshake_that_fails_leaves_nothing(world):
    cluster = world(ONLY_ENCRYPTED)
    for said in (b"", struct.pack("!I", 20) + b"x" * 20, struct.pack("!I", 1 << 30), b"\xff" * 100):
        with socket.create_connection((HOST, cluster.pool_port), timeout=20) as stranger:
            stranger.sendall(GSSENC_REQUEST)
            assert stranger.recv(1) == b"G"
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            assert is_closed(stranger)
    # A client that has been answered, and sends in the clear.
    with Wire.open(HOST, cluster.pool_port, plain=True) as wire:
        wire.send(GSSENC_REQUEST)
        assert wire.sock.recv(1) == b"G"
        wire.send(startup({"user": "others", "database": "postgres"}))
        wire.sock.shutdown(socket.SHUT_WR)
        assert is_closed(wire.sock)
    # Unencrypted data right behind the request is not taken for data of the client.
    with Wire.open(HOST, cluster.pool_port, plain=True) as wire:
        wire.send(GSSENC_REQUEST + startup({"user": "others", "database": "postgres"}))
        assert wire.sock.recv(1) == b"G"
        (error,) = wire.until_closed()
        assert error.fields()["M"] == "received unencrypted data after GSSAPI encryption request"
    wait_until(
        lambda: cluster.sql("SELECT connections FROM pg_baton_dispatchers") == [(0,)], what="no login is under way"
    )
    connect(cluster).close()


def test_a_server_that_is_stopped_ends_those_at_the_handshake(world):
    cluster = world(ONLY_ENCRYPTED)
    with socket.create_connection((HOST, cluster.pool_port), timeout=20) as stranger, connect(cluster) as session:
        stranger.sendall(GSSENC_REQUEST)
        assert stranger.recv(1) == b"G"
        cluster.stop()
        assert is_closed(stranger)
        with pytest.raises(psycopg.OperationalError):
            session.execute("SELECT 1")


def test_many_at_once(world):
    cluster = world(ONLY_ENCRYPTED, max_connections=60)
    with concurrent.futures.ThreadPoolExecutor(20) as threads:
        sessions = list(threads.map(lambda _: connect(cluster), range(40)))
    assert modes(cluster) == [NATIVE] * 40
    found = {session.execute("SELECT pg_backend_pid()").fetchone()[0] for session in sessions}
    assert len(found) == 40
    for session in sessions:
        session.close()
