"""A process that lies to the dispatcher loses its connection, and no other process or client loses anything."""

from __future__ import annotations

import contextlib
import itertools
import re
import struct
from pathlib import Path

import pytest
from harness.control_memory import constant
from harness.health import wait_until
from harness.hostile import MORE, Peer, frame, nobody_starts, put, string
from harness.hostile_world import HOST, World
from harness.messages import A_BACKEND_S, PAYLOADS, each, greeted, retiring, word
from harness.wire import GSSENC_REQUEST, Wire, query, startup

pytestmark = pytest.mark.pool_only

PARAMETER = constant("BATON_KIND_PARAMETER")

# Stands for the session that the liar has been given.
OWN = b"\xaa\xbb\xcc\xdd\xee\xff\x11\x22"

# The messages of a backend about a session that it holds.
OF_A_SESSION = {kind: PAYLOADS[kind] for kind in ("PUT", "DELETE", "RELEASE", "GREETED", "END")}


def tell_lies(world: World, packets: dict[str, list[bytes]]) -> None:
    """Sends each lie from a separate backend, which serves a separate client."""
    with nobody_starts(world.cluster):
        for what, lie in packets.items():
            client = world.ask()
            with world.liar() as liar:
                session = liar.assigned()
                liar.send(*(packet.replace(OWN, struct.pack("=Q", session)) for packet in lie))
                assert liar.is_closed(), what
                wait_until(liar.has_ended, what=f"its process has ended: {what}")
            # the client sees the same as when a backend dies
            client.until_closed(20)
            client.close()
    world.assert_unharmed()


@pytest.mark.parametrize("pool", ["its own pool", "another pool"])
def test_backend_cannot_speak_of_a_session_that_it_does_not_hold(make_cluster, pool):
    world = World(make_cluster, pool == "its own pool")
    lies = {}
    for kind, payload in OF_A_SESSION.items():
        others = {name: world.ids[name] for name in ("idle", "busy")} | world.never()
        if kind != "RELEASE":
            others["none"] = 0
        for whose, session in others.items():
            lies[f"{kind} of {whose}"] = [frame(kind, session, payload)]
    # a backend says of itself that it is dedicated, but has to name at least a session that has existed
    for whose, session in world.never().items():
        lies[f"DEDICATED of {whose}"] = [frame("DEDICATED", session, PAYLOADS["DEDICATED"])]
    tell_lies(world, lies)


def test_what_a_backend_says_too_late_is_dropped(make_cluster):
    world = World(make_cluster, same_pool=True)
    with nobody_starts(world.cluster):
        client = world.ask()
        with world.liar() as late:
            session = late.assigned()
            for kind, payload in OF_A_SESSION.items():
                late.send(frame(kind, world.ids["gone"], payload))
            # the dispatcher still hears the backend
            late.send(frame("END", session, word(constant("BATON_END_ERROR"))))
            client.until_closed(20)
            assert not late.has_ended()
    world.assert_unharmed()


def test_message_of_wrong_length_or_order_ends_its_backend(make_cluster):
    world = World(make_cluster, same_pool=True)
    session = int.from_bytes(OWN, "little")
    value = OF_A_SESSION["PUT"]
    lies = {
        "nothing": [b"\0"],
        "half a header": [frame("RELEASE")[:9]],
        "longer than it is": [frame("PUT", session, value, length=len(value) + 1)],
        "shorter than it is": [frame("PUT", session, value, length=len(value) - 1)],
        "unknown flag": [frame("RELEASE", session, flags=MORE << 1)],
        "a key that is not there": [frame("PUT", session, value[:9])],
        "an item of ours": [frame("PUT", session, put(constant("BATON_KIND_STARTUP"), b"role", b"x"))],
        "an item of no kind": [frame("PUT", session, put(99, b"role", b"x"))],
        "half a DELETE": [frame("DELETE", session, OF_A_SESSION["DELETE"][:-1])],
        "more than a DELETE": [frame("DELETE", session, OF_A_SESSION["DELETE"] + b"x")],
        "RELEASE with something": [frame("RELEASE", session, b"x")],
        "END without why": [frame("END", session)],
        "END for no known reason": [frame("END", session, word(99))],
        "more than END": [frame("END", session, word(3) + b"x")],
        "DEDICATED without why": [frame("DEDICATED", session, b"\1")],
        "DEDICATED for no known reason": [frame("DEDICATED", session, word(99))],
        "more than DEDICATED": [frame("DEDICATED", session, word(1) + b"x")],
        "DEDICATED of nobody": [frame("DEDICATED", 0, word(1))],
        "DEDICATED goes on about another session": [
            frame("DEDICATED", session, b"\1\0", MORE),
            frame("DEDICATED", world.ids["idle"], b"\0\0"),
        ],
        "RETIRING without its cause": [frame("RETIRING", 0, b"\1")],
        "RETIRING for no known reason": [frame("RETIRING", 0, retiring(cause=99))],
        "RETIRING without its length": [frame("RETIRING", 0, retiring()[:5])],
        "RETIRING with another": [frame("RETIRING", 0, word(0) + word(9) + b"why")],
        "RETIRING without an end": [frame("RETIRING", 0, word(0) + word(2**32 - 1) + b"why")],
        "more than RETIRING": [frame("RETIRING", 0, retiring(b"why") + b"x")],
        "RETIRING goes on as DEDICATED": [frame("RETIRING", session, word(3), MORE), frame("DEDICATED", session)],
        "GREETED again": [frame("GREETED", session, OF_A_SESSION["GREETED"])],
        "GREETED with what is no notice": [frame("GREETED", session, greeted(word(3) + b"abc"))],
        "GREETED with half a parameter": [frame("GREETED", session, greeted(word(0) + b"TimeZone\0"))],
        "one message goes on as another": [frame("PUT", session, value, MORE), frame("RELEASE", session)],
        "it goes on about another session": [
            frame("PUT", session, value, MORE),
            frame("PUT", world.ids["idle"], b"more"),
        ],
        "HELLO again": [frame("HELLO_BACKEND", 0, bytes(30))],
        "a launcher's": [frame("SHUTDOWN", 0, word(1))],
        "a launcher's answer": [frame("LOGIN_ANSWER", 0, bytes(64))],
        "a dispatcher's": [frame("ASSIGN", session)],
        "nobody's": [frame(999, session)],
    }
    tell_lies(world, lies)


def test_what_is_not_a_backend_s_to_say_ends_it(make_cluster):
    """The test sends every other message, as it would be right from its proper sender."""
    world = World(make_cluster, same_pool=True)
    session = int.from_bytes(OWN, "little")
    tell_lies(world, each(session, A_BACKEND_S))


@pytest.mark.parametrize("pool", ["its own pool", "another pool"])
@pytest.mark.parametrize("kind", ["DEDICATED", "RETIRING"])
def test_backend_report_on_itself_affects_no_session_it_names(make_cluster, kind, pool):
    world = World(make_cluster, pool == "its own pool")
    named = world.ids | (world.never() | {"none": 0, "all": 2**64 - 1} if kind != "DEDICATED" else {})
    counts = "SELECT sum(dedicated), sum(sessions) FROM pg_baton_pools"
    with nobody_starts(world.cluster):
        for whose, session in named.items():
            client = world.ask()
            with world.liar() as liar:
                own = liar.assigned()
                liar.send(frame(kind, session, PAYLOADS[kind]))
                if kind == "DEDICATED":
                    # the liar's session alone counts; the message and busy's query are heard in any order
                    wait_until(lambda: world.busy.query(counts) == [["1", "3"]], 20, whose)
                liar.send(frame("END", own, word(constant("BATON_END_ERROR"))))
                client.until_closed(20)
                assert not liar.has_ended()
            wait_until(lambda: world.busy.query(counts) == [["0", "2"]], 20, whose)
    world.assert_unharmed()


def test_a_session_that_has_ended_is_spoken_of_in_vain(make_cluster):
    """The backend may not have known of the end yet, and goes on."""
    world = World(make_cluster, same_pool=True)
    with nobody_starts(world.cluster):
        client = world.ask()
        with world.liar() as late:
            session = late.assigned()
            for kind, payload in OF_A_SESSION.items() | {("DEDICATED", PAYLOADS["DEDICATED"])}:
                late.send(frame("END", session, word(constant("BATON_END_ERROR"))), frame(kind, session, payload))
                client.until_closed(20)
                # the backend gets the next session
                late.show_idle()
                late.send(frame("RELEASE"))
                client = world.ask()
                session, before = late.assigned(), session
                assert session != before
            assert not late.has_ended()
        client.until_closed(20)
    world.assert_unharmed()


def test_a_session_that_was_given_back_is_its_backend_s_no_more(make_cluster):
    """A backend that speaks of it ends, and the session goes on elsewhere as it was."""
    world = World(make_cluster, same_pool=True)
    for kind, payload in OF_A_SESSION.items():
        with nobody_starts(world.cluster):
            client = world.ask()
            with world.liar() as liar:
                session = liar.assigned()
                liar.answer()
                client.until_ready(20)
                liar.give_back(session)
                liar.send(frame(kind, session, payload))
                assert liar.is_closed(), kind
                wait_until(liar.has_ended, what=f"its process has ended: {kind}")
        # the message has set nothing in the session
        told = client.ask(query("SHOW my.own"), timeout_s=20)
        assert [m.fields()["C"] for m in told if m.type == "E"] == ["42704"], kind
        client.finish()
        world.no_backend_is_free()
    world.assert_unharmed()


@pytest.mark.parametrize("of", ["nobody", "a session"])
def test_backend_retiring_twice_counts_once_and_gets_no_session(make_cluster, of):
    world = World(make_cluster, same_pool=True)
    for _ in range(3):
        with nobody_starts(world.cluster):
            client = world.ask()
            with world.liar() as liar:
                session = liar.assigned()
                if of == "nobody":
                    liar.answer()
                    client.until_ready(20)
                    client.send(query("SELECT 1"))
                    liar.give_back(session, shows_idle=False)
                liar.send(frame("RETIRING", 0, retiring()), frame("RETIRING", 0, retiring(b"why")))
                wait_until(liar.is_heard, 20, "it is heard")
                liar.all_received()  # the dispatcher may have poked it for the session
                if of == "nobody":
                    liar.show_idle()
                other = world.ask()
                waiting = "SELECT sum(waiting) FROM pg_baton_pools"
                wait_until(lambda: world.busy.query(waiting) == [["2" if of == "nobody" else "1"]], 20, "they wait")
                assert liar.all_received() == []
            if of == "a session":
                client.until_closed(20)
        for wire in (other,) if of == "a session" else (other, client):
            wire.until_ready(20)
            wire.finish()
        world.no_backend_is_free()
    world.assert_unharmed()


# The sender is no backend of the pool. It is the process of a native session, or of a login
# that the server decides.
TICKETS = {"native": "NATIVE_IN", "login": "AUTHENTICATED", "gss": "STARTUP"}


class Ticket:
    """A client that a process of the server is to take, and a liar that shows the ticket."""

    def __init__(self, world: World, user: str) -> None:
        self.world = world
        self.client = Wire.open(HOST, world.cluster.pool_port, plain=user == "gss")
        self.client.send(GSSENC_REQUEST if user == "gss" else startup({"user": user, "database": "postgres"}))
        wait_until(lambda: self._tickets() != [], what="there is a ticket")
        (self.number,) = self._tickets()

    def _tickets(self) -> list[int]:
        return [ticket for ticket in self.world.memory.header.tickets if ticket]

    def shown(self, peer: Peer, ticket: int | None = None, pid: int | None = None) -> bytes:
        numbers = (self.number if ticket is None else ticket, peer.process if pid is None else pid)
        return PAYLOADS["HELLO_TICKET"][:4] + struct.pack("=QI", *numbers)

    def taken(self) -> Peer:
        peer = Peer(self.world.cluster, own_process=True)
        peer.send(frame("HELLO_TICKET", 0, self.shown(peer)))
        kind, _, payload = peer.receive()
        assert kind == constant("BATON_MSG_CLIENT") and len(peer.descriptors) == 1
        assert len(payload) > 50
        return peer

    def assert_not_let_in(self) -> None:
        """The client's connection ends, and no earlier message lets the client in."""
        assert [told.type for told in self.client.until_closed(20) if told.type != "E"] == []
        self.client.close()


def make_ticket_world(make_cluster) -> World:
    return World(
        make_cluster,
        same_pool=True,
        hba=[
            "hostgssenc all gss all trust",
            "host all login all ldap ldapserver=127.0.0.1 ldapprefix=cn=",
            "host all all all trust",
            "local all all trust",
        ],
        setup="CREATE ROLE native LOGIN; CREATE ROLE login LOGIN",
        # The backlog of the stopped postmaster (from 16 on twice this) has room for all tickets.
        **{"pg_baton.native_dbuser_names": "_/native", "max_connections": 200},
    )


@pytest.mark.parametrize("kind", TICKETS)
def test_backend_loses_a_taken_client_by_any_message_but_login(make_cluster, kind):
    world = make_ticket_world(make_cluster)
    own = TICKETS[kind]
    in_order = [frame(own, 0, PAYLOADS[own])]
    # a process that authenticates a client may also say whose turn it is
    own_words = {own} if kind == "gss" else {own, "AWAITS_CLIENT"}
    lies = each(0, own_words) | each(world.ids["busy"], own_words)
    lies |= {
        "its ticket again": [],
        f"nothing of {own}": [frame(own, 0, PAYLOADS[own][:-1])] if PAYLOADS[own] else [frame(own, 0, b"\0")],
        f"more than {own}": [frame(own, 0, PAYLOADS[own] + b"x")],
        f"{own} in pieces": [frame(own, 0, PAYLOADS[own], MORE), *in_order],
        f"{own}, longer than it is": [frame(own, 0, PAYLOADS[own], length=99)],
        "whose turn it is, twice": [frame("AWAITS_CLIENT", 0, b"\1\1")],
    }
    with nobody_starts(world.cluster):
        for what, lie in lies.items():
            ticket = Ticket(world, kind)
            with ticket.taken() as liar:
                with contextlib.suppress(BrokenPipeError):  # its first packet was enough
                    liar.send(*(lie or [frame("HELLO_TICKET", 0, ticket.shown(liar))]))
                assert liar.is_closed(), what
            ticket.assert_not_let_in()
    world.assert_unharmed()


def test_a_ticket_is_its_process_s_alone_and_good_once(make_cluster):
    world = make_ticket_world(make_cluster)
    with nobody_starts(world.cluster):
        ticket = Ticket(world, "native")
        lies = {
            "none": lambda liar: ticket.shown(liar, ticket=0),
            "another of that place": lambda liar: ticket.shown(liar, ticket=ticket.number ^ 1 << 40),
            "of no place": lambda liar: ticket.shown(liar, ticket=2**64 - 1),
            "of another process": lambda liar: ticket.shown(liar, pid=1),
            "of no process": lambda liar: ticket.shown(liar, pid=0),
            "half": lambda liar: ticket.shown(liar)[:-1],
            "more": lambda liar: ticket.shown(liar) + b"x",
            "another version": lambda liar: word(1) + ticket.shown(liar)[4:],
        }
        for what, shown in lies.items():
            with Peer(world.cluster, own_process=True) as liar:
                liar.send(frame("HELLO_TICKET", 0, shown(liar)))
                assert liar.is_closed() and liar.descriptors == [], what
        with ticket.taken(), Peer(world.cluster, own_process=True) as late:
            late.send(frame("HELLO_TICKET", 0, ticket.shown(late)))
            assert late.is_closed() and late.descriptors == []
        ticket.assert_not_let_in()
    world.assert_unharmed()


@pytest.mark.parametrize("said", ["twice", "of nobody"])
def test_native_session_in_twice_or_without_role_counts_once(make_cluster, said):
    world = make_ticket_world(make_cluster)
    with nobody_starts(world.cluster):
        ticket = Ticket(world, "native")
        with ticket.taken() as liar:
            roles = (10, 10) if said == "twice" else (0, 2**32 - 1)
            for role in roles:
                liar.send(frame("NATIVE_IN", 2**64 - 1, struct.pack("=IB", role, 255)))
                kind, _, payload = liar.receive()
                assert (kind, payload) == (constant("BATON_MSG_NATIVE_ANSWER"), string(b"") * 2)
        ticket.assert_not_let_in()
    assert world.cluster.sql("SELECT 1 FROM pg_baton_sessions WHERE mode = 'native'") == []
    world.assert_unharmed()


def resident_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) // 1024


@pytest.mark.parametrize("what", ["one value", "many values", "many deletions"])
def test_endless_messages_of_a_backend_are_kept_within_bounds(make_cluster, what):
    """The backend takes nothing from the memory of other sessions."""
    world = World(make_cluster, same_pool=True, **{"pg_baton.session_memory": "16MB"})
    (dispatcher,) = world.cluster.dispatcher_pids()
    with nobody_starts(world.cluster):
        client = world.ask()
        with world.liar() as liar:
            session = liar.assigned()
            before = resident_mib(dispatcher)
            most = 0
            for number in range(3000):
                key = f"my.{number}".encode()
                packet = {
                    "one value": frame("PUT", session, b"x" * 60_000, MORE),
                    "many values": frame("PUT", session, put(PARAMETER, key, key * 6000)),
                    "many deletions": frame("DELETE", session, struct.pack("=HH", PARAMETER, 60_000) + b"x" * 60_000),
                }[what]
                if number == 0 and what == "one value":
                    packet = frame("PUT", session, put(PARAMETER, b"my.own", b"x" * 60_000), MORE)
                liar.send(packet)
                if number % 100 == 0:
                    most = max(most, resident_mib(dispatcher))
            if what == "one value":
                liar.send(frame("PUT", session, b"its end"))
            # the dispatcher still hears the backend
            liar.send(frame("END", session, word(constant("BATON_END_ERROR"))))
            client.until_closed(20)
            assert not liar.has_ended()
            # of 180 MB that the liar has sent
            assert most - before < 60
    world.assert_unharmed()


@pytest.mark.parametrize("what", ["one value", "many values"])
def test_client_is_told_that_too_much_staged_data_does_not_fit(make_cluster, what):
    """The message is the client's own. The backend lives on, and so do all other sessions."""
    world = World(make_cluster, same_pool=True, **{"pg_baton.session_memory": "16MB"})
    with nobody_starts(world.cluster):
        client = world.ask()
        with world.liar() as liar:
            session = liar.assigned()
            for number in range(400):
                value = put(PARAMETER, f"my.{number}".encode(), f"{number:06}".encode() * 10_000)
                if what == "many values":
                    liar.send(frame("PUT", session, value))
                else:
                    liar.send(frame("PUT", session, value if number == 0 else value[-60_000:], MORE))
            if what == "one value":
                liar.send(frame("PUT", session, b"its end"))
            liar.give_back(session)
            told = client.until_closed(20)[-1].fields()
            assert (told["S"], told["C"], told["M"]) == ("FATAL", "53200", "out of memory"), told
            assert "session memory" in told["D"] and "pg_baton.session_memory" in told["H"], told
            assert not liar.has_ended()
    world.assert_unharmed()


def test_a_stranger_at_the_control_socket_is_turned_away(make_cluster):
    world = World(make_cluster, same_pool=True)
    version, secret = word(constant("BATON_LAYOUT_VERSION")), struct.pack("=Q", world.memory.header.secret)
    wrong = struct.pack("=Q", world.memory.header.secret ^ 1)
    backend = version + struct.pack("=IQIIIB", 1, 1, 1, 10, 5, 1)
    sessions = word(constant("BATON_QUERY_SESSIONS"))
    packets = {
        "nothing of ours": [b"GET / HTTP/1.0\r\n\r\n"],
        "a longest packet": [bytes(65536)],
        "no version": [frame("HELLO_BACKEND")],
        "another version": [frame("HELLO_BACKEND", 0, word(1) + backend[4:])],
        "no such token": [frame("HELLO_BACKEND", 0, backend)],
        "no such slot": [frame("HELLO_BACKEND", 0, version + struct.pack("=IQIIIB", 2**32 - 1, 1, 1, 10, 5, 1))],
        "half a backend": [frame("HELLO_BACKEND", 0, backend[:-1])],
        "more than a backend": [frame("HELLO_BACKEND", 0, backend + b"x")],
        "a backend in pieces": [frame("HELLO_BACKEND", 0, backend, MORE), frame("HELLO_BACKEND", 0, backend)],
        "a backend that was not adopted": [frame("HELLO_AGAIN", world.ids["busy"], version + word(0) + word(0))],
        "an adopted backend without a slot": [frame("HELLO_AGAIN", 0, version + word(2**32 - 1) + word(0))],
        "half an adopted backend": [frame("HELLO_AGAIN", 0, version + word(0) + word(2**32 - 1) + word(7))],
        "a launcher without the secret": [frame("HELLO_LAUNCHER", 0, version + wrong + word(1))],
        "a launcher of another version": [frame("HELLO_LAUNCHER", 0, word(1) + secret + word(1))],
        "half a launcher": [frame("HELLO_LAUNCHER", 0, version + secret)],
        "more than a launcher": [frame("HELLO_LAUNCHER", 0, version + secret + word(1) + b"x")],
        "a log writer without the secret": [frame("HELLO_LOG", 0, version + wrong + word(1))],
        "more than a log writer": [frame("HELLO_LOG", 0, version + secret + word(1) + b"x")],
        "a monitor without the secret": [frame("HELLO_MONITOR", 0, version + wrong + word(1))],
        "more than a monitor": [frame("HELLO_MONITOR", 0, version + secret + word(1) + b"x")],
        "a question without the secret": [frame("HELLO_QUERY", 0, version + wrong + sessions)],
        "more than a question": [frame("HELLO_QUERY", 0, version + secret + sessions + b"x")],
        "half a request": [frame("HELLO_QUERY", 0, version + secret + word(5) + b"\0" + word(9) + b"postgres")],
        "a question and another": [
            frame("HELLO_QUERY", 0, version + secret + word(5) + b"\0" + string(b"nowhere")),
            frame("RELEASE", world.ids["idle"]),
        ],
    }
    for name in ("idle", "busy", "gone"):
        packets |= each(world.ids[name])
    for kind in PAYLOADS.keys() - {
        "HELLO_AGAIN",
        "HELLO_BACKEND",
        "HELLO_LAUNCHER",
        "HELLO_LOG",
        "HELLO_MONITOR",
        "HELLO_QUERY",
        "HELLO_TICKET",
    }:
        packets[f"{kind} that begins as a hello"] = [frame(kind, world.ids["busy"], version + secret + word(1))]
    for what, said in packets.items():
        with Peer(world.cluster) as stranger:
            with contextlib.suppress(BrokenPipeError):  # the dispatcher turned it away in between
                stranger.send(*said)
            assert stranger.is_closed(), what
    world.assert_unharmed()


def test_the_monitor_s_connection_reads_and_does_nothing_else(make_cluster):
    """Strangers speak to the monitor, so its connection has less rights than its secret would give."""
    world = World(make_cluster, same_pool=True)
    version, secret = word(constant("BATON_LAYOUT_VERSION")), struct.pack("=Q", world.memory.header.secret)
    hello = frame("HELLO_MONITOR", 0, version + secret + word(1))

    def asks(name: str, session: int = 0) -> bytes:
        return frame("MONITOR_QUESTION", session, word(constant(f"BATON_QUERY_{name}")))

    def answer(peer: Peer) -> int:
        """The rows of an answer, up to its end."""
        for count in itertools.count():
            kind, _, _ = peer.receive()
            if kind == constant("BATON_MSG_DONE"):
                return count
            assert kind == constant("BATON_MSG_ROW")

    with Peer(world.cluster) as monitor:
        monitor.send(hello)
        for _ in range(3):
            for view in ("DISPATCHERS", "SESSION_COUNTS", "NAMED_STATISTICS", "DATABASE_TIMES", "POOLS", "BACKENDS"):
                monitor.send(asks(view))
                assert answer(monitor) > 0, view
        # There is one monitor: the next one ends it.
        with Peer(world.cluster) as other:
            other.send(hello, asks("DISPATCHERS"))
            assert answer(other) == 1
            assert monitor.is_closed()
    held = world.ids["busy"]
    forbidden = {
        name: [asks(name, held)]
        for name in ("TERMINATE", "CANCEL", "RESET_STATISTICS", "LEAVE_DATABASE", "PAUSE", "RESUME", "SESSIONS")
    }
    forbidden["a hello"] = [frame("HELLO_QUERY", held, version + secret + word(constant("BATON_QUERY_TERMINATE")))]
    forbidden["a launcher's hello"] = [frame("HELLO_LAUNCHER", 0, version + secret + word(1))]
    forbidden["more than a question"] = [frame("MONITOR_QUESTION", 0, word(constant("BATON_QUERY_POOLS")) + b"x")]
    forbidden["many at once"] = [asks("POOLS") for _ in range(1000)]
    for what, said in forbidden.items():
        with Peer(world.cluster) as monitor:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                monitor.send(hello, *said)
            assert monitor.is_closed(), what
    world.assert_unharmed()


def test_a_process_of_another_layout_is_told_both_versions(cluster_with):
    cluster, other, ours = cluster_with(), 1, constant("BATON_LAYOUT_VERSION")
    with Peer(cluster) as stranger:
        stranger.send(frame("HELLO_BACKEND", 0, word(other) + struct.pack("=IQIII", 1, 1, 1, 10, 5)))
        kind, _, payload = stranger.receive()
        assert kind == constant("BATON_MSG_REFUSED")
        assert payload == string(f"layout version {other:#x} is not {ours:#x}".encode())


def test_dispatcher_does_not_wait_for_unidentified_peers(make_cluster):
    """More such peers than there is room for keep no process from connecting, and a
    single such peer is sent away."""
    world = World(make_cluster, same_pool=True)
    silent = [Peer(world.cluster) for _ in range(world.memory.header.backend_slots + 300)]
    try:
        world.assert_unharmed()
        assert all(peer.is_closed() for peer in silent)
    finally:
        for peer in silent:
            peer.close()


@pytest.mark.parametrize("then", ["asks on and never reads", "asks something else"])
def test_database_hold_ends_on_other_requests_or_unread_answers(make_cluster, then):
    """Otherwise answers would pile up, or the hold would last for ever."""
    world = World(make_cluster, same_pool=False)
    asks = word(constant("BATON_LAYOUT_VERSION")) + struct.pack("=Q", world.memory.header.secret)
    holds = frame("HELLO_QUERY", 0, asks + word(constant("BATON_QUERY_LEAVE_DATABASE")) + b"\0" + string(b"postgres"))
    sessions = frame("HELLO_QUERY", 0, asks + word(constant("BATON_QUERY_SESSIONS")))
    with Peer(world.cluster) as holder:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            holder.send(holds)
            holder.send(*([sessions] if then == "asks something else" else [holds] * 5000))
        assert holder.is_closed()
    # a backend has to start for this client
    assert world.come("client", **world.place).query("SHOW my.own") == [["client"]]
    world.assert_unharmed()


@pytest.mark.parametrize("then", ["asks on and never reads", "asks something else", "hangs up"])
def test_pause_ends_with_the_process_that_waits_for_it(make_cluster, then):
    """A transaction is in the way, so the pause does not stand."""
    world = World(make_cluster, same_pool=False)
    client = world.come("client", **world.place)
    client.query("BEGIN")
    asks = word(constant("BATON_LAYOUT_VERSION")) + struct.pack("=Q", world.memory.header.secret)
    day_us = 24 * 3600 * 1_000_000
    terms = struct.pack("=IIIQQ", 0, 0, 10, day_us, day_us)
    pauses = frame("HELLO_QUERY", 0, asks + word(constant("BATON_QUERY_PAUSE")) + terms)
    sessions = frame("HELLO_QUERY", 0, asks + word(constant("BATON_QUERY_SESSIONS")))
    with Peer(world.cluster) as pauser:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            pauser.send(pauses)
            if then != "hangs up":
                pauser.send(*([sessions] if then == "asks something else" else [pauses] * 5000))
        if then != "hangs up":
            assert pauser.is_closed()
    client.query("COMMIT")
    assert client.query("SELECT 1") == [["1"]]
    client.finish()
    world.assert_unharmed()
