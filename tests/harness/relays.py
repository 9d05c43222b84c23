"""What lies between a dispatcher's TLS relays and whoever serves their sessions.

The kernel tells nobody which socketpair is whose, so it is one number for all
sessions of a dispatcher.
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
    """Bytes in its socketpairs; None while a relay is at work, which may have some
    in its hand."""
    for thread in Path(f"/proc/{dispatcher}/task").iterdir():
        is_relay = (thread / "comm").read_text().startswith("tls-")
        if is_relay and (thread / "stat").read_text().rpartition(")")[2].split()[0] not in "ST":
            return None
    # It may have more than one descriptor of a socket.
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
