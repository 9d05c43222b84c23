"""CPU time, memory and command lines of processes, as /proc shows them; and free ports."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress
from pathlib import Path

HOST = "127.0.0.1"
# Servers listen on both. Clients that reconnect are spread over them: each connection takes
# a port that no connection to the same address and port has used for a second
# (tcp_tw_reuse_delay), and connect() searches 14,000 ports (the even half of
# ip_local_port_range) for it. If the connections to one address come near 14,000 a second,
# the benchmark measures that search and not the server.
ADDRESSES = (HOST, "127.0.0.2")


def free_port() -> int:
    """A TCP port that no process listens on, below those that the kernel gives to
    clients: ten thousand clients come and go here."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(10_000):
        port = random.SystemRandom().randrange(10_000, low) if low > 20_000 else 0
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((HOST, port))
            return probe.getsockname()[1]
    raise SystemExit("bench: no TCP port is free")


def of_directory(directory: Path) -> dict[int, list[str]]:
    """The processes that work in a directory, with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            if os.readlink(entry / "cwd") == str(directory):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
                found[int(entry.name)] = words
    return found


def cpu_seconds(pids: tuple[int, ...] | list[int]) -> float:
    """CPU time that all threads of these processes have used, to the nanosecond."""
    return sum(cpu_of_each(pids).values())


def cpu_of_each(pids: tuple[int, ...] | list[int]) -> dict[int, float]:
    """The same for each of these processes that exists."""
    found = {}
    for pid in pids:
        total = 0
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError, IndexError):
                    total += int((task / "schedstat").read_text().split()[0])
        found[pid] = total / 1e9
    return found


def memory_kib(pids: tuple[int, ...] | list[int]) -> dict[str, int]:
    """Resident memory of these processes: all of it, and their own part (anonymous)."""
    total = {"VmRSS": 0, "RssAnon": 0}
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name = line.split(":")[0]
            if name in total:
                total[name] += int(line.split()[1])
    return total
