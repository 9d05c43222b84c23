"""TCP ports for the servers of tests, those of several runs at the same time included.

A port is chosen long before its server listens on it, and again while the server
restarts; meanwhile it looks free to all others.  So a process takes ports by the
block, and says so by an abstract Unix socket, which whoever shares the network
sees, a Debian in a folder too, and which the kernel takes back at its end.
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
    """Below those that the kernel gives to whom it is all the same: one of these
    is soon somebody else's, before its server has started or while it is down."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    numbers = list(range((low - FIRST_PORT) // PORTS_A_BLOCK))
    random.SystemRandom().shuffle(numbers)
    for number in numbers:
        if _take_block(number):
            first = FIRST_PORT + number * PORTS_A_BLOCK
            yield from range(first, first + PORTS_A_BLOCK)
    while True:  # the kernel's own range begins too low, or all blocks are others'
        yield 0


_coming = _ports()


def free_port() -> int:
    """A TCP port that nobody listens on, another one each time."""
    for _ in range(10_000):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((HOST, next(_coming)))
            return probe.getsockname()[1]
    raise RuntimeError("no TCP port is free")
