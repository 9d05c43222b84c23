"""A client gets the version of the protocol that the server speaks, also on the pool's
port: 3.0 up to 17, up to 3.2 in 18, whose cancel keys are longer."""

from __future__ import annotations

import contextlib
import threading

import psycopg
import pytest
from harness.certificates import Authority, make_secure
from harness.wire import Wire, cancel, query, startup

VERSIONS = {
    "3.0": (3, 0),
    "3.1": (3, 1),
    "3.2": (3, 2),
    "3.3": (3, 3),
    "3.9999": (3, 9999),
    "4.0": (4, 0),
    "2.0": (2, 0),
}

PARAMETERS = {"pg_baton.max_backends": 3, "pg_baton.native_dbuser_names": "*/native"}
SETUP = ["CREATE ROLE native LOGIN", "CREATE ROLE alice LOGIN", "CREATE ROLE proving LOGIN PASSWORD 'secret'"]
HBA = ["host all proving 127.0.0.1/32 scram-sha-256"]
ROLES = ["alice", "native", "proving"]


def what_is_said(port: int, version: tuple[int, int], role: str, **options: str) -> list[tuple]:
    """Up to the first ReadyForQuery: of a key its length, of other messages all but what is random."""
    wire = Wire.open("127.0.0.1", port)
    messages = wire.log_in(role, "postgres", "secret", (version[0] << 16) | version[1], **options)
    if messages[-1].type == "Z":
        assert wire.query("SELECT current_user") == [[role]]
        wire.finish()
    wire.close()
    said = []
    for one in messages:
        if one.type == "K":
            said.append(("K", len(one.body) - 4))
        elif one.type == "v":
            said.append(("v", one.body))
        elif one.type == "E":
            said.append(("E", sorted(field for field in one.fields().items() if field[0] in "SCMDH")))
        elif one.type == "R":
            said.append(("R", one.body[:4]))
    return said


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("role", ROLES)
def test_a_version_is_answered_as_the_server_does(server, version, role):
    if version == "2.0":
        # its errors have no messages of this protocol
        for options in ({}, {"_pq_.unknown": "x"}):
            answers = []
            for port in (server.port, server.pool_port):
                with contextlib.closing(Wire.open("127.0.0.1", port)) as wire:
                    wire.send(startup({"user": role, **options}, 2 << 16))
                    answers.append(b"".join(iter(lambda wire=wire: wire.sock.recv(4096), b"")))
            assert answers[0] == answers[1]
        return
    for options in ({}, {"_pq_.unknown": "x", "_pq_.other": ""}):
        direct = what_is_said(server.port, VERSIONS[version], role, **options)
        for _ in range(2):
            assert what_is_said(server.pool_port, VERSIONS[version], role, **options) == direct


def ask_to_cancel(port: int, pid: int, key: bytes) -> None:
    with contextlib.closing(Wire.open("127.0.0.1", port)) as wire:
        wire.send(cancel(pid, key))
        assert wire.until_closed() == []


@pytest.mark.pool_only
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("version", ["3.0", "3.2"])
def test_a_cancel_request_needs_the_whole_key(server, version, role):
    wire = Wire.open("127.0.0.1", server.pool_port)
    major, minor = VERSIONS[version]
    assert wire.log_in(role, "postgres", "secret", (major << 16) | minor)[-1].type == "Z"
    key = wire.cancel_key
    others = [key[:-1] + bytes([key[-1] ^ 1]), bytes([key[0] ^ 1]) + key[1:], key + b"\0", bytes(len(key))]
    others += [key[:4]] if len(key) > 4 else [key + bytes(28)]
    wire.send(query("SELECT pg_sleep(600)"))
    for other in others:
        ask_to_cancel(server.pool_port, wire.backend_pid, other)
    with pytest.raises(TimeoutError):
        wire.read(timeout_s=0.3)
    ask_to_cancel(server.pool_port, wire.backend_pid, key)
    assert [one.fields()["C"] for one in wire.until_ready() if one.type == "E"] == ["57014"]
    assert wire.query("SELECT 1") == [["1"]]
    wire.finish()


needs_new_libpq = pytest.mark.skipif(psycopg.pq.version() < 180000, reason="libpq 18 knows more than one version")


def met(conninfo: str) -> tuple:
    """The version that libpq and the server agree on, and how a statement ends that it cancels."""
    try:
        connection = psycopg.connect(conninfo, autocommit=True)
    except psycopg.OperationalError as refused:
        return ("refused", str(refused).split(": ", 2)[-1])
    with connection:
        timer = threading.Timer(0.3, connection.cancel_safe)
        timer.start()
        try:
            connection.execute("SELECT pg_sleep(600)")
        except psycopg.errors.QueryCanceled:
            return ("cancelled", connection.execute("SELECT 1").fetchone())
        finally:
            timer.join()
    return ("not cancelled",)


@needs_new_libpq
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "options",
    [{"max_protocol_version": "latest"}, {"max_protocol_version": "3.2"}, {"min_protocol_version": "3.2"}, {}],
    ids=["latest", "3.2", "at least 3.2", "default"],
)
def test_libpq_18_agrees_on_what_the_server_speaks_and_cancels(server, role, options):
    if "min_protocol_version" in options:
        options = {**options, "max_protocol_version": "latest"}
    direct, pool = (met(where(user=role, password="secret", **options)) for where in (server.direct, server.pool))
    assert pool == direct


@needs_new_libpq
@pytest.mark.pool_only
def test_libpq_18_does_so_by_tls(make_cluster, run):
    cluster = make_cluster()
    make_secure(cluster, Authority(run.directory / "certificates of versions"))
    cluster.restart()
    for options in ({"max_protocol_version": "latest"}, {}):
        seen = [met(where(sslmode="require", **options)) for where in (cluster.direct, cluster.pool)]
        assert seen == [("cancelled", (1,))] * 2


@pytest.mark.pool_only
def test_a_client_that_a_backend_authenticates_gets_the_same(make_cluster):
    cluster = make_cluster(parameters={"pg_baton.login": "server"}, hba=HBA)
    cluster.sql("CREATE ROLE proving LOGIN PASSWORD 'secret'")
    for version in ("3.0", "3.2", "3.9999"):
        direct, pool = (what_is_said(port, VERSIONS[version], "proving") for port in (cluster.port, cluster.pool_port))
        assert pool == direct
