"""TCP ports for the servers of tests, including those of several runs at the same time.

A port is chosen long before its server listens on it; until then, and while the server
restarts, the port looks free to all other processes.  So a process takes ports in blocks,
and marks each block with an abstract Unix socket.  All processes that share the network
see the socket, also in a Debian in a folder, and the kernel removes it when its process ends.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

HOST = "127.0.0.1"
PORTS_A_BLOCK = 64
FIRST_PORT = 10_000

_blocks: list[socket.socket] = []


def _take_block(number: int) -> bool:
    name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        name.bind(f"\0pg_baton-test-ports-{number}")
    except OSError:
        name.close()
        return False
    _blocks.append(name)
    return True


def _ports() -> Iterator[int]:
    """Ports below those that the kernel assigns to sockets that need any port: another process
    may soon have such a port, before the test's server has started or while it is down."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    numbers = list(range((low - FIRST_PORT) // PORTS_A_BLOCK))
    random.SystemRandom().shuffle(numbers)
    for number in numbers:
        if _take_block(number):
            first = FIRST_PORT + number * PORTS_A_BLOCK
            yield from range(first, first + PORTS_A_BLOCK)
    while True:  # the kernel's own range begins too low, or other processes have all blocks
        yield 0


_coming = _ports()


def free_port() -> int:
    """A TCP port on which no process listens, another port each time."""
    for _ in range(10_000):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((HOST, next(_coming)))
            return probe.getsockname()[1]
    raise RuntimeError("no TCP port is free")
