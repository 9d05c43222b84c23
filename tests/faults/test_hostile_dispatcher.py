"""Whatever messages a faulty dispatcher sends, the server does not crash, and a healthy
dispatcher serves on."""

from __future__ import annotations

import os
import re
import socket
import struct

import pytest
from harness.control_memory import ControlMemory, constant
from harness.health import assert_healthy, wait_until
from harness.hostile import MORE, frame, string
from harness.impostor import Impostor, control_of, heard, send_descriptors
from harness.messages import PAYLOADS, VERSION, client, each, question, word
from harness.wire import Closed, QueryFailed, Wire, startup

HOST = "127.0.0.1"

pytestmark = pytest.mark.pool_only

NULL = word(0xFFFFFFFF)
TICKET = 0x1234567890ABCD01


class World:
    def __init__(self, make_cluster) -> None:
        # The dispatcher may be stopped for longer than the launcher allows: an impostor takes its place.
        parameters = {"pg_baton.hang_limit_ms": 0}
        self.cluster = make_cluster(hba=["local all all trust", "host all all all trust"], parameters=parameters)
        self.cluster.sql("CREATE EXTENSION pg_baton")
        self.memory = ControlMemory(self.cluster)
        self.impostor = Impostor(self.cluster)

    def assert_lives(self, what: str) -> None:
        log = self.cluster.log()
        assert "was terminated by signal 1" not in log, what
        assert "was terminated by signal 6" not in log and "was terminated by signal 7" not in log, what

    def comes(self, **parameters: str) -> Wire:
        """Connects to the server's own port, as the dispatcher would for a client."""
        wire = Wire.open(HOST, self.cluster.port)
        wire.send(startup({"user": "postgres", "database": "postgres"} | parameters))
        return wire

    def opens(self, slot: int) -> Wire:
        """Opens a backend of the pool for the bootstrap superuser."""
        words = self.memory.backend_slot(slot)
        words.attach_token = 1
        words.state = constant("BATON_BACKEND_STARTING")
        return self.comes(options=f"-c pg_baton.attach={slot}:1:10:0", **{"_pq_.pg_baton": ""})

    def with_ticket(self) -> Wire:
        self.memory.header.tickets[TICKET % constant("BATON_TICKETS")] = TICKET
        return self.comes(**{f"_pq_.pg_baton.{TICKET:016x}": ""})

    def assert_healthy(self) -> None:
        self.memory.header.tickets[TICKET % constant("BATON_TICKETS")] = 0
        assert_healthy(self.cluster)


def ends(wire: Wire, what: str) -> None:
    try:
        wire.until_closed(20)
    except (Closed, ConnectionError):
        pass
    except TimeoutError:
        raise AssertionError(f"it does not end: {what}") from None


def test_no_client_that_it_gives_to_a_backend_crashes_the_server(make_cluster):
    world = World(make_cluster)
    whole = client()
    tls = {"secure": 1, "has_certificate": 1}
    lies = {what: packets[0] for what, packets in each(0, {"CLIENT"}).items()}
    lies |= {f"{length} bytes": frame("CLIENT", 0, whole[:length]) for length in range(0, len(whole), 7)}
    lies |= {
        "longer than it is": frame("CLIENT", 0, whole, length=len(whole) + 1),
        "it goes on": frame("CLIENT", 0, whole, MORE),
        "half a header": frame("CLIENT")[:9],
        "no names": frame("CLIENT", 0, client(**tls, names=NULL * 2)),
        "no common name": frame("CLIENT", 0, client(**tls, names=NULL + string(b"x"))),
        "no distinguished name": frame("CLIENT", 0, client(**tls, names=string(b"x") + NULL)),
        "no certificate": frame("CLIENT", 0, client(**tls, certificate=NULL)),
        "a certificate that is none": frame("CLIENT", 0, client(**tls, certificate=string(b"\x30\x82\xff\xff" * 99))),
        "no texts": frame("CLIENT", 0, client(**tls, rest=word(0) + NULL * 5)),
        "long texts": frame("CLIENT", 0, client(**tls, rest=word(2**32 - 1) + string(b"x" * 9000) * 5)),
        "no such kind": frame("CLIENT", 0, client(kind=99)),
        "GSSAPI encryption": frame("CLIENT", 0, client(kind=constant("BATON_TICKET_GSS"))),
        "no such family": frame("CLIENT", 0, client(family=77)),
    }
    with world.impostor.in_its_place() as listener:
        for what, lie in lies.items():
            for count in (0, 1, 2) if what in ("", "no such kind") else (1,):
                wire = world.with_ticket()
                ours, theirs = socket.socketpair()
                peer, _ = listener.accept()
                assert heard(peer) == constant("BATON_MSG_HELLO_TICKET")
                socket.send_fds(peer, [lie], [theirs.fileno()] * count)
                theirs.close()
                ours.close()  # the client has gone
                peer.shutdown(socket.SHUT_WR)
                ends(wire, what)
                while heard(peer):
                    pass
                peer.close()
                wire.close()
                world.assert_lives(what)
        # descriptors that are not sockets
        for path, secure in (("/dev/null", 0), ("/dev/null", 1), ("/etc/passwd", 0), ("/etc/passwd", 1)):
            wire = world.with_ticket()
            peer, _ = listener.accept()
            number = os.open(path, os.O_RDONLY)
            socket.send_fds(peer, [frame("CLIENT", 0, client(secure=secure))], [number])
            os.close(number)
            ends(wire, path)
            peer.close()
            wire.close()
            world.assert_lives(path)
    world.assert_healthy()


def test_no_answer_about_a_native_session_crashes_the_server(make_cluster):
    world = World(make_cluster)
    lies = {what: packets[0] for what, packets in each(0).items()}
    lies |= {
        "no why": frame("NATIVE_ANSWER", 0, NULL + string(b"")),
        "neither": frame("NATIVE_ANSWER", 0, NULL * 2),
        "why, and no detail": frame("NATIVE_ANSWER", 0, string(b"why") + NULL),
        "longer than it is": frame("NATIVE_ANSWER", 0, string(b"") * 2, length=9),
        "half a header": b"x",
    }
    with world.impostor.in_its_place() as listener:
        for what, lie in lies.items():
            wire = world.with_ticket()
            ours, theirs = socket.socketpair()
            peer, _ = listener.accept()
            heard(peer)
            socket.send_fds(peer, [frame("CLIENT", 0, PAYLOADS["CLIENT"])], [theirs.fileno()])
            theirs.close()
            assert heard(peer) == constant("BATON_MSG_NATIVE_IN"), what
            peer.send(lie)
            # the client is let in, or told the reason why not
            told = Wire(ours).until_ready(20) if what not in ("why, and no detail", "half NATIVE_ANSWER of 0") else []
            assert what == "why, and no detail" or told == [] or told[-1].type in "ZE", what
            ours.close()
            peer.close()
            wire.close()
            world.assert_lives(what)
    world.assert_healthy()


def test_no_welcome_crashes_the_server(make_cluster):
    world = World(make_cluster)
    slot = world.memory.header.backend_slots - 1
    lies = {what: packets[0] for what, packets in each(0, {"WELCOME"}).items()}
    for number in (0, 3, 900, 2**31 - 1, 2**32 - 1):
        for size in (0, 1, 1 << 20, 2**63, 2**64 - 1):
            lies[f"number {number}, size {size}"] = frame(
                "WELCOME", 0, VERSION + word(number) + size.to_bytes(8, "little")
            )
    lies["half"] = frame("WELCOME", 0, PAYLOADS["WELCOME"][:-1])
    lies["longer than it is"] = frame("WELCOME", 0, PAYLOADS["WELCOME"], length=99)
    lies["an endless reason"] = frame("REFUSED", 0, word(2**32 - 1) + b"no")
    memory = os.memfd_create("none of ours", os.MFD_ALLOW_SEALING)
    os.truncate(memory, 1 << 20)
    with world.impostor.in_its_place() as listener:
        for what, lie in lies.items():
            for count in (0, 2, 3, 11):
                wire = world.opens(slot)
                peer, _ = listener.accept()
                assert heard(peer) == constant("BATON_MSG_HELLO_BACKEND")
                socket.send_fds(peer, [lie], [memory] * count)
                ends(wire, what)
                peer.close()
                wire.close()
                world.assert_lives(what)
    os.close(memory)
    world.assert_healthy()


def test_no_question_to_the_launcher_crashes_the_server(make_cluster):
    """The launcher ends a dispatcher that it does not understand, and starts another."""
    world = World(make_cluster)
    # the launcher ends the dispatcher, which does not end by itself
    world.cluster.expect_in_log(r"dispatcher \(PID \d+\) has ended: child process was terminated by signal 9")
    launcher = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_baton launcher'"
    before = world.cluster.sql(launcher)
    # the launcher understands these, and answers a dispatcher that has not asked
    harmless = {
        "nobody": question(user=string(b"\xff\xfe")),
        "a long name": question(user=string(b"x" * 60000)),
        "host, IPv4": question(connection=1, family=2),
    }
    wrong = {
        "no user": frame("LOGIN_QUESTION", 0, question(user=NULL)),
        "no names": frame("LOGIN_QUESTION", 0, question(rest=string(b"") + bytes(3) + NULL * 2)),
        "no such family": frame("LOGIN_QUESTION", 0, question(connection=1, family=77)),
        "half": frame("LOGIN_QUESTION", 0, question()[:-1]),
        "a longer name than there is": frame("LOGIN_QUESTION", 0, question(user=word(2**32 - 2))),
        "half a pool": frame("POOL_QUESTION", 0, word(10)),
        "a worker's": frame("ASSIGN"),
        "nothing": b"x",
    }
    with world.impostor.channel() as channel:
        for what, lie in harmless.items():
            number = os.open("/dev/null", os.O_RDONLY)
            send_descriptors(channel, frame("LOGIN_QUESTION", 0, lie), [number] * 4)
            os.close(number)
    for what, lie in wrong.items():
        with world.impostor.channel() as channel:
            channel.send(lie)
        old = world.impostor.pid
        wait_until(lambda: len(p := world.cluster.dispatcher_pids()) == 1 and p != [old], what=what)
        world.cluster.wait_pool_ready()
        world.assert_lives(what)
    assert world.cluster.sql(launcher) == before
    world.assert_healthy()


def log_line(level: int = 0, message: bytes = b"a line", pid: int = 0, user: bytes = b"", since: int = 0) -> bytes:
    """A LOG_LINE about a client."""
    texts = b"".join(map(string, (b"28P01", message, b"detail", b"hint")))
    about = b"\1" + struct.pack("=Iq", pid, since)
    return frame("LOG_LINE", 0, bytes((level,)) + texts + about + b"".join(map(string, (user, user, user, b"1", user))))


def test_no_line_for_the_log_crashes_the_server_or_is_another_s(make_cluster):
    """A line that is not understood ends the connection; the log writer comes back."""
    world = World(make_cluster)
    cluster = world.cluster

    def writer() -> int:
        return next((p.pid for p in cluster.processes() if "pg_baton log writer" in p.command), 0)

    def is_over(channel: socket.socket) -> bool:
        try:
            return channel.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    def channel() -> socket.socket:
        """The dispatcher's end of the log writer's connection, once there is one."""
        found: list[socket.socket] = []

        def is_there() -> bool:
            try:
                found[:] = [control_of(world.impostor, writer())]
            except (AssertionError, OSError):
                return False
            if is_over(found[0]):
                found[0].close()
                return False
            return True

        wait_until(is_there, what="the log writer has connected")
        return found[0]

    def say(*packets: bytes) -> None:
        with channel() as its:
            for packet in packets:
                send_descriptors(its, packet, [null] * 2)

    null = os.open("/dev/null", os.O_RDONLY)
    process = writer()
    postmaster = int((cluster.data / "postmaster.pid").read_text().split()[0])
    evil = b"%s%n\xff\xfe\n2001-01-01 00:00:00 JST [1] LOG:  forged"
    say(
        log_line(),
        log_line(level=255, message=b"of no level"),
        log_line(level=3, message=evil, user=evil),
        log_line(pid=postmaster, message=b"of the postmaster"),
        log_line(pid=2**32 - 1, since=2**63 - 1, message=b"in another time"),
        log_line(pid=2**31 - 1, since=-(2**63), message=b"in another time"),
        log_line(message=b"x" * 50000, user=b"y" * 2000),
        log_line(message=b"the last one"),
    )
    cluster.wait_for_log("the last one")
    text = cluster.log()
    assert "of no level" in text and text.count("in another time") == 2 and "x" * 50000 in text
    assert not [line for line in text.splitlines() if line.startswith("2001-")]
    (line,) = [line for line in text.splitlines() if "of the postmaster" in line]
    assert f"[{world.impostor.pid}]" in line
    lies = {what: packets[0] for what, packets in each(0, {"LOG_LINE"}).items()}
    lies |= {
        "half a line": frame("LOG_LINE", 0, PAYLOADS["LOG_LINE"][:-1]),
        "more than a line": frame("LOG_LINE", 0, PAYLOADS["LOG_LINE"] + b"x"),
        "no message": frame("LOG_LINE", 0, b"\0" + string(b"") + NULL),
        "a zero in a name": log_line(user=b"a\0b"),
        "nothing": b"x",
    }
    for what, lie in lies.items():
        start = len(cluster.log())
        with channel() as its:
            send_descriptors(its, lie, [null])
            wait_until(lambda: is_over(its), 20, what)  # noqa: B023
        say(log_line(message=b"after " + what.encode()))
        cluster.wait_for_log(re.escape(f"after {what}"), start=start)
        world.assert_lives(what)
    os.close(null)
    assert writer() == process
    world.assert_healthy()


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in a transaction"])
def test_no_message_to_a_backend_crashes_the_server(make_cluster, busy):
    """The backend's session may end; a session of another database keeps its own state."""
    world = World(make_cluster)
    world.cluster.sql("CREATE DATABASE another TEMPLATE template0")
    other = Wire.login(HOST, world.cluster.pool_port, database="another")
    other.query("SET my.own = 'other'")
    ((others,),) = world.cluster.sql("SELECT id FROM pg_baton_sessions WHERE database = 'another'")
    null = os.open("/dev/null", os.O_RDONLY)
    lies = {what: packets[0] for what, packets in each(0).items()}
    for session in (others, others + (1 << 32), 2**64 - 1, "own"):
        for kind in ("ASSIGN", "RECALL", "EVICT"):
            lies[f"{kind} of {session}"] = (kind, session)
    lies["nothing"] = b"x"
    for what, lie in lies.items():
        for descriptors in ([], [null], [null, null]) if "ASSIGN" in what else ([null],):
            victim = Wire.login(HOST, world.cluster.pool_port, application_name="victim")
            victim.query("BEGIN" if busy else "SELECT 1")
            ((session, process),) = world.cluster.sql(
                "SELECT s.id, b.pid FROM pg_baton_sessions s CROSS JOIN pg_baton_backends b"
                " WHERE s.application_name = 'victim' AND b.database = 'postgres'"
                " ORDER BY b.session_id = s.id DESC NULLS LAST LIMIT 1"
            )
            packet = lie
            if isinstance(lie, tuple):
                packet = frame(lie[0], session if lie[1] == "own" else lie[1])
            with control_of(world.impostor, process) as control:
                send_descriptors(control, packet, descriptors)
            try:
                victim.query("SELECT 1", timeout_s=20)
            except (QueryFailed, Closed, ConnectionError):
                pass
            victim.close()
            there = "SELECT 1 FROM pg_baton_sessions WHERE application_name = 'victim'"
            wait_until(lambda: world.cluster.sql(there) == [], 20, what)
            world.assert_lives(what)
    os.close(null)
    try:
        assert other.query("SHOW my.own") == [["other"]]
    except (Closed, ConnectionError):
        pass  # some messages named this session, which may have ended it
    other.close()
    world.assert_healthy()
