"""The same script through the pool and directly: everything visible is equal.

A script is a list of steps; a step is either SQL (one simple Query message) or
bytes (any messages, of which the last makes the server say ReadyForQuery).
What each connection saw is written down as lines and compared as text, so that
a failure shows a diff.  The only things left out are those that may differ
between two direct connections too: process ids, cancel keys, and oids that the
server assigned to user objects.
"""

from __future__ import annotations

import difflib
import re
import struct
from collections.abc import Iterable

from .cluster import HOST, SUPERUSER, Cluster
from .wire import Closed, LoginFailed, Message, Wire, query

FIRST_USER_OID = 16384
AUTHENTICATION_OK = struct.pack("!I", 0)

Step = str | bytes


def _oid(number: int) -> str:
    return "user-oid" if number >= FIRST_USER_OID else str(number)


def describe(message: Message) -> str:
    """One message of the server as a line."""
    kind, body = message.type, message.body
    if kind in "EN":
        name = "error" if kind == "E" else "notice"
        return f"{name} " + " ".join(f"{key}={value!r}" for key, value in message.fields().items())
    if kind == "T":
        columns = [
            (name, _oid(table), attribute, _oid(type_oid), size, modifier, form)
            for name, table, attribute, type_oid, size, modifier, form in message.columns()
        ]
        return f"columns {columns}"
    if kind == "D":
        return f"row {message.row()}" if len(body) < 2000 else f"row of {len(body)} bytes, hash {hash(body)}"
    if kind == "t":
        (count,) = struct.unpack_from("!H", body)
        return f"parameters {[_oid(n) for n in struct.unpack_from(f'!{count}I', body, 2)]}"
    if kind == "C":
        return f"complete {message.strings()[0]}"
    if kind == "S":
        return f"parameter {'='.join(message.strings())}"
    if kind == "K":
        return f"key of {len(body)} bytes"
    if kind == "Z":
        return f"ready {body.decode()}"
    if kind == "A":
        (channel, payload) = Message("A", body[4:]).strings()
        return f"notification {channel} {payload}"
    return f"{kind} {body!r}"


def transcript(
    host: str,
    port: int,
    steps: Iterable[Step],
    user: str = SUPERUSER,
    database: str = "postgres",
    password: str | None = None,
    login_too: bool = True,
    **options: str,
) -> list[str]:
    """What one connection sees of a script."""
    lines: list[str] = []
    try:
        wire = Wire.open(host, port)
        messages = wire.log_in(user, database, password, **options)
        if messages[-1].type != "Z":
            raise LoginFailed(messages)
    except LoginFailed as failure:
        return [describe(message) for message in failure.messages]
    if login_too:
        # ParameterStatus may come in any order, and only what it says counts.
        lines += ["login: " + line for line in sorted(describe(m) for m in messages)]
    with wire:
        for number, step in enumerate(steps):
            shown = step if isinstance(step, str) else f"{step[:60]!r}"
            lines.append(f"[{number}] {shown}")
            try:
                wire.send(query(step) if isinstance(step, str) else step)
                seen: list[Message] = []
                while not seen or seen[-1].type != "Z":
                    seen.append(wire.read())
                lines += _stable_parameter_order([describe(message) for message in seen])
            except (Closed, ConnectionError):
                lines += [describe(message) for message in seen] + ["closed"]
                break
        else:
            wire.leave()
    return lines


def _stable_parameter_order(lines: list[str]) -> list[str]:
    """Sorts runs of ParameterStatus: their order is a list's order in the server."""
    result: list[str] = []
    run: list[str] = []
    for line in lines:
        if line.startswith("parameter "):
            run.append(line)
        else:
            result += sorted(run) + [line]
            run = []
    return result + sorted(run)


def same_as_direct(
    cluster: Cluster,
    steps: Iterable[Step],
    setup: str = "",
    teardown: str = "",
    user: str = SUPERUSER,
    database: str = "postgres",
    unix: bool = False,
    ignore: str | None = None,
    **options: str,
) -> list[str]:
    """Runs a script directly, then through the pool; fails with a diff.

    setup and teardown run on the server's own port, before and after each.
    `ignore` is a pattern whose matches are taken out of both transcripts, and
    so is a line of which nothing is left.
    Gives the transcript, so that a test can also say what must be in it.
    """
    script = list(steps)
    seen = []
    for port in (cluster.port, cluster.pool_port):
        if setup:
            cluster.sql(setup, dbname=database)
        try:
            host = str(cluster.home) if unix else HOST
            lines = transcript(host, port, script, user=user, database=database, **options)
        finally:
            if teardown:
                cluster.sql(teardown, dbname=database)
        if ignore:
            lines = [left for line in lines if (left := re.sub(ignore, "", line))]
        seen.append(lines)
    if seen[0] != seen[1]:
        difference = "\n".join(difflib.unified_diff(seen[0], seen[1], "direct", "pool", lineterm="", n=4))
        raise AssertionError("through the pool the client sees something else\n" + difference)
    return seen[1]
