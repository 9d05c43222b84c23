"""A small client of the PostgreSQL protocol that can send any bytes.

It hides nothing: the caller gets every message of the server as it came, and may
send any bytes, well-formed or not.  Numbers and formats: PostgreSQL's
documentation, "Message Formats".  Reads end with TimeoutError, never hang.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import os
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from .relays import unread_behind

PROTOCOL_3_0 = 3 << 16
PROTOCOL_3_2 = (3 << 16) | 2
SSL_REQUEST = struct.pack("!II", 8, 80877103)
GSSENC_REQUEST = struct.pack("!II", 8, 80877104)
CANCEL_CODE = 80877102
READ_TIMEOUT_S = 30.0

# Ports to which a Wire speaks TLS by itself (BATON_TEST_TLS), and the dispatchers of
# their clusters.
SECURE_PORTS: dict[int, Callable[[], list[int]]] = {}


@functools.cache
def anybody() -> ssl.SSLContext:
    """The TLS context of a client that checks no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Closed(Exception):
    """The server closed the connection."""


@dataclass(frozen=True)
class Message:
    """One message of the server."""

    type: str
    body: bytes

    def fields(self) -> dict[str, str]:
        """The fields of an ErrorResponse or NoticeResponse."""
        found = {}
        for part in self.body.split(b"\0"):
            if part:
                found[chr(part[0])] = part[1:].decode("utf-8", "replace")
        return found

    def strings(self) -> list[str]:
        """The body as NUL-terminated strings (ParameterStatus, CommandComplete)."""
        return [part.decode("utf-8", "replace") for part in self.body.split(b"\0")[:-1]]

    def row(self) -> list[bytes | None]:
        """The columns of a DataRow."""
        (count,) = struct.unpack_from("!H", self.body)
        columns: list[bytes | None] = []
        offset = 2
        for _ in range(count):
            (length,) = struct.unpack_from("!i", self.body, offset)
            offset += 4
            columns.append(None if length < 0 else self.body[offset : offset + length])
            offset += max(length, 0)
        return columns

    def columns(self) -> list[tuple]:
        """RowDescription: name, table, attribute, type, size, modifier, format."""
        (count,) = struct.unpack_from("!H", self.body)
        found = []
        offset = 2
        for _ in range(count):
            end = self.body.index(b"\0", offset)
            name = self.body[offset:end].decode("utf-8", "replace")
            found.append((name, *struct.unpack_from("!IhIhih", self.body, end + 1)))
            offset = end + 1 + 18
        return found


# -- messages of the client ----------------------------------------------------


def message(type_byte: str | bytes, body: bytes = b"") -> bytes:
    head = type_byte.encode() if isinstance(type_byte, str) else type_byte
    return head + struct.pack("!I", len(body) + 4) + body


def text(value: str | bytes) -> bytes:
    return (value.encode() if isinstance(value, str) else value) + b"\0"


def startup(parameters: dict[str, str], protocol: int = PROTOCOL_3_0) -> bytes:
    body = struct.pack("!I", protocol)
    for name, value in parameters.items():
        body += text(name) + text(value)
    body += b"\0"
    return struct.pack("!I", len(body) + 4) + body


def cancel(pid: int, key: bytes) -> bytes:
    return struct.pack("!III", 12 + len(key), CANCEL_CODE, pid & 0xFFFFFFFF) + key


def query(sql: str | bytes) -> bytes:
    return message("Q", text(sql))


def parse(sql: str, name: str = "", types: Iterable[int] = ()) -> bytes:
    kinds = list(types)
    return message("P", text(name) + text(sql) + struct.pack(f"!H{len(kinds)}I", len(kinds), *kinds))


def bind(
    values: Iterable[str | bytes | None] = (),
    statement: str = "",
    portal: str = "",
    formats: Iterable[int] = (),
    result_formats: Iterable[int] = (),
) -> bytes:
    in_formats, out_formats, parameters = list(formats), list(result_formats), list(values)
    body = text(portal) + text(statement) + struct.pack(f"!H{len(in_formats)}H", len(in_formats), *in_formats)
    body += struct.pack("!H", len(parameters))
    for value in parameters:
        raw = value.encode() if isinstance(value, str) else value
        body += struct.pack("!i", -1) if raw is None else struct.pack("!i", len(raw)) + raw
    body += struct.pack(f"!H{len(out_formats)}H", len(out_formats), *out_formats)
    return message("B", body)


def describe_statement(name: str = "") -> bytes:
    return message("D", b"S" + text(name))


def describe_portal(name: str = "") -> bytes:
    return message("D", b"P" + text(name))


def execute(portal: str = "", rows: int = 0) -> bytes:
    return message("E", text(portal) + struct.pack("!I", rows))


def close_statement(name: str = "") -> bytes:
    return message("C", b"S" + text(name))


def close_portal(name: str = "") -> bytes:
    return message("C", b"P" + text(name))


def sync() -> bytes:
    return message("S")


def flush() -> bytes:
    return message("H")


def terminate() -> bytes:
    return message("X")


def copy_data(data: bytes) -> bytes:
    return message("d", data)


def copy_done() -> bytes:
    return message("c")


def copy_fail(why: str) -> bytes:
    return message("f", text(why))


def function_call(oid: int, arguments: Iterable[bytes | None]) -> bytes:
    values = list(arguments)
    body = struct.pack("!IHHH", oid, 1, 1, len(values))
    for value in values:
        body += struct.pack("!i", -1) if value is None else struct.pack("!i", len(value)) + value
    return message("F", body + struct.pack("!H", 1))


# -- the connection --------------------------------------------------------------


class Wire:
    """One connection.  It sends nothing that the test did not ask for."""

    def __init__(self, sock: socket.socket, timeout_s: float = READ_TIMEOUT_S) -> None:
        self.sock = sock
        self.timeout_s = timeout_s
        self.buffer = bytearray()
        self.parameters: dict[str, str] = {}
        self.backend_pid = 0
        self.cancel_key = b""
        self.address: tuple[str, int] | str = ""

    @classmethod
    def open(
        cls, host: str, port: int, timeout_s: float = READ_TIMEOUT_S, source: str = "", plain: bool = False
    ) -> Wire:
        """Connects, by TCP (from the address `source`) or, if the host is a path, by Unix socket.

        plain: without TLS, also if other connections use it (BATON_TEST_TLS)."""
        if host.startswith("/"):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            address: tuple[str, int] | str = f"{host}/.s.PGSQL.{port}"
        else:
            sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
            address = (host, port)
            if source:
                sock.bind((source, 0))
        sock.settimeout(timeout_s)
        sock.connect(address)
        if not host.startswith("/"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire = cls(sock, timeout_s)
        wire.address = address
        if isinstance(address, tuple) and address[1] in SECURE_PORTS and not plain:
            wire.secure()
        return wire

    def secure(self, context: ssl.SSLContext | None = None) -> Wire:
        """Asks for TLS, gets it, and speaks it from here on. It accepts any certificate
        and has none of its own, unless the context says otherwise.

        Raises LoginFailed with the error's fields, if the answer is an error."""
        if isinstance(self.sock, ssl.SSLSocket):
            return self
        self.send(SSL_REQUEST)
        answer = self.sock.recv(1)
        if answer == b"E":
            self.buffer += answer
            raise LoginFailed(self.until_closed())
        if answer != b"S":
            raise ConnectionError(f"answer to SSLRequest: {answer!r}")
        try:
            self.sock = (context or anybody()).wrap_socket(self.sock)
        except ssl.SSLEOFError as error:
            raise ConnectionResetError("closed in the handshake") from error
        return self

    def has_input(self) -> bool:
        """Whether the connection has data that can be read at once."""
        of_tls = isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0
        if self.buffer or of_tls:
            return True
        # not select(), which takes no descriptor beyond 1,023
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(0))

    @classmethod
    def login(
        cls,
        host: str,
        port: int,
        user: str = "postgres",
        database: str = "postgres",
        password: str | None = None,
        protocol: int = PROTOCOL_3_0,
        timeout_s: float = READ_TIMEOUT_S,
        secure: bool = False,
        source: str = "",
        plain: bool = False,
        **options: str,
    ) -> Wire:
        """Connects as open() does, always by TLS if `secure` is set, and logs in.

        Raises LoginFailed with the error's fields."""
        wire = cls.open(host, port, timeout_s, source, plain)
        if secure:
            wire.secure()
        messages = wire.log_in(user, database, password, protocol, **options)
        if not messages or messages[-1].type != "Z":
            wire.close()
            raise LoginFailed(messages)
        return wire

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection without a message."""
        self.sock.close()

    def finish(self) -> None:
        """Sends Terminate, as a polite client does, and closes the connection."""
        try:
            self.send(terminate())
        except OSError:
            pass
        self.close()

    def leave(self) -> None:
        """Sends Terminate and waits until the server has closed the connection: the session's resources are free."""
        try:
            self.send(terminate())
            self.until_closed()
        except ConnectionError:
            pass
        self.close()

    def reset(self) -> None:
        """Closes with RST, as when a client's machine dies."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def send(self, *parts: bytes) -> None:
        self.sock.settimeout(self.timeout_s)
        try:
            self.sock.sendall(b"".join(parts))
        except ssl.SSLEOFError as error:
            raise BrokenPipeError("closed") from error

    def read_bytes(self, count: int, timeout_s: float | None = None) -> bytes:
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        while len(self.buffer) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{len(self.buffer)} of {count} bytes came")
            self.sock.settimeout(left)
            try:
                data = self.sock.recv(max(65536, min(count - len(self.buffer), 1 << 20)))
            except (ConnectionResetError, BrokenPipeError) as error:
                # With TLS, a read may also write.
                raise Closed("reset") from error
            if not data:
                raise Closed("end of file")
            self.buffer += data
        taken = bytes(self.buffer[:count])
        del self.buffer[:count]
        return taken

    def read(self, timeout_s: float | None = None) -> Message:
        """The next message; raises Closed at the end of the connection."""
        head = self.read_bytes(5, timeout_s)
        (length,) = struct.unpack("!I", head[1:])
        found = Message(chr(head[0]), self.read_bytes(length - 4, timeout_s))
        if found.type == "S":
            name, value = found.strings()[:2]
            self.parameters[name] = value
        elif found.type == "K":
            (self.backend_pid,) = struct.unpack_from("!i", found.body)
            self.cancel_key = found.body[4:]
        return found

    def read_until(self, types: str, timeout_s: float | None = None) -> list[Message]:
        """Messages up to and including the first of one of these types."""
        found = [self.read(timeout_s)]
        while found[-1].type not in types:
            found.append(self.read(timeout_s))
        return found

    def until_ready(self, timeout_s: float | None = None) -> list[Message]:
        return self.read_until("Z", timeout_s)

    def until_closed(self, timeout_s: float | None = None) -> list[Message]:
        """Everything up to the end of the connection."""
        found = []
        try:
            while True:
                found.append(self.read(timeout_s))
        except Closed:
            return found

    def ask(self, *parts: bytes, timeout_s: float | None = None) -> list[Message]:
        """Sends, and reads up to ReadyForQuery."""
        self.send(*parts)
        return self.until_ready(timeout_s)

    def query(self, sql: str, timeout_s: float | None = None) -> list[list[str | None]]:
        """A simple query's rows as text; raises QueryFailed."""
        messages = self.ask(query(sql), timeout_s=timeout_s)
        for found in messages:
            if found.type == "E":
                raise QueryFailed(found.fields())
        return [[None if c is None else c.decode() for c in found.row()] for found in messages if found.type == "D"]

    def analyses(self, text: str) -> int:
        """The number of queries that the server analyses for this query, itself included."""
        self.query("SET client_min_messages = log; SET log_parser_stats = on")
        answer = self.ask(query(text))
        self.query("RESET log_parser_stats; RESET client_min_messages")
        return sum(m.type == "N" and m.fields()["M"].startswith("PARSE ANALYSIS") for m in answer)

    def unread_by_server(self) -> int | None:
        """The number of bytes that have come to the server's end of this TCP connection and
        that no process has read there; None if the connection is not found (the kernel's
        list may miss some connections while others come and go).

        With TLS: the encrypted bytes that have not been decrypted yet. If all have been
        decrypted, the unread bytes of all sessions of the cluster."""
        waiting = self._unread_at_its_end()
        if waiting == 0 and isinstance(self.sock, ssl.SSLSocket):
            return unread_behind(SECURE_PORTS[self.sock.getpeername()[1]]())
        return waiting

    def _unread_at_its_end(self) -> int | None:
        ours, theirs = self.sock.getsockname()[1], self.sock.getpeername()[1]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            ends = [int(address.split(":")[1], 16) for address in fields[1:3]]
            if ends == [theirs, ours]:
                return int(fields[4].split(":")[1], 16)
        return None

    def silent(self, seconds: float) -> bool:
        """True if the server sends nothing for that long (and stays connected)."""
        try:
            self.read(seconds)
        except TimeoutError:
            return True
        return False

    def cancel_request(self, key: bytes | None = None, pid: int | None = None) -> None:
        """Sends a cancel request for this connection by another connection, by TLS if this one uses TLS."""
        if isinstance(self.address, str):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.connect(self.address)
        else:
            sock = socket.create_connection(self.address, self.timeout_s)
        with Wire(sock, self.timeout_s) as messenger:
            if isinstance(self.sock, ssl.SSLSocket):
                messenger.secure()
            messenger.send(cancel(self.backend_pid if pid is None else pid, self.cancel_key if key is None else key))
            while messenger.sock.recv(64):
                pass

    # -- login -------------------------------------------------------------

    def log_in(
        self, user: str, database: str | None, password: str | None = None, protocol: int = PROTOCOL_3_0, **options: str
    ) -> list[Message]:
        """Sends the startup packet and authenticates. Returns all messages up to Z or the end."""
        parameters = {"user": user}
        if database is not None:
            parameters["database"] = database
        parameters.update(options)
        self.send(startup(parameters, protocol))
        found: list[Message] = []
        scram: Scram | None = None
        try:
            while True:
                got = self.read()
                found.append(got)
                if got.type in "ZE":
                    if got.type == "E":
                        found += self.until_closed()
                    return found
                if got.type != "R":
                    continue
                (kind,) = struct.unpack_from("!I", got.body)
                secret = password or ""
                if kind == 3:
                    self.send(message("p", text(secret)))
                elif kind == 5:
                    inner = hashlib.md5((secret + user).encode()).hexdigest()
                    outer = hashlib.md5(inner.encode() + got.body[4:8]).hexdigest()
                    self.send(message("p", text("md5" + outer)))
                elif kind == 10:
                    scram = Scram(secret)
                    self.send(message("p", text("SCRAM-SHA-256") + scram.first()))
                elif kind == 11 and scram:
                    self.send(message("p", scram.final(got.body[4:])))
                elif kind == 12 and scram:
                    scram.check(got.body[4:])
        except Closed:
            return found


class Scram:
    """The client's side of SCRAM-SHA-256 (RFC 5802, RFC 7677)."""

    def __init__(self, password: str) -> None:
        self.password = password.encode()
        self.nonce = base64.b64encode(os.urandom(18)).decode()
        self.bare = f"n=,r={self.nonce}"
        self.server_signature = b""

    def first(self) -> bytes:
        data = ("n,," + self.bare).encode()
        return struct.pack("!I", len(data)) + data

    def final(self, challenge: bytes) -> bytes:
        parts = dict(part.split("=", 1) for part in challenge.decode().split(","))
        assert parts["r"].startswith(self.nonce)
        salted = hashlib.pbkdf2_hmac("sha256", self.password, base64.b64decode(parts["s"]), int(parts["i"]))
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        without_proof = f"c=biws,r={parts['r']}"
        signed = ",".join([self.bare, challenge.decode(), without_proof]).encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature))
        self.server_signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), signed, "sha256")
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, answer: bytes) -> None:
        assert answer == b"v=" + base64.b64encode(self.server_signature), "the server does not know the password"


class LoginFailed(Exception):
    """A login ended without ReadyForQuery."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        errors = [found.fields() for found in messages if found.type == "E"]
        self.fields = errors[-1] if errors else {}
        super().__init__(str(self.fields or messages))


class QueryFailed(Exception):
    """A query ended with an error."""

    def __init__(self, fields: dict[str, str]) -> None:
        self.fields = fields
        self.sqlstate = fields.get("C", "")
        super().__init__(f"{fields.get('S')} {self.sqlstate}: {fields.get('M')}")
