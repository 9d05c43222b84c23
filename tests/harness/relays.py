"""Unread bytes between a dispatcher's TLS relays and the processes that serve their sessions.

The kernel does not tell which socketpair belongs to which session, so there is a single
number for all sessions of a dispatcher.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
from pathlib import Path

from .processes import borrowed_socket


def unread_behind(dispatcher: int) -> int | None:
    """Bytes in the dispatcher's socketpairs; None while a relay is at work, which may
    hold some bytes itself."""
    for thread in Path(f"/proc/{dispatcher}/task").iterdir():
        is_relay = (thread / "comm").read_text().startswith("tls-")
        if is_relay and (thread / "stat").read_text().rpartition(")")[2].split()[0] not in "ST":
            return None
    # The dispatcher may have more than one descriptor of a socket.
    unread: dict[int, int] = {}
    for number in os.listdir(f"/proc/{dispatcher}/fd"):
        found = borrowed_socket(dispatcher, int(number))
        if found is None:
            continue
        with found:
            if found.family == socket.AF_UNIX and found.type == socket.SOCK_STREAM and not found.getsockname():
                (here,) = struct.unpack("=i", fcntl.ioctl(found, termios.FIONREAD, bytes(4)))
                unread[os.fstat(found.fileno()).st_ino] = here
    return sum(unread.values())
