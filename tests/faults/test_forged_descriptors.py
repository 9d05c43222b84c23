"""Descriptors that come with messages which should carry none, or others, are closed
again; a process that writes into a pool's ready queue harms no other pool."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator

import pytest
from harness.control_memory import ControlMemory, constant
from harness.health import assert_healthy, assert_nothing_spins, wait_until
from harness.hostile import Peer, frame
from harness.impostor import Impostor, control_of, heard, send_descriptors
from harness.messages import PAYLOADS, each, question
from harness.processes import descriptors, watched
from harness.wire import Closed, QueryFailed, Wire, query, startup

HOST = "127.0.0.1"

pytestmark = pytest.mark.pool_only

GONE = (Closed, ConnectionError)
TICKET = 0x1234567890ABCD01
QUEUE = 6  # Source::Queue, dispatcher/src/shell/events.rs
SO_PASSPIDFD = 76  # asm-generic/socket.h, Linux 6.5

# The name of the file whose descriptors are sent, by which the tests find them again.
MARK = "marker of the tests"


@pytest.fixture
def mark() -> Iterator[int]:
    number = os.memfd_create(MARK)
    yield number
    os.close(number)


def marked(pid: int) -> int:
    return sum(MARK in one for one in descriptors(pid))


class World:
    def __init__(self, make_cluster, **parameters) -> None:
        self.cluster = make_cluster(
            parameters={"pg_baton.max_backends": 1} | parameters, hba=["local all all trust", "host all all all trust"]
        )
        self.cluster.sql("CREATE EXTENSION pg_baton")
        self.cluster.sql("CREATE DATABASE another TEMPLATE template0")
        self.memory = ControlMemory(self.cluster)
        self.impostor = Impostor(self.cluster)

    def come(self, name: str, database: str = "postgres") -> Wire:
        wire = Wire.login(HOST, self.cluster.pool_port, database=database, application_name=name)
        wire.query(f"SET my.own = '{name}'")
        return wire

    def session(self, name: str) -> int:
        ((session,),) = self.cluster.sql(f"SELECT id FROM pg_baton_sessions WHERE application_name = '{name}'")
        return session

    def backend(self, database: str = "postgres") -> tuple[int, int]:
        """Slot and process of the only backend of this database."""
        found = f"SELECT slot, pid FROM pg_baton_backends WHERE database = '{database}' AND pid IS NOT NULL"
        wait_until(lambda: len(self.cluster.sql(found)) == 1, what="it is there")
        ((slot, pid),) = self.cluster.sql(found)
        return slot, pid

    def entry(self, pool: int) -> socket.socket:
        """The dispatcher's end of that pool's ready queue."""
        (number,) = watched(self.impostor.pid, QUEUE << 24 | pool)
        found = self.impostor.borrowed(number)
        assert found is not None
        return found

    def end(self, process: int) -> socket.socket:
        """That backend's end of its pool's ready queue: the only pair of packet sockets made by
        the dispatcher of which both processes have an end."""
        theirs = descriptors(process)
        for number in os.listdir(f"/proc/{self.impostor.pid}/fd"):
            name = os.readlink(f"/proc/{self.impostor.pid}/fd/{number}")
            if not name.startswith("socket:") or name not in theirs:
                continue
            found = self.impostor.borrowed(int(number))
            if found is None:
                continue
            pair = (
                struct.unpack("=iII", found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
                == self.impostor.pid
            )
            if (
                pair
                and found.type == socket.SOCK_SEQPACKET
                and not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            ):
                return found
            found.close()
        raise AssertionError("there is no ready queue")

    def assert_lives(self, what: str) -> None:
        assert "was terminated by signal" not in self.cluster.log(), what


# ---- with messages that carry none -------------------------------------------


def test_a_backend_closes_what_comes_with_anything_but_a_session(make_cluster, mark):
    world = World(make_cluster)
    with world.come("kept") as session:
        _, pid = world.backend()
        before = len(descriptors(pid))
        with control_of(world.impostor, pid) as control:
            for what, (packet,) in each(0, {"ASSIGN"}).items():
                for count in (1, 3, 10, 12, 200):
                    send_descriptors(control, packet, [mark] * count)
                assert session.query("SELECT 1") == [["1"]], what
        assert session.query("SHOW my.own") == [["kept"]]
        wait_until(lambda: marked(pid) == 0, 20, "they are closed")
        assert len(descriptors(pid)) == before
        session.finish()
    assert_healthy(world.cluster)


def test_the_dispatcher_keeps_nothing_that_is_sent_to_it(make_cluster, mark):
    world = World(make_cluster)
    (dispatcher,) = world.cluster.dispatcher_pids()
    version = PAYLOADS["HELLO_QUERY"][:4]
    secret = version + struct.pack("=QI", world.memory.header.secret, constant("BATON_QUERY_POOLS"))
    packets = {what: packet for what, (packet,) in each(0).items()} | {"in order": frame("HELLO_QUERY", 0, secret)}
    for what, packet in packets.items():
        with Peer(world.cluster) as stranger:
            socket.send_fds(stranger.socket, [packet], [mark] * 5)
            assert stranger.is_closed(), what
        assert marked(dispatcher) == 0, what
    assert_healthy(world.cluster)


def test_the_launcher_keeps_nothing_that_is_sent_to_it(make_cluster, mark):
    world = World(make_cluster)
    ((launcher,),) = world.cluster.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_baton launcher'")
    with world.impostor.channel() as channel:
        for _ in range(20):
            send_descriptors(channel, frame("LOGIN_QUESTION", 0, question()), [mark] * 7)
    world.come("new", "another").finish()  # the launcher has answered since
    assert marked(launcher) == 0
    assert_healthy(world.cluster)


def test_native_session_keeps_nothing_that_comes_with_its_answer(make_cluster, mark):
    world = World(make_cluster)
    with world.impostor.in_its_place() as listener:
        world.memory.header.tickets[TICKET % constant("BATON_TICKETS")] = TICKET
        wire = Wire.open(HOST, world.cluster.port)
        who = {"user": "postgres", "database": "postgres", f"_pq_.pg_baton.{TICKET:016x}": ""}
        wire.send(startup(who))
        ours, theirs = socket.socketpair()
        peer, _ = listener.accept()
        heard(peer)
        socket.send_fds(peer, [frame("CLIENT", 0, PAYLOADS["CLIENT"])], [theirs.fileno()])
        theirs.close()
        assert heard(peer) == constant("BATON_MSG_NATIVE_IN")
        socket.send_fds(peer, [frame("NATIVE_ANSWER", 0, PAYLOADS["NATIVE_ANSWER"])], [mark] * 9)
        native = Wire(ours)
        native.until_ready(20)
        ((pid,),) = native.query("SELECT pg_backend_pid()")
        assert marked(int(pid)) == 0
        native.finish()
        peer.close()
        wire.close()
        world.memory.header.tickets[TICKET % constant("BATON_TICKETS")] = 0
    assert_healthy(world.cluster)


def test_querying_backend_keeps_nothing_sent_with_the_answer(make_cluster, mark):
    world = World(make_cluster)
    with Wire.login(HOST, world.cluster.port) as asking, world.impostor.in_its_place() as listener:
        ((pid,),) = asking.query("SELECT pg_backend_pid()")
        for _ in range(5):
            asking.send(query("SELECT * FROM pg_baton_pools"))
            peer, _ = listener.accept()
            assert heard(peer) == constant("BATON_MSG_HELLO_QUERY")
            socket.send_fds(peer, [frame("DONE")], [mark] * 9)
            assert [m.type for m in asking.until_ready(20)][-2:] == ["C", "Z"]
            peer.close()
        assert marked(int(pid)) == 0
    assert_healthy(world.cluster)


# ---- the ready queue ----------------------------------------------------------


@contextlib.contextmanager
def sockets_of_all_kinds() -> Iterator[dict[str, int]]:
    """Descriptors that may come in the place of a client's connection."""
    with contextlib.ExitStack() as stack:

        def kept(one):
            return stack.enter_context(one).fileno()

        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.bind((HOST, 0))
        listening.listen()
        gone, other = socket.socketpair()
        other.close()
        shut, kept_open = socket.socketpair()
        shut.shutdown(socket.SHUT_RDWR)
        kept(kept_open)
        packets, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept(others)
        directory = os.open("/", os.O_DIRECTORY)
        stack.callback(os.close, directory)
        path = os.open("/etc/passwd", os.O_PATH)
        stack.callback(os.close, path)
        epoll, event = kept(select.epoll()), os.eventfd(0)
        stack.callback(os.close, event)
        reading, writing = os.pipe()
        stack.callback(os.close, reading)
        stack.callback(os.close, writing)
        yield {
            "a file": kept(tempfile.TemporaryFile()),
            "a device": kept(open("/dev/null", "rb")),
            "a directory": directory,
            "a path": path,
            "an epoll": epoll,
            "an eventfd": event,
            "a pipe to read": reading,
            "a pipe to write": writing,
            "listening": kept(listening),
            "not connected": kept(socket.socket()),
            "datagrams": kept(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
            "packets": kept(packets),
            "its client has gone": kept(gone),
            "shut": kept(shut),
        }


SILENT = (
    "packets",
    "datagrams",
    "not connected",
    "listening",
    "an epoll",
    "an eventfd",
    "a pipe to read",
    "a pipe to write",
)


def test_no_content_of_a_queue_harms_another_pool(make_cluster, mark):
    """The queue is that of one pool's backend; the session of another pool has its own backend."""
    world = World(make_cluster, **{"pg_baton.max_backends": 2})
    other = world.come("other", "another")
    ((others,),) = world.cluster.sql("SELECT id FROM pg_baton_sessions WHERE database = 'another'")
    # this session keeps its backend
    other.query("BEGIN")
    other_backend = world.backend("another")[1]
    before = len(descriptors(other_backend))

    def forge(what: str, packet: bytes, numbers: list[int]) -> None:
        busy = world.come("busy")
        busy.query("BEGIN")
        slot, pid = world.backend()
        own = world.session("busy")
        number = world.memory.backend_slot(slot).pool
        with world.entry(number) as queue:
            send_descriptors(queue, packet.replace(b"OWNOWNOW", struct.pack("=Q", own)), numbers)
        world.memory.pool_slot(number).queued += 1
        try:
            busy.query("COMMIT", timeout_s=20)
            busy.query("SELECT 1", timeout_s=5 if what in SILENT else 30)
        except (QueryFailed, *GONE):
            pass
        except TimeoutError:
            # its backend serves another socket, which sends nothing
            assert what in SILENT, what
            world.cluster.sql(f"SELECT pg_terminate_backend({pid})")
        busy.close()
        wait_until(
            lambda: world.cluster.sql("SELECT 1 FROM pg_baton_sessions WHERE application_name = 'busy'") == [],
            20,
            f"its session has ended: {what}",
        )
        wait_until(lambda: marked(pid) == 0, 20, f"they are closed: {what}")
        world.assert_lives(what)
        assert other.query("SHOW my.own") == [["other"]], what

    own = int.from_bytes(b"OWNOWNOW", "little")
    for what, (packet,) in each(0).items():
        forge(what, packet, [mark])
    names = {
        "no session": 0,
        "its own": own,
        "nobody's": others + (1 << 32),
        "out of range": 2**64 - 1,
        "no generation": others & 0xFFFFFFFF,
    }
    for whose, name in names.items():
        for count in (0, 1, 2, 10, 12, 200):
            forge(f"{count} descriptors for {whose}", frame("ASSIGN", name), [mark] * count)
    for what, packet in {
        "nothing": b"x",
        "half a header": frame("ASSIGN", own)[:9],
        "longer than it is": frame("ASSIGN", own, length=7),
        "it goes on": frame("ASSIGN", own, flags=constant("BATON_FRAME_MORE")),
        "more": frame("ASSIGN", own, b"x" * 1000),
        "no such flag": frame("ASSIGN", own, flags=0xFFFF),
    }.items():
        forge(what, packet, [mark])
    with sockets_of_all_kinds() as kinds:
        for what, number in kinds.items():
            for name in (own, others + (1 << 32)):
                forge(what, frame("ASSIGN", name), [number])
            # as the socket of a session that exists
            new = world.come("new")
            session = world.session("new")
            forge(f"{what} of another session", frame("ASSIGN", session), [number])
            new.close()
    assert len(descriptors(other_backend)) == before
    other.query("COMMIT")
    other.finish()
    assert_healthy(world.cluster)


def test_only_the_dispatcher_can_put_anything_into_a_queue(make_cluster, mark):
    """A backend can put nothing there for another backend, and nothing that stays into the dispatcher's end."""
    world = World(make_cluster)
    with world.come("one") as session:
        with world.end(world.backend()[1]) as queue:
            with pytest.raises(BrokenPipeError):
                socket.send_fds(queue, [frame("ASSIGN", world.session("one"))], [mark])
        assert session.query("SHOW my.own") == [["one"]]
        session.finish()
    assert_healthy(world.cluster)


def test_shut_queue_costs_the_backends_of_its_pool_and_no_cpu(make_cluster):
    world = World(make_cluster, **{"pg_baton.max_backends": 2})
    with world.come("other", "another") as other, world.come("busy") as busy, world.come("waiting") as waiting:
        other.query("BEGIN")
        busy.query("BEGIN")
        _, pid = world.backend()
        with world.end(pid) as queue:
            queue.shutdown(socket.SHUT_RDWR)
        waiting.send(query("SHOW my.own"))
        # any backend of the pool could have shut the queue, and there is only one
        assert [m.fields()["C"] for m in busy.until_closed(20) if m.type == "E"] == ["57P01"]
        assert [m.row() for m in waiting.until_ready(20) if m.type == "D"] == [[b"waiting"]]
        assert world.backend()[1] != pid
        assert_nothing_spins(world.cluster)
        assert other.query("SHOW my.own") == [["other"]]
        # the next backend has another queue
        with world.come("third") as third:
            waiting.query("BEGIN")
            third.send(query("SHOW my.own"))
            wait_until(lambda: 1 in [world.memory.pool_slot(n).queued for n in range(4)], what="it is in the queue")
            waiting.query("COMMIT")
            assert [m.row() for m in third.until_ready(20) if m.type == "D"] == [[b"third"]]
            third.finish()
        waiting.finish()
        other.query("COMMIT")
        other.finish()
    world.cluster.wait_for_log("has shut the queue of its pool")
    assert_healthy(world.cluster)


def test_descriptors_that_the_kernel_adds_are_closed(make_cluster):
    """Another process that has the queue's end requests a descriptor of the sender's process."""
    world = World(make_cluster)
    one, other = world.come("one"), world.come("other")
    _, pid = world.backend()
    with world.end(pid) as queue:
        try:
            queue.setsockopt(socket.SOL_SOCKET, SO_PASSPIDFD, 1)
        except OSError:
            pytest.skip("the kernel has no SO_PASSPIDFD")
    before = len(descriptors(pid))

    def asks(wire: Wire) -> None:
        for _ in range(50):
            wire.query("SELECT 1", timeout_s=20)

    threads = [threading.Thread(target=asks, args=(wire,)) for wire in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert world.backend()[1] == pid
    assert sum("pidfd" in found for found in descriptors(pid)) == 0
    assert len(descriptors(pid)) <= before + 1
    for wire in (one, other):
        wire.finish()
    assert_healthy(world.cluster)
