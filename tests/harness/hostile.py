"""Hostile peers of the dispatcher: a stranger at its control socket, and a
backend that has attached as pg_baton's do and then sends and writes any data.

A backend of that kind is a process of its own, because the dispatcher gets the
identity of the process from the kernel, and signals it.  The process and the test
share the connection; the test sends and receives for the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import stat
import struct
import termios
from collections.abc import Iterator
from typing import NoReturn

from .account import become_server_user
from .cluster import CONTROL_SOCKET, Cluster
from .control_memory import ControlMemory, constant
from .health import stop, wait_until

MORE = constant("BATON_FRAME_MORE")


def frame(kind: str | int, session: int = 0, payload: bytes = b"", flags: int = 0, length: int | None = None) -> bytes:
    """One packet; `kind` is the message's name without BATON_MSG_."""
    number = constant(f"BATON_MSG_{kind}") if isinstance(kind, str) else kind
    length = len(payload) if length is None else length
    return struct.pack("=HHIQ", number, flags, length, session) + payload


def string(value: bytes) -> bytes:
    return struct.pack("=I", len(value)) + value


def put(kind: int, key: bytes, value: bytes) -> bytes:
    """Payload of PUT: an item without a statement counter."""
    return struct.pack("=HH", kind, len(key)) + key + struct.pack("=Iq", 0, 0) + value


class Peer:
    """A connection to the control socket, of the test or of a process of its own."""

    def __init__(self, cluster: Cluster, own_process: bool = False) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(20)
        self.process: int | None = None
        self.descriptors: list[int] = []
        # the path of a data directory may be too long for a socket's
        directory = os.open(cluster.data, os.O_DIRECTORY)
        try:
            if not own_process:
                self.socket.connect(f"/proc/self/fd/{directory}/{CONTROL_SOCKET}")
                return
            self.process = os.fork()
            if self.process == 0:
                self._connect_and_wait(directory)
        finally:
            os.close(directory)
        wait_until(self._is_connected, what="the child has connected")

    def _connect_and_wait(self, directory: int) -> NoReturn:
        """Runs in the child: the kernel assigns the connection to the child, and lets
        the dispatcher signal the child, which runs as the server's user."""
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            become_server_user()
            os.fchdir(directory)
            self.socket.connect(CONTROL_SOCKET)
            os.chdir("/")
            # sockets of the test's clients: the end of a client would not be seen while they are open
            number = self.socket.fileno()
            os.closerange(3, number)
            os.closerange(number + 1, 65536)
            while True:
                signal.pause()
        finally:
            os._exit(1)

    def _is_connected(self) -> bool:
        try:
            self.socket.getpeername()
            return True
        except OSError:
            return False

    def send(self, *packets: bytes) -> None:
        for packet in packets:
            self.socket.send(packet)

    def is_heard(self) -> bool:
        """The dispatcher has read all that was sent."""
        return struct.unpack("=i", fcntl.ioctl(self.socket, termios.TIOCOUTQ, bytes(4))) == (0,)

    def all_received(self) -> list[int]:
        """Types of the frames that have come."""
        kinds = []
        while select.select([self.socket], [], [], 0)[0]:
            kinds.append(self.receive()[0])
        return kinds

    def receive(self) -> tuple[int, int, bytes]:
        """Type, session and payload of the next frame; descriptors are kept."""
        packet, descriptors, _, _ = socket.recv_fds(self.socket, 65536, 4)
        if not packet:
            raise EOFError
        self.descriptors += descriptors
        kind, _, length, session = struct.unpack("=HHIQ", packet[:16])
        assert length == len(packet) - 16
        return kind, session, packet[16:]

    def is_closed(self) -> bool:
        """The dispatcher has closed the connection; frames that it sent before are skipped."""
        try:
            while True:
                self.receive()
        except (EOFError, ConnectionResetError, BrokenPipeError):
            return True
        except TimeoutError:
            return False

    def has_ended(self) -> bool:
        """The process of the peer has ended."""
        if self.process is None:
            return True
        pid, _ = os.waitpid(self.process, os.WNOHANG)
        if pid != 0:
            self.process = None
        return pid != 0

    def close(self) -> None:
        self.socket.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []
        if self.process is not None:
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
            self.process = None

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_) -> None:
        self.close()


@contextlib.contextmanager
def nobody_starts(cluster: Cluster) -> Iterator[None]:
    """The server takes no connection: a backend that is expected does not come."""
    postmaster = cluster.postmaster_pid()
    stop(postmaster)
    try:
        yield
    finally:
        os.kill(postmaster, signal.SIGCONT)


class Backend(Peer):
    """A backend, attached in the slot that is expected to be filled next."""

    def __init__(self, cluster: Cluster, memory: ControlMemory, role: int, database: int) -> None:
        super().__init__(cluster, own_process=True)
        self.memory = memory
        found: list[int] = []

        def is_expected() -> bool:
            for slot in range(memory.header.backend_slots):
                words = memory.backend_slot(slot)
                if words.state == constant("BATON_BACKEND_STARTING") and words.attach_token:
                    found.append(slot)
                    return True
            return False

        wait_until(is_expected, what="a backend is expected")
        self.slot = found[0]
        words = memory.backend_slot(self.slot)
        version = constant("BATON_LAYOUT_VERSION")
        who = struct.pack("=IIQIII", version, self.slot, words.attach_token, self.process, role, database)
        self.send(frame("HELLO_BACKEND", 0, who))
        kind, _, _ = self.receive()
        assert kind == constant("BATON_MSG_WELCOME"), kind
        assert len(self.descriptors) >= 3
        words.pid = self.process
        words.state = constant("BATON_BACKEND_IDLE")
        self.send(frame("RELEASE"))

    def assigned(self) -> int:
        """The session that the backend is given, or takes from the ready queue; it is put in place."""
        session = self.in_hand()
        own = self.memory.backend_slot(self.slot)
        own.session = session
        words = self.memory.session_slot(session)
        words.owner = words.last_backend = self.slot + 1
        words.state = constant("BATON_STATE_ACTIVE")
        return session

    def in_hand(self) -> int:
        """The session likewise, but not put in place: no other process knows which backend has it."""
        # the only socket of the descriptors that come with WELCOME
        number = next(one for one in self.descriptors if stat.S_ISSOCK(os.fstat(one).st_mode))
        queue = socket.socket(fileno=os.dup(number))
        with queue:
            while True:
                readable, _, _ = select.select([self.socket, queue], [], [], 20)
                assert readable, "no session comes"
                if queue in readable:
                    with contextlib.suppress(BlockingIOError):
                        return self._take(queue, from_queue=True)
                elif (session := self._take(self.socket)) is not None:
                    return session

    def answer(self) -> None:
        """Answers the request of the client of the session in place with an empty result."""
        self.read()
        os.write(self.descriptors[-1], b"I\0\0\0\4" + b"Z\0\0\0\5I")

    def read(self) -> None:
        """Reads the client's request, and sends no answer."""
        client = self.descriptors[-1]
        wait_until(lambda: bool(select.select([client], [], [], 0)[0]), what="the client asks")
        os.read(client, 65536)

    def give_back(self, session: int, shows_idle: bool = True, tells: bool = True) -> None:
        """Gives the session back as handover.c does: first the words, then RELEASE."""
        words = self.memory.session_slot(session)
        words.state = constant("BATON_STATE_IDLE")
        words.owner = 0
        if shows_idle:
            self.show_idle()
        else:
            self.memory.backend_slot(self.slot).session = 0
        if tells:
            self.send(frame("RELEASE", session))

    def show_idle(self) -> None:
        """Writes the words of a backend that may be given a session."""
        own = self.memory.backend_slot(self.slot)
        own.session = 0
        own.state = constant("BATON_BACKEND_IDLE")

    def _take(self, source: socket.socket, from_queue: bool = False) -> int | None:
        packet, descriptors, _, _ = socket.recv_fds(source, 65536, 1)
        if not packet:
            raise EOFError
        self.descriptors += descriptors
        kind, _, _, session = struct.unpack("=HHIQ", packet[:16])
        if kind != constant("BATON_MSG_ASSIGN"):
            return None
        own = self.memory.backend_slot(self.slot)
        if from_queue:
            self.memory.pool_slot(own.pool).queued -= 1
        own.state = constant("BATON_BACKEND_BUSY")
        return session
