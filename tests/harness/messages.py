"""Every message of shared/baton_messages.h, made as its sender would make it."""

from __future__ import annotations

import re
import struct

from .control_memory import constant
from .hostile import frame, put, string
from .stage import REPOSITORY


def word(value: int) -> bytes:
    return struct.pack("=I", value)


def names() -> set[str]:
    text = (REPOSITORY / "shared" / "baton_messages.h").read_text()
    return set(re.findall(r"^#define BATON_MSG_(\w+) \d", text, re.MULTILINE))


SIZES = {"bool": 1, "u8": 1, "u16": 2, "u32": 4, "i32": 4, "u64": 8, "i64": 8, "address": 16, "string": 4, "bytes": 4}


def nothing(name: str) -> bytes:
    """A payload by its list of fields, each of them zero or empty."""
    text = (REPOSITORY / "shared" / "baton_messages.h").read_text()
    (fields,) = re.findall(rf"^#define BATON_{name}_FIELDS\(field\)((?:.*\\\n)+.*)$", text, re.MULTILINE)
    return bytes(sum(SIZES[kind] for kind in re.findall(r"field\((\w+), \w+\)", fields)))


def client(
    kind: int = 0,
    family: int = 1,
    secure: int = 0,
    has_certificate: int = 0,
    names: bytes = string(b"") * 2,
    certificate: bytes = string(b""),
    rest: bytes = word(0) + string(b"") * 5,
) -> bytes:
    """Payload of CLIENT; its TLS fields may have any value."""
    addresses = struct.pack("=IHHI16sH16s", kind, family, 0, 0, bytes(16), 0, bytes(16))
    return addresses + bytes((secure, has_certificate)) + names + certificate + rest


def question(
    user: bytes = string(b"postgres"), connection: int = 0, family: int = 1, rest: bytes | None = None
) -> bytes:
    """Payload of LOGIN_QUESTION."""
    who = struct.pack("=IBB16sH", 0, connection, family, bytes(16), 0)
    return who + user + string(b"postgres") + (string(b"") + bytes(3) + string(b"") * 2 if rest is None else rest)


def retiring(why: bytes = b"", cause: int | None = None) -> bytes:
    return word(constant("BATON_RETIRES_ASKED") if cause is None else cause) + string(why)


def greeted(rest: bytes) -> bytes:
    """Payload of GREETED; `rest` begins at the length of its notices."""
    return word(1) + struct.pack("=Q", 0) + rest


VERSION = word(constant("BATON_LAYOUT_VERSION"))

# Whole payloads that belong to no process: the token, the ticket and the secret do not exist.
PAYLOADS = {
    "HELLO_BACKEND": VERSION + struct.pack("=IQIII", 1, 1, 1, 10, 5),
    "HELLO_AGAIN": VERSION + struct.pack("=II", 1, 0),
    "HELLO_LAUNCHER": VERSION + struct.pack("=QI", 1, 1),
    "HELLO_LOG": VERSION + struct.pack("=QI", 1, 1),
    "HELLO_MONITOR": VERSION + struct.pack("=QI", 1, 1),
    "HELLO_QUERY": VERSION + struct.pack("=QI", 1, constant("BATON_QUERY_SESSIONS")),
    "HELLO_TICKET": VERSION + struct.pack("=QI", 257, 1),
    "WELCOME": VERSION + struct.pack("=IQ", 900, 1 << 20),
    "REFUSED": string(b"no"),
    "ASSIGN": struct.pack("=q", 1),
    "POKE": b"",
    "RETIRE": b"",
    "RECALL": b"",
    "EVICT": b"",
    "END_IDLE": struct.pack("=q", 1),
    "CLIENT": client(),
    "NATIVE_ANSWER": nothing("NATIVE_ANSWER"),
    "PUT": put(constant("BATON_KIND_PARAMETER"), b"my.own", b"forged"),
    "DELETE": struct.pack("=HH", constant("BATON_KIND_PARAMETER"), 6) + b"my.own",
    "RELEASE": b"",
    "GREETED": greeted(word(0)),
    "END": word(constant("BATON_END_ERROR")),
    "DEDICATED": word(1),
    "RETIRING": retiring(),
    "AUTHENTICATED": nothing("AUTHENTICATED"),
    "NATIVE_IN": struct.pack("=IB", 10, 1),
    "STARTUP": struct.pack("!I", 196608) + b"user\0postgres\0\0",
    "AWAITS_CLIENT": b"\1",
    "PARAMETERS": word(0),
    "LOGIN_ANSWER": nothing("LOGIN_ANSWER"),
    "PASSPHRASE": b"open sesame",
    "SHUTDOWN": word(1),
    "POOL_SETTINGS": bytes(36),
    "LOGIN_QUESTION": question(),
    "POOL_QUESTION": word(10) + word(5),
    "LOG_LINE": nothing("LOG_LINE"),
    "MONITOR_QUESTION": word(constant("BATON_QUERY_DISPATCHERS")),
    "SERVER_QUESTION": b"\1",
    "SERVER_ANSWER": nothing("SERVER_ANSWER"),
    "ROW": word(0),
    "DONE": b"",
}

A_BACKEND_S = {"PUT", "DELETE", "RELEASE", "GREETED", "END", "DEDICATED", "RETIRING"}


def each(session: int = 0, but: set[str] = frozenset()) -> dict[str, list[bytes]]:
    """All messages except `but`: as they are, half of each, and each with more."""
    assert set(PAYLOADS) == names(), "PAYLOADS lacks a message of the header, or has one too many"
    packets = {}
    for name in sorted(PAYLOADS.keys() - but):
        whole = PAYLOADS[name]
        for what, payload in (("", whole), ("half ", whole[: len(whole) // 2]), ("more than ", whole + b"\xff")):
            if payload != whole or what == "":
                packets[f"{what}{name} of {session:x}"] = [frame(name, session, payload)]
    return packets
