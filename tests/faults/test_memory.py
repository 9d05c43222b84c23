"""A backend that gets no memory: its session gets the error that a direct connection
gets, and no other session notices.  The same holds if it gets no descriptors.

The kernel refuses memory to single backends here (RLIMIT_DATA, which counts
the heap and not the stack), so that the machine is never short of it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from harness.account import run_as_server_user
from harness.compare import same_as_direct
from harness.health import assert_healthy, wait_until
from harness.processes import ITS_PROCESS
from harness.wire import Closed, LoginFailed, Message, Wire, bind, execute, parse, query, sync

HOST = "127.0.0.1"
MB = 1 << 20

# The runtime of AddressSanitizer asks for memory of its own and ends a process that gets none.
not_sanitized = pytest.mark.skipif(
    "libasan" in os.environ.get("BATON_TEST_PRELOAD", ""), reason="AddressSanitizer cannot run out of memory"
)

SETUP = ["CREATE TABLE plain (a int)", "SELECT lo_create(4711)"]


def starve(pid: int, spare: int) -> bool:
    """Limits a process to the heap that it has and `spare` bytes; False if it does not exist any more."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # A process that has ended and that its parent has not waited for has no memory.
    used = re.search(r"VmData:\s+(\d+) kB", status)
    return used is not None and _limit(pid, str(int(used.group(1)) * 1024 + spare))


def feed(pid: int) -> None:
    """Takes the limit back, if the process still exists."""
    _limit(pid, "unlimited")


def _limit(pid: int, soft: str) -> bool:
    # As the server's user: root may not do this everywhere.
    try:
        run_as_server_user(["prlimit", f"--pid={pid}", f"--data={soft}:"])
    except RuntimeError:
        if Path(f"/proc/{pid}").exists():
            raise
        return False
    return True


TOO_LARGE = [
    "SELECT length(repeat('x', 1100000000))",
    "SELECT loread(lo_open(4711, 262144), 1500000000)",
    "SELECT array_fill(0, ARRAY[300000000])",
    "BEGIN",
    "SELECT loread(lo_open(4711, 262144), 1500000000)",
    "SELECT 1",
    "ROLLBACK",
    "DO $$ BEGIN PERFORM lpad('x', 1073741823); EXCEPTION WHEN program_limit_exceeded THEN NULL; END $$",
    parse("SELECT loread(lo_open(4711, 262144), 1500000000)") + bind() + execute() + sync(),
    parse("SELECT 2", "after") + sync(),
    bind([], "after") + execute() + sync(),
]


def test_oversized_request_is_an_error_as_on_a_direct_connection(server):
    seen = same_as_direct(server, TOO_LARGE)
    assert sum("C='XX000'" in line for line in seen) == 3 and sum("C='54000'" in line for line in seen) == 2


GREEDY = [
    "SELECT count(DISTINCT repeat('y', 1000000 + g)) FROM generate_series(1, 400) g",
    "SELECT sum(array_length(a, 1)) FROM (SELECT array_agg(repeat(g::text, 1000))"
    " FROM generate_series(1, 100000) g) x (a)",
]


def out_of_memory(server, port: int) -> list[str]:
    """The errors and states that a session gets when it runs out of memory in a transaction."""
    lines = []
    with Wire.login(HOST, port) as session, Wire.login(HOST, port) as witness:
        session.query("SET my.own = 'kept'")
        session.query("PREPARE mine AS SELECT 'mine'")
        for turn in range(3):
            session.query("BEGIN")
            session.query("INSERT INTO plain VALUES (1)")
            ((pid,),) = session.query(ITS_PROCESS)
            assert starve(int(pid), 32 * MB)
            try:
                steps = ["SAVEPOINT s", "SELECT length(repeat('x', 200000000))", "ROLLBACK TO s", "SELECT 'goes on'"]
                for step in [*steps, GREEDY[turn % len(GREEDY)]]:
                    found = session.ask(query(step))
                    lines += [f"{m.fields()['C']} {m.fields()['M']}" for m in found if m.type == "E"]
                    lines.append(found[-1].body.decode())
                    assert witness.query("SELECT 1") == [["1"]]
                session.query("ROLLBACK")
            finally:
                feed(int(pid))
            assert session.query("SHOW my.own") == [["kept"]] and session.query("EXECUTE mine") == [["mine"]]
            assert session.query("SELECT count(*) FROM plain") == [["0"]]
    return lines


@not_sanitized
def test_session_out_of_memory_gets_server_error_and_goes_on(server):
    try:
        server.sql("ALTER ROLE postgres SET work_mem = '1GB'")
        direct, pool = (out_of_memory(server, port) for port in (server.port, server.pool_port))
    finally:
        server.sql("ALTER ROLE postgres RESET work_mem")
    assert pool == direct
    assert pool.count("53200 out of memory") >= 3, pool


def fill(session: Wire, number: int) -> None:
    """Gives the session a context of some hundred kilobytes, all of it its own."""
    for part in range(4):
        session.query(f"SELECT set_config('my.part{part}', repeat('{number}', 100000), false)")
        session.query(f"PREPARE mine{part} AS SELECT '{number}', '{'z' * 50000}'")


class Told(Exception):
    """A session got an error, or it ended."""

    def __init__(self, messages: list[Message]) -> None:
        self.ended = messages[-1:] == [] or messages[-1].type != "Z"
        self.errors = [f"{m.fields()['S']} {m.fields()['C']}" for m in messages if m.type == "E"]


def ask(session: Wire, *parts: bytes) -> list[list[str]]:
    """The rows of an answer; raises Told if the answer has an error or the session ends."""
    messages: list[Message] = []
    try:
        session.send(*parts)
        while not messages or messages[-1].type != "Z":
            messages.append(session.read())
    except (Closed, OSError):
        raise Told(messages) from None
    if any(m.type == "E" for m in messages):
        raise Told(messages)
    return [[column.decode() for column in m.row()] for m in messages if m.type == "D"]


def use(session: Wire, number: int) -> None:
    """Checks that each answer is the session's own; raises Told for an error."""
    own = "SELECT left(current_setting('my.part3'), 3), length(current_setting('my.part0'))"
    assert ask(session, query(own)) == [[str(number) * 3, "100000"]]
    assert [row[0] for row in ask(session, query("EXECUTE mine2"))] == [str(number)]
    ask(session, parse(f"SELECT '{number}', '{'u' * 50000}'") + sync())
    rows = ask(session, bind() + execute() + sync())
    assert [row[0] for row in rows] == [str(number)]
    ask(session, query(f"SELECT set_config('my.part1', repeat('{number}', 90000), false)"))


def starved_turns(server, sessions: list[Wire], spare_kb: int) -> list[str]:
    """The errors and ends that the sessions get while their backends get no more memory."""
    told: list[str] = []
    for number, session in enumerate(sessions):
        fill(session, number)
    # A backend that ended with the sessions before these may be listed, and then be gone.
    pids = [pid for (pid,) in server.sql("SELECT pid FROM pg_baton_backends WHERE pid IS NOT NULL")]
    starved = [pid for pid in pids if starve(pid, spare_kb * 1024)]
    alive = dict(enumerate(sessions))

    def turn() -> None:
        for number, session in list(alive.items()):
            try:
                use(session, number)
            except Told as failure:
                told.extend(failure.errors or ["ended"])
                if failure.ended:
                    alive.pop(number)

    try:
        turn()
        turn()
    finally:
        for pid in starved:
            feed(pid)
    # A session that is to end may learn of its end only now; all others go on.
    turn()
    before = len(told)
    turn()
    assert told[before:] == []
    return told


@not_sanitized
@pytest.mark.pool_only
def test_backend_without_context_memory_harms_only_its_session(server):
    """Putting a session in place needs memory, too. That session may end, and gets
    the reason; no other session ends, and none loses a part of its context."""
    told: list[str] = []
    for spare_kb in [*range(0, 1600, 40), *range(1600, 6000, 400)]:
        sessions = [Wire.login(HOST, server.pool_port) for _ in range(8)]
        try:
            told += starved_turns(server, sessions, spare_kb)
        finally:
            for session in sessions:
                session.finish()
    # Some session could not be put in place. A statement of its own may fail, too, by chance.
    assert {"FATAL 53200"} <= set(told) <= {"ERROR 53200", "FATAL 53200", "ended"}, told
    assert_healthy(server)


@pytest.mark.skipif(not os.environ.get("BATON_TEST_LARGE"), reason="BATON_TEST_LARGE: minutes, and 8 GB of memory")
@pytest.mark.parametrize("name", ["", "named"])
def test_statement_too_long_to_describe_keeps_its_session_whole(make_cluster, name):
    server = make_cluster(parameters={"pg_baton.max_backends": 2})
    server.sql("CREATE EXTENSION pg_baton")
    # the longest text that the server takes: 1 GB with the scanner's end marks
    text = "SELECT 'long'" + " " * (1024 * MB - 1 - 13 - 100)
    with Wire.login(HOST, server.pool_port, application_name="long") as session:
        with Wire.login(HOST, server.pool_port) as other:
            session.query("SELECT 1")
            session.send(parse(text, name), sync())
            assert [m.type for m in session.until_ready(120)] == ["1", "Z"]
            # other sessions want the backends
            for _ in range(3):
                other.query("SELECT 1")
                seen = session.ask(bind([], name) + execute() + sync(), timeout_s=120)
                assert [m.row() for m in seen if m.type == "D"] == [[b"long"]]
        assert server.sql("SELECT dedicated_cause FROM pg_baton_sessions WHERE application_name = 'long'") == [
            ("context memory",)
        ]
    assert_healthy(server)


def message_context_bytes(server, pid: int) -> int:
    """The size to which the backend's memory for one message has grown."""
    with server.new_log() as log:
        server.sql(f"SELECT pg_log_backend_memory_contexts({pid})")
        wait_until(lambda: "Grand total" in log(), what="it is logged")
        (found,) = re.findall(r"MessageContext: (\d+) total", log())
    return int(found)


@pytest.mark.pool_only
def test_clients_that_a_backend_refuses_leave_no_memory_behind(make_cluster):
    server = make_cluster(parameters={"pg_baton.max_backends": 1, "pg_baton.min_backends": 1})
    server.sql("CREATE EXTENSION pg_baton")
    with Wire.login(HOST, server.pool_port) as session:
        ((pid,),) = session.query(ITS_PROCESS)
        session.query("SELECT 1")
        before = message_context_bytes(server, int(pid))
        for _ in range(200):
            with pytest.raises(LoginFailed, match="nosuch"):
                Wire.login(HOST, server.pool_port, options="-c role=nosuch")
        assert message_context_bytes(server, int(pid)) < before + 65536
        assert session.query(ITS_PROCESS) == [[pid]]
    assert_healthy(server)


@pytest.mark.pool_only
@pytest.mark.parametrize("way", ["queue", "assigned"])
def test_session_with_socket_not_received_goes_to_other_backend(make_cluster, way):
    """A session comes without its socket if the process has no descriptor number left for it.
    The session that is on that backend does not end either, in a transaction or idle."""
    server = make_cluster(parameters={"pg_baton.max_backends": 1})
    server.sql("CREATE EXTENSION pg_baton")
    with Wire.login(HOST, server.pool_port) as first, Wire.login(HOST, server.pool_port) as second:
        for session in (first, second) * 2:
            ((pid,),) = session.query(ITS_PROCESS)
        taken = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
        lowest_free = min(set(range(len(taken) + 1)) - taken)
        if way == "queue":
            first.query("BEGIN")
            second.send(query("SELECT 'another'"))
            wait_until(
                lambda: server.sql("SELECT state FROM pg_baton_sessions WHERE state = 'waiting'") == [("waiting",)],
                what="the second waits",
            )
            run_as_server_user(["prlimit", f"--pid={pid}", f"--nofile={lowest_free}:"])
            assert first.ask(query("COMMIT"))[-1].body == b"I"
        else:
            first.query("SELECT 1")
            run_as_server_user(["prlimit", f"--pid={pid}", f"--nofile={lowest_free}:"])
            second.send(query("SELECT 'another'"))
        assert [m.row() for m in second.until_ready(20) if m.type == "D"] == [[b"another"]]
        assert first.query(ITS_PROCESS) != [[pid]]
    assert_healthy(server)
