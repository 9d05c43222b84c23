#!/usr/bin/env python3
"""The cost of an idle session: the dispatcher's memory, and the kernel's.

    idle.py [--sessions 4000] [--rounds 5]

It runs as root: otherwise the kernel does not show its tables (/proc/slabinfo).  Each
round has so many plain sessions, then so many over TLS, each of which has received 20 kB;
as many bare TCP connections within one process, which show the cost of the client's own
end of a connection, so that it can be left out; and sessions over TLS whose clients show a
certificate.  There are three figures of the kernel, in bytes a session:

    objects     objects in use in the tables that grow (/proc/slabinfo): the sum of each
                table's median.  Tables of files and processes are left out
    memory      memory that is no longer free, without the page cache (/proc/meminfo) and
                the memory of the processes (server, dispatcher, client): it includes
                everything else that the machine does
    available   the same by MemAvailable

The program prints the medians of the rounds, for the kernel's memory also the least and
the most, and for the dispatcher's memory the most.  The server is started anew for each
kind of session: a dispatcher uses again the memory that earlier sessions have left.
"""

from __future__ import annotations

import argparse
import re
import resource
import shutil
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import builds  # noqa: E402
import processes  # noqa: E402
from servers import HOST, USER, Server  # noqa: E402
from tls import certificate  # noqa: E402

BACKENDS = 4
RECEIVED_BYTES = 20_000
SETTLE_S = 3
CERTIFIED = "TLS, certificate"
KINDS = ("bare", "plain", "TLS", CERTIFIED)
MEMORY = ("MemFree", "Buffers", "Cached", "Shmem", "MemAvailable")
FIGURES = ("dispatcher", "memory", "available")
# The kernel's tables of files on disk and of processes, which other programs use as well.
NOT_OF_SOCKETS = (
    "proc_",
    "inode_cache",
    "ext4",
    "btrfs",
    "xfs",
    "shmem_",
    "vm_area",
    "anon_vma",
    "maple_",
    "task_",
    "pool_",
    "bio",
    "buffer_head",
    "radix_",
    "mm_struct",
    "pid",
    "files_",
    "fs_",
    "sighand",
    "cred",
    "jbd2",
)
# Bytes a session; a table that has grown by less counts as not grown.
LEAST_BYTES = 16


# ---- the client: a process of its own ------------------------------------------


def until_ready(sock: socket.socket) -> None:
    """Reads up to ReadyForQuery."""
    data = b""
    while not (data.endswith(b"Z\0\0\0\5I")):
        more = sock.recv(65536)
        if not more:
            raise SystemExit(f"bench: the pool closed a connection: {data[:200]!r}")
        data = (data + more)[-200:]


def session(port: int, context: ssl.SSLContext | None) -> socket.socket:
    sock = socket.create_connection((HOST, port), timeout=60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context:
        sock.sendall(struct.pack("!II", 8, 80877103))
        if sock.recv(1) != b"S":
            raise SystemExit("bench: the pool has no TLS")
        sock = context.wrap_socket(sock)
    body = struct.pack("!I", 3 << 16) + f"user\0{USER}\0database\0{USER}\0\0".encode()
    sock.sendall(struct.pack("!I", len(body) + 4) + body)
    until_ready(sock)
    query = f"SELECT repeat('x', {RECEIVED_BYTES})\0".encode()
    sock.sendall(b"Q" + struct.pack("!I", len(query) + 4) + query)
    until_ready(sock)
    return sock


def client(kind: str, port: int, sessions: int, pair: str) -> int:
    """Holds the sessions until its standard input ends.  `pair` names a certificate with its key."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if kind == CERTIFIED:
        context.load_cert_chain(pair)
    held = []
    listener = socket.create_server((HOST, 0), backlog=128)
    for _ in range(sessions):
        if kind == "bare":
            held.append(socket.create_connection(listener.getsockname()))
            held.append(listener.accept()[0])
        else:
            held.append(session(port, context if kind.startswith("TLS") else None))
    print("ready", flush=True)
    sys.stdin.read()
    return 0


@contextmanager
def holding(kind: str, port: int, sessions: int, pair: Path) -> Iterator[int]:
    """A client process that has opened its sessions and has its own memory; it ends with the block."""
    command = [
        sys.executable,
        __file__,
        "--client",
        kind,
        "--port",
        str(port),
        "--sessions",
        str(sessions),
        "--pair",
        str(pair),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout.readline() != "ready\n":
            raise SystemExit("bench: the client has failed")
        yield process.pid
    finally:
        process.communicate(timeout=120)


# ---- the measurements ------------------------------------------------------------


def tables() -> dict[str, int]:
    """For each of the kernel's tables: bytes of the objects in use, each as its share of the
    pages that it lies in."""
    found, page = {}, resource.getpagesize()
    for line in Path("/proc/slabinfo").read_text().splitlines()[2:]:
        name, active, _, _, in_one, pages = line.split()[:6]
        found[name] = int(active) * int(pages) * page // int(in_one)
    return found


def memory() -> dict[str, int]:
    text = Path("/proc/meminfo").read_text()
    return {name: int(re.search(rf"^{name}: +(\d+) kB", text, re.M).group(1)) * 1024 for name in MEMORY}


class State:
    """Memory of the machine, and of the processes that take part."""

    def __init__(self, dispatcher: tuple[int, ...], others: list[int], settle_s: float = SETTLE_S) -> None:
        time.sleep(settle_s)
        self.tables, self.memory = tables(), memory()
        self.dispatcher = processes.memory_kib(dispatcher)["RssAnon"] * 1024
        self.others = processes.memory_kib(others)["RssAnon"] * 1024

    def used(self) -> int:
        """Memory that is neither free nor of the page cache."""
        return -self.memory["MemFree"] - self.memory["Buffers"] - self.memory["Cached"] + self.memory["Shmem"]


def figures(before: State, after: State, sessions: int) -> dict[str, float]:
    """The differences, in bytes a session."""
    own = after.dispatcher - before.dispatcher + after.others - before.others
    found = {
        "dispatcher": after.dispatcher - before.dispatcher,
        "memory": after.used() - before.used() - own,
        "available": before.memory["MemAvailable"] - after.memory["MemAvailable"] - own,
    }
    tables = {name: size - before.tables.get(name, 0) for name, size in after.tables.items()}
    return {name: value / sessions for name, value in (found | tables).items()}


def grown(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The tables that have grown, by their medians."""
    names = [name for name in rounds[0] if name not in FIGURES and not name.startswith(NOT_OF_SOCKETS)]
    medians = {name: statistics.median(one.get(name, 0) for one in rounds) for name in names}
    return {name: size for name, size in sorted(medians.items(), key=lambda item: -item[1]) if size >= LEAST_BYTES}


def report(found: dict[str, list[dict[str, float]]], sessions: int) -> str:
    lines = [
        f"{sessions} sessions, {len(found['TLS'])} rounds; bytes a session, medians (least to most); of the kernel"
        " without the client's end.",
        "",
        "| | dispatcher | kernel: objects | memory | available |",
        "|---|---|---|---|---|",
    ]
    tables_of = {kind: grown(rounds) for kind, rounds in found.items()}
    bare = {name: statistics.median(one[name] for one in found["bare"]) / 2 for name in FIGURES}
    bare_objects = sum(tables_of["bare"].values()) / 2
    for kind, rounds in found.items():
        cells = []
        for name in ("memory", "available"):
            values = [one[name] - bare[name] for one in rounds]
            cells.append(f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})")
        cells.insert(0, f"{sum(tables_of[kind].values()) - bare_objects:,.0f}")
        cells.insert(0, f"{max(one['dispatcher'] for one in rounds):,.0f}")
        lines.append(f"| {'one end of a bare connection' if kind == 'bare' else kind} | {' | '.join(cells)} |")
    lines.append("")
    for kind, names in tables_of.items():
        shown = ", ".join(f"{name} {size:,.0f}" for name, size in names.items())
        lines.append(f"{kind}, {'both ends' if kind == 'bare' else 'with the client’s end'}: {shown}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--client", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--pair", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        return client(options.client, options.port, options.sessions, options.pair)

    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    folder = Path(tempfile.mkdtemp(prefix="baton-bench-"))
    folder.chmod(0o755)
    cert, key = certificate(folder)
    pair = folder / "client.pem"
    pair.write_text(cert.read_text() + key.read_text())
    pair.chmod(0o600)
    server = Server(
        builds.of_tree(),
        BACKENDS,
        {
            "ssl": "on",
            "ssl_cert_file": str(cert),
            "ssl_key_file": str(key),
            "ssl_ca_file": str(cert),
            "pg_baton.max_sessions": str(options.sessions + 100),
            "autovacuum": "off",
        },
    )
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    try:
        server.start(1)
        for number in range(1, options.rounds + 1):
            for kind in KINDS:
                server.restart()
                # memory that the server needs once, for any sessions
                with holding(kind, server.pool_port, 50, pair):
                    pass
                pids = server.pool().pids
                before = State(pids, server.backends())
                with holding(kind, server.pool_port, options.sessions, pair) as pid:
                    after = State(pids, [*server.backends(), pid], SETTLE_S)
                    found[kind].append(figures(before, after, options.sessions))
            print(f"bench: round {number} of {options.rounds}", file=sys.stderr, flush=True)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(report(found, options.sessions))
    return 0


if __name__ == "__main__":
    sys.exit(main())
