"""Unread bytes between TLS relays and the processes that serve their sessions.

The kernel does not tell which socketpair belongs to which session, so there is a single
number for all sessions of a cluster.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import struct
import termios
from pathlib import Path

from .processes import borrowed_socket


def relay_threads(pids: list[int]) -> list[Path]:
    """The threads of these processes that run relays, in /proc; others come and go."""
    found = []
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if re.fullmatch(r"tls-\d+", (thread / "comm").read_text().strip()):
                    found.append(thread)
    return found


def unread_behind(pids: list[int]) -> int | None:
    """Bytes in the socketpairs of the dispatcher and the processes of relays; None while a relay is
    at work, which may hold some bytes itself."""
    for thread in relay_threads(pids):
        if (thread / "stat").read_text().rpartition(")")[2].split()[0] not in "ST":
            return None
    # A process may have more than one descriptor of a socket.
    unread: dict[int, int] = {}
    for pid in pids:
        for number in os.listdir(f"/proc/{pid}/fd"):
            found = borrowed_socket(pid, int(number))
            if found is None:
                continue
            with found:
                if found.family == socket.AF_UNIX and found.type == socket.SOCK_STREAM and not found.getsockname():
                    (here,) = struct.unpack("=i", fcntl.ioctl(found, termios.FIONREAD, bytes(4)))
                    unread[os.fstat(found.fileno()).st_ino] = here
    return sum(unread.values())
