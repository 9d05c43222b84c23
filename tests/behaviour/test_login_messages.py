"""The pool's port answers each message that a client sends before it is logged in as the
server does, malformed or not."""

from __future__ import annotations

import hashlib
import struct

import psycopg
import pytest
from harness.account import server_major
from harness.compare import describe
from harness.login_shape import shape
from harness.plain import without_tls
from harness.wire import GSSENC_REQUEST, PROTOCOL_3_0, PROTOCOL_3_2, SSL_REQUEST, Closed, Wire, message, startup, text

HBA = ["host all by_scram 127.0.0.1/32 scram-sha-256", "host all by_password 127.0.0.1/32 password"]

SETUP = ["CREATE ROLE by_scram LOGIN PASSWORD 'sécret'", "CREATE ROLE by_password LOGIN PASSWORD 'secret'"]

PARAMETERS = {"authentication_timeout": "8s"}


@without_tls
@pytest.mark.pool_only
@pytest.mark.parametrize("request_bytes", [SSL_REQUEST, GSSENC_REQUEST], ids=["ssl", "gssenc"])
def test_encryption_requests_are_declined_and_the_login_goes_on(server, request_bytes):
    for host in ("127.0.0.1", str(server.home)):
        wire = Wire.open(host, server.pool_port)
        wire.send(request_bytes)
        assert wire.read_bytes(1) == b"N"
        assert wire.log_in("postgres", "postgres")[-1].type == "Z"
        assert wire.query("SELECT 1") == [["1"]]
        wire.finish()


@without_tls
@pytest.mark.pool_only
def test_ssl_then_gssenc_request(server):
    wire = Wire.open("127.0.0.1", server.pool_port)
    wire.send(SSL_REQUEST)
    assert wire.read_bytes(1) == b"N"
    wire.send(GSSENC_REQUEST)
    assert wire.read_bytes(1) == b"N"
    assert wire.log_in("postgres", "postgres")[-1].type == "Z"
    wire.finish()


@without_tls
def test_libpq_sslmode_prefer_and_require(server):
    with psycopg.connect(server.pool(sslmode="prefer")) as session:
        assert session.execute("SELECT 1").fetchone() == (1,)
    with pytest.raises(psycopg.OperationalError, match="server does not support SSL"):
        psycopg.connect(server.pool(sslmode="require"))


NEGOTIATION = {
    "protocol_3_2": (PROTOCOL_3_2, {}),
    "protocol_3_9999": ((3 << 16) | 9999, {}),
    "unknown_extension_options": (PROTOCOL_3_0, {"_pq_.something": "1", "_pq_.other": "x"}),
    "newer_with_options": (PROTOCOL_3_2, {"_pq_.something": "1"}),
    "protocol_2": (2 << 16, {}),
    "protocol_4": (4 << 16, {}),
    "protocol_zero": (0, {}),
}


# Protocols that PostgreSQL 18 speaks and the pool's port does not (docs/limits.md).
KNOWS_3_2 = {*NEGOTIATION} - {"unknown_extension_options", "protocol_2"} if server_major() >= 18 else set()


@pytest.mark.parametrize("promise", [name for name in NEGOTIATION if name not in KNOWS_3_2])
def test_protocol_versions_are_negotiated_as_the_server_does(server, promise):
    protocol, options = NEGOTIATION[promise]
    seen = []
    for port in (server.port, server.pool_port):
        wire = Wire.open("127.0.0.1", port, 20)
        try:
            messages = wire.log_in("postgres", "postgres", None, protocol, **options)
            lines = sorted(describe(m) for m in messages if m.type not in "E")
            lines += shape([m for m in messages if m.type == "E"])
            if messages and messages[-1].type == "Z":
                assert wire.query("SELECT 1") == [["1"]]
        except Exception as error:
            lines = [f"{type(error).__name__}"]
        seen.append([line for line in lines if not line.startswith("parameter ")])
        wire.close()
    assert seen[1] == seen[0]


STARTUP_PACKETS = {
    "no_user": startup({"database": "postgres"}),
    "no_terminator": struct.pack("!II", 8 + 5, PROTOCOL_3_0) + b"user\0",
    "odd_number_of_strings": struct.pack("!II", 8 + 6, PROTOCOL_3_0) + b"user\0\0",
    "empty_packet": struct.pack("!II", 8, PROTOCOL_3_0),
    "length_too_small": struct.pack("!I", 4),
    "length_too_large": struct.pack("!II", 0x7FFFFFFF, PROTOCOL_3_0),
    "length_of_10001": struct.pack("!II", 10001, PROTOCOL_3_0) + b"x" * 9993,
    "http": b"GET / HTTP/1.0\r\n\r\n",
    "tls_hello": bytes.fromhex("1603010200010001fc0303") + b"\0" * 500,
    "zero_bytes": b"\0" * 16,
    "cancel_of_wrong_length": struct.pack("!III", 12, 80877102, 5),
}


@pytest.mark.parametrize("promise", STARTUP_PACKETS)
def test_malformed_startup_packets_get_what_the_server_gives(server, promise):
    seen = []
    for port in (server.port, server.pool_port):
        wire = Wire.open("127.0.0.1", port, 20)
        wire.send(STARTUP_PACKETS[promise])
        raw = b""
        wire.sock.settimeout(20)
        try:
            while True:
                data = wire.sock.recv(4096)
                if not data:
                    break
                raw += data
        except ConnectionResetError:
            pass
        wire.close()
        # Source file, line and routine name the place in the server.
        if raw[:1] == b"E" and len(raw) > 5:
            from harness.wire import Message

            fields = Message("E", raw[5:]).fields()
            seen.append(str({k: v for k, v in fields.items() if k not in "FLR"}))
        else:
            seen.append(repr(raw))
    assert seen[1] == seen[0]


def test_password_message_malformed(server):
    def said(port: int, answer: bytes) -> list[str]:
        with Wire.open("127.0.0.1", port, 20) as wire:
            wire.send(startup({"user": "by_password", "database": "postgres"}))
            assert wire.read().type == "R"
            try:
                wire.send(answer)
                return shape(wire.until_closed(20))
            except (Closed, OSError):
                return []

    def outcome(port: int, answer: bytes) -> list[str]:
        """A server that closes a connection with unread input resets it, and its last message may be lost."""
        return next(filter(None, (said(port, answer) for _ in range(10))), [])

    for answer in (
        message("p", b""),
        message("Q", b"SELECT 1\0"),
        message("p", b"no end"),
        text("x"),
        message("p", b"x" * 70000),
    ):
        seen = [outcome(port, answer) for port in (server.port, server.pool_port)]
        assert seen[0] or not seen[1], (answer[:20], seen)
        assert [line for line in seen[1] if "28P01" in line or "08P01" in line] == [
            line for line in seen[0] if "28P01" in line or "08P01" in line
        ], (answer[:20], seen)


def test_scram_messages_malformed(server):
    def scram(first: bytes) -> bytes:
        return message("p", text("SCRAM-SHA-256") + struct.pack("!i", len(first)) + first)

    attempts = [
        scram(b""),
        scram(b"nonsense"),
        scram(b"n,,n=,r="),
        scram(b"y,,n=,r=abc"),
        scram(b"p=tls-server-end-point,,n=,r=abc"),
        scram(b"n,a=other,n=,r=abc"),
        scram(b"n,,m=ext,n=,r=abc"),
        scram(b"n,,n=,r=\x01\x02"),
        message("p", text("SCRAM-SHA-256-PLUS") + struct.pack("!i", 0)),
        message("p", text("PLAIN") + b"\0\0\0\0"),
        message("p", text("SCRAM-SHA-256") + struct.pack("!i", 99999)),
        message("p", text("SCRAM-SHA-256")),
        message("p", text("SCRAM-SHA-256") + struct.pack("!i", -1)),
    ]
    for attempt in attempts:
        seen = []
        for port in (server.port, server.pool_port):
            wire = Wire.open("127.0.0.1", port, 20)
            wire.send(startup({"user": "by_scram", "database": "postgres"}))
            assert wire.read().type == "R"
            wire.send(attempt)
            messages = []
            try:
                messages.append(wire.read())
            except (Closed, TimeoutError) as error:
                seen.append([type(error).__name__])
                wire.close()
                continue
            if messages[0].type == "R":
                seen.append(["goes on"])
            else:
                seen.append(shape(messages))
            wire.close()
        assert seen[1] == seen[0], attempt


def test_scram_final_messages_malformed(server):
    import base64

    for final in (
        b"",
        b"c=biws",
        b"c=biws,r=wrong,p=AAAA",
        b"c=eSws,r={nonce},p=AAAA",
        b"c=biws,r={nonce}",
        b"c=biws,r={nonce},p=!!!",
        b"c=biws,r={nonce},p=" + base64.b64encode(b"x" * 32),
        b"c=biws,r={nonce},p=" + base64.b64encode(b"x" * 31),
        b"c=biws,r={nonce},m=x,p=AAAA",
    ):
        seen = []
        for port in (server.port, server.pool_port):
            wire = Wire.open("127.0.0.1", port, 20)
            wire.send(startup({"user": "by_scram", "database": "postgres"}))
            assert wire.read().type == "R"
            first = b"n,,n=,r=" + hashlib.md5(final).hexdigest().encode()
            wire.send(message("p", text("SCRAM-SHA-256") + struct.pack("!i", len(first)) + first))
            challenge = wire.read().body[4:].decode()
            nonce = challenge.split(",")[0][2:].encode()
            wire.send(message("p", final.replace(b"{nonce}", nonce)))
            seen.append(shape(wire.until_closed(20)))
            wire.close()
        assert seen[1] == seen[0], final
