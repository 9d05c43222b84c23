"""The server does not crash, and serves on, whatever a faulty dispatcher writes into the data
that it gives to backends."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
from collections.abc import Iterator

import pytest
from harness.arena_memory import ArenaMemory
from harness.control_memory import ControlMemory, constant, structure
from harness.debugger import needs_gdb, stopped_at
from harness.health import assert_healthy, stop, wait_until
from harness.wire import Closed, Message, QueryFailed, Wire, parse, query, sync

HOST = "127.0.0.1"

pytestmark = pytest.mark.pool_only

NUMBERS = (0, 1, 7, 0x7FFFFFFF, 0xFFFFFFF8)

GONE = (Closed, ConnectionError)

# The fields that a backend reads of a session.
RECORD = ("id", "items", "item_count", "record_flags", "protocol", "cancel_key_length")
RECORD += ("peer_family", "is_relayed", "first_statement", "statement_count", "authenticated", "account", "tenant")

# An item of each kind that a session context may hold.
SETUP = [
    "SET my.own = '{name}'",
    "SET work_mem = '{megabytes}MB'",
    "PREPARE one AS SELECT '{name}'",
    "PREPARE other (int) AS SELECT $1 + {megabytes}",
    "SELECT nextval('numbers'), lastval()",
    "RESET DateStyle",
]
USE = "SHOW my.own; EXECUTE one; EXECUTE other (1); SELECT currval('numbers')"


def ends(message: Message) -> bool:
    return message.type == "Z" or (message.type == "E" and message.fields()["S"] == "FATAL")


class Liar:
    """A backend and two sessions.  While a session is served, the other session waits in the
    ready queue, and the dispatcher is stopped: only the backend reads the false data."""

    def __init__(self, make_cluster) -> None:
        self.cluster = make_cluster(parameters={"pg_baton.max_backends": 1})
        self.cluster.sql("CREATE EXTENSION pg_baton")
        self.cluster.sql("CREATE SEQUENCE numbers")
        try:
            self.arena = ArenaMemory(self.cluster)
        except PermissionError:
            pytest.skip("this system lets nobody write another process's memory")
        self.control = ControlMemory(self.cluster)
        self.numbers = itertools.count(100)
        self.other = self.come("other")

    def come(self, name: str) -> Wire:
        wire = Wire.login(HOST, self.cluster.pool_port, application_name=name, options="-c DateStyle=German")
        for statement in SETUP:
            wire.query(statement.format(name=name, megabytes=next(self.numbers)))
        wire.ask(parse(f"SELECT 'unnamed {name}'"), sync())
        return wire

    def number(self, name: str, offset: int, field: str, value: int) -> tuple[int, bytes]:
        place, size = self.arena.field(name, offset, field)
        return place, (value & (1 << 8 * size) - 1).to_bytes(size, "little")

    @contextlib.contextmanager
    def lie(self, changes: list[tuple[int, bytes]]) -> Iterator[None]:
        stop(self.arena.pid)
        truth = [(place, self.arena.read(place, len(data))) for place, data in changes]
        try:
            for place, data in changes:
                self.arena.write(place, data)
            yield
        finally:
            for place, data in truth:
                self.arena.write(place, data)
            os.kill(self.arena.pid, signal.SIGCONT)

    def queued(self) -> int:
        return sum(self.control.pool_slot(number).queued for number in range(8))

    def tell(self, lies, victim: Wire, number: int) -> bool:
        """Tells the lie of that number; returns false if there are no more lies."""
        self.other.query("BEGIN")
        victim.send(query(USE))
        wait_until(lambda: self.queued() == 1, what="it is in the queue")
        sql = "SELECT id FROM pg_baton_sessions WHERE state = 'waiting'"
        ((session,),) = self.cluster.sql(sql)
        found = next(itertools.islice(lies(session), number, None), None)
        what, changes = found or ("the truth", [])
        # a new version, as if the session had not been on the backend with this context
        version = next(self.numbers) << 40
        changes.append(self.number("BatonSessionRecord", self.arena.place_of(session), "context_version", version))
        with self.lie(changes):
            self.other.query("COMMIT")
            # the connection's end would not be seen, as the dispatcher has the socket, too
            with contextlib.suppress(*GONE):
                while not ends(victim.read(20)):
                    pass
        assert "was terminated by signal" not in self.cluster.log(), what
        assert self.cluster.dispatcher_pids() == [self.arena.pid], what
        return found is not None

    def all_anew(self) -> None:
        """Ends all backends: a backend that has read a lie must not judge the next lie."""
        wait_until(lambda: self.cluster.sql("SELECT 1 FROM pg_baton_sessions") == [], what="they have ended")
        # one that was starting for them has no process ID yet, and comes later
        end = "SELECT pg_terminate_backend(pid) FROM pg_baton_backends"
        wait_until(lambda: self.cluster.sql(end) == [], what="no backend is left")
        self.other = self.come("other")

    def assert_all_harm_nobody(self, lies) -> None:
        """`lies` gives the lies about a session: their names and their changes."""
        victim = self.come("victim")
        for number in itertools.count():
            if not self.tell(lies, victim, number):
                break
            try:
                goes_on = victim.query(USE, timeout_s=20)[:1] == [["victim"]]
            except (QueryFailed, *GONE, UnicodeDecodeError):
                goes_on = False
            if not goes_on:
                victim.close()
                self.other.close()
                self.all_anew()
                victim = self.come("victim")
        assert number > 20
        victim.close()
        self.other.close()
        self.arena.close()
        assert_healthy(self.cluster)


def test_nothing_that_it_says_of_a_session_crashes_the_server(make_cluster):
    liar = Liar(make_cluster)

    def lies(session: int):
        place = liar.arena.place_of(session)
        for field in RECORD:
            for value in NUMBERS:
                yield f"{field} {value}", [liar.number("BatonSessionRecord", place, field, value)]
        # as many items as there is room for from their place on: no item is where it seems to be
        for items in (1000, (liar.arena.size - 2**20) // ctypes.sizeof(structure("BatonItem"))):
            many = liar.number("BatonSessionRecord", place, "item_count", items)
            yield f"{items} items", [many]
            for field in ("items", "first_statement", "statement_count"):
                for value in (1, items - 1, items, liar.arena.size // 8 - 1):
                    yield f"{field} {value} of {items}", [many, liar.number("BatonSessionRecord", place, field, value)]

    liar.assert_all_harm_nobody(lies)


def test_no_lie_about_the_whole_memory_crashes_the_server(make_cluster):
    liar = Liar(make_cluster)

    def lies(session: int):
        for field in (
            "magic",
            "session_slots",
            "total_size",
            "session_offset",
            "heap_offset",
            "heap_used",
            "heap_limit",
        ):
            for value in (*NUMBERS, 2**40, 2**63, 2**64 - 4096):
                yield f"{field} {value}", [liar.number("BatonArenaHeader", 0, field, value)]

    liar.assert_all_harm_nobody(lies)


def test_nothing_that_it_gives_as_a_context_crashes_the_server(make_cluster):
    liar = Liar(make_cluster)
    last = liar.arena.size // 8

    def lies(session: int):
        for number, item in enumerate(liar.arena.items(session)):
            for value in (0, 511, last - 2, last - 1, last):
                yield f"item {number} at {value}", [liar.number("BatonItem", item, "entry", value)]
            yield f"counter of item {number}", [liar.number("BatonItem", item, "counter", 0xFFFFFFF0)]
            entry = liar.arena.read_structure("BatonItem", item).entry * 8
            header = liar.arena.read_structure("BatonEntry", entry)

            def lie(what: str, *changes: tuple[int, bytes]):
                # with the old serial, a backend that has the entry would use its own copy
                serial = liar.number("BatonEntry", entry, "serial", next(liar.numbers) << 40)
                return f"{what} of item {number}, kind {header.kind}", [serial, *changes]

            for kind in (0, *range(2, constant("BATON_KIND_OTHER") + 1, 3)):
                yield lie(f"kind {kind}", liar.number("BatonEntry", entry, "kind", kind))
            for field in ("key_length", "value_length"):
                for value in (0, 3, getattr(header, field) - 1, getattr(header, field) + 1, *NUMBERS[3:]):
                    yield lie(f"{field} {value}", liar.number("BatonEntry", entry, field, value))
            begin = entry + ctypes.sizeof(structure("BatonEntry"))
            length = header.key_length + header.value_length
            for byte in range(0, min(length, 120), 23):
                yield lie(f"byte {byte}", (begin + byte, b"\xff"))
            yield lie("all", (begin, b"\xff" * length))
            yield lie("nothing", (begin, bytes(length)))

    liar.assert_all_harm_nobody(lies)


@pytest.mark.parametrize("word", ["the first that is none", "the last"])
def test_a_tenant_that_is_out_of_range_costs_its_session_alone(make_cluster, word):
    """If the backend gave the session back, as a process does that cannot be the session's role's,
    the session would end the backends of the pool, each in turn."""
    liar = Liar(make_cluster)
    victim = liar.come("victim")
    liar.other.query("SELECT 1")
    ((pid,),) = liar.cluster.sql("SELECT pid FROM pg_baton_backends")
    ((session,),) = liar.cluster.sql("SELECT id FROM pg_baton_sessions WHERE application_name = 'victim'")
    number = {"the first that is none": liar.control.header.pool_slots, "the last": 2**32 - 1}[word]
    place, data = liar.number("BatonSessionRecord", liar.arena.place_of(session), "tenant", number)
    liar.arena.write(place, data)
    victim.send(query("SELECT 1"))
    assert [m.fields()["S"] for m in victim.until_closed(20) if m.type == "E"] == ["FATAL"]
    assert liar.other.query("SHOW my.own") == [["other"]]
    log = liar.cluster.log()
    assert log.count(f"session record {session & 0xFFFFFFFF} is damaged") == 1
    assert "out of range" not in log
    wait_until(lambda: pid not in sum(liar.cluster.sql("SELECT pid FROM pg_baton_backends"), ()), what="that ends")
    liar.other.finish()
    liar.arena.close()
    assert_healthy(liar.cluster)


# The function in which a backend has checked the part of such an entry that it is about to read.
CHECKED = [("baton_params_make_room", "BATON_KIND_PARAMETER"), ("baton_common_get", "BATON_KIND_STATEMENT")]


@needs_gdb
@pytest.mark.parametrize("function, kind", CHECKED)
def test_entry_that_grows_after_its_check_is_read_as_it_was(make_cluster, function, kind):
    liar = Liar(make_cluster)
    victim = liar.come("victim")
    ((session,),) = liar.cluster.sql("SELECT id FROM pg_baton_sessions WHERE application_name = 'victim'")
    liar.other.query("BEGIN")
    ((pid,),) = liar.cluster.sql("SELECT pid FROM pg_baton_backends")
    entries = [liar.arena.read_structure("BatonItem", item).entry * 8 for item in liar.arena.items(session)]
    of_kind = [entry for entry in entries if liar.arena.read_structure("BatonEntry", entry).kind == constant(kind)]
    # beyond the memory's end
    growth = [liar.number("BatonEntry", entry, "value_length", liar.arena.size) for entry in of_kind]
    assert growth and liar.arena.size < 2**32
    victim.send(query(USE))
    wait_until(lambda: liar.queued() == 1, what="it is in the queue")
    with liar.lie([]), contextlib.ExitStack() as later:
        with stopped_at(pid, function) as stop:
            liar.other.send(query("COMMIT"))
            stop.wait()
            later.enter_context(liar.lie(growth))
        told = victim.until_ready(20)
    assert [m.row()[0] for m in told if m.type == "D"][:2] == [b"victim", b"victim"]
    liar.other.until_ready(20)
    for wire in (victim, liar.other):
        wire.finish()
    liar.arena.close()
    assert_healthy(liar.cluster)
