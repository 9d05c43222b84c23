"""The test in the dispatcher's place: while the dispatcher is stopped, the test has its
listening socket and answers every process that connects. The test can also borrow the
other sockets of the dispatcher, and speak through them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Iterator

from .cluster import Cluster
from .health import stop
from .processes import borrowed_socket


def send_descriptors(through: socket.socket, packet: bytes, descriptors: list[int], limit_s: float = 20.0) -> None:
    """Sends as soon as the other end has taken enough of the earlier packets, because a socket of the
    dispatcher does not wait by itself."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            socket.send_fds(through, [packet], descriptors)
            return
        except BlockingIOError:
            assert time.monotonic() < deadline, "nobody takes what was sent"
            select.select([], [through], [], 0.05)


class Impostor:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        (self.pid,) = cluster.dispatcher_pids()

    def borrowed(self, number: int) -> socket.socket | None:
        """A copy of a descriptor of the dispatcher, if it is a socket's."""
        return borrowed_socket(self.pid, number)

    def channel(self) -> socket.socket:
        """The launcher's channel, from the dispatcher that the launcher has started last."""
        (self.pid,) = self.cluster.dispatcher_pids()
        return self.borrowed(3)

    def all_borrowed(self) -> Iterator[socket.socket]:
        """Each socket of the dispatcher. The caller closes it."""
        for number in os.listdir(f"/proc/{self.pid}/fd"):
            try:
                if not os.readlink(f"/proc/{self.pid}/fd/{number}").startswith("socket:"):
                    continue
            except FileNotFoundError:
                # The client has gone meanwhile.
                continue
            found = self.borrowed(int(number))
            if found is not None:
                yield found

    def _listener(self) -> socket.socket:
        for found in self.all_borrowed():
            listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and found.type == socket.SOCK_SEQPACKET:
                return found
            found.close()
        raise AssertionError("the dispatcher does not listen")

    @contextlib.contextmanager
    def in_its_place(self) -> Iterator[socket.socket]:
        """The dispatcher's listening socket. The dispatcher is stopped while the test has it."""
        stop(self.pid)
        try:
            with self._listener() as listener:
                listener.settimeout(20)
                yield listener
        finally:
            os.kill(self.pid, signal.SIGCONT)


def heard(peer: socket.socket) -> int:
    """The type of the next frame; 0 at the end of the connection."""
    try:
        packet = peer.recv(65536)
    except ConnectionError:
        packet = b""
    return struct.unpack("=H", packet[:2])[0] if packet else 0


def control_of(impostor: Impostor, process: int) -> socket.socket:
    """The dispatcher's end of a backend's control connection."""
    for found in impostor.all_borrowed():
        peer = found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("=iII", peer)[0] == process and found.type == socket.SOCK_SEQPACKET:
            return found
        found.close()
    raise AssertionError("the backend has no control connection")
