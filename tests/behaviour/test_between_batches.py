"""What a client says outside of any batch leaves the pool's backend free.

Drivers end with more than Sync: psycopg 3 (executemany and pipelines, by
libpq's PQsendFlushRequest) sends a Flush behind it, Postgrex a Close and a
Flush.  PostgreSQL answers these without ReadyForQuery.  There is one backend:
each time another session must be served although the first stays connected.
"""

from __future__ import annotations

import psycopg
import pytest
from harness.compare import describe
from harness.health import assert_healthy, wait_until
from harness.processes import ITS_PROCESS
from harness.wire import (
    Wire,
    bind,
    close_portal,
    close_statement,
    copy_data,
    copy_done,
    describe_portal,
    execute,
    flush,
    function_call,
    message,
    parse,
    query,
    sync,
)


@pytest.fixture(scope="module")
def cluster(run):
    one = run.cluster("between-batches", parameters={"pg_baton.max_backends": 1})
    try:
        one.start()
        one.sql("CREATE EXTENSION IF NOT EXISTS pg_baton")
        one.sql("CREATE TABLE target (a int)")
        yield one
    finally:
        one.finish()


BATCH = parse("SELECT 1") + bind() + describe_portal() + execute()
NAMED = parse("SELECT 2", "named") + sync()
UNNAMED = parse("SELECT 3") + sync()
RUN_UNNAMED = bind() + execute() + sync()
# ends three bytes before PostgreSQL's receive buffer (8192) does, so that the
# Flush behind it is read in two parts
LONG = parse("SELECT 4 /*" + "x" * (8192 - 3 - len(parse("SELECT 4 /**/") + bind() + execute() + sync())) + "*/")
LONG += bind() + execute() + sync()

# A batch or a transaction has begun, and the session keeps its backend.
HELD = "held"
# A message has begun: it stays where it is until there is more of it.
PART = "part"

# What is sent at once, the type of the last message that answers it, and HELD or PART.
Step = tuple[bytes, str] | tuple[bytes, str, str]
SCRIPTS: dict[str, list[Step]] = {
    "flush_after_sync": [(BATCH + sync() + flush(), "Z")],
    "flush_after_sync_by_itself": [(BATCH + sync(), "Z"), (flush(), "")],
    "flush_within_and_after": [(BATCH + flush(), "C", HELD), (sync() + flush(), "Z")],
    "flush_after_query": [(query("SELECT 1") + flush(), "Z")],
    "flush_after_function_call": [(function_call(177, [b"\0\0\0\1", b"\0\0\0\2"]) + flush(), "Z")],
    "lone_flush": [(flush(), "")],
    "lone_flushes": [(flush() * 3, ""), (flush(), "")],
    "flush_in_parts": [(flush()[:1], "", PART), (flush()[1:4], "", PART), (flush()[4:], "")],
    "flush_in_the_next_buffer": [(LONG + flush(), "Z")],
    "flush_and_query": [(flush() + query("SELECT 1"), "Z")],
    "flush_and_a_batch_that_fails": [
        (flush() + parse("SELEC") + flush(), "E", HELD),
        (query("SELECT 1") + sync() + flush(), "Z"),
    ],
    "flush_after_a_batch_that_failed": [(parse("SELEC") + sync() + flush(), "Z")],
    "flush_with_a_body": [
        (message("H", b"body"), "E", HELD),
        (query("SELECT 1") + flush(), "", HELD),
        (sync() + flush(), "Z"),
    ],
    "flush_with_a_body_after_sync": [(BATCH + sync() + message("H", b"body"), "E", HELD), (sync(), "Z")],
    "flush_after_copy": [
        (query("COPY target FROM STDIN") + copy_data(b"1\n") + copy_done() + flush(), "Z"),
        (copy_data(b"2\n") + flush() + copy_done(), ""),
    ],
    "close_and_flush": [(NAMED, "Z"), (close_statement("named") + flush(), "3"), (bind([], "named") + sync(), "Z")],
    "close_and_flush_after_sync": [
        (NAMED, "Z"),
        (bind([], "named") + execute() + sync() + close_statement("named") + flush(), "3"),
        (bind([], "named") + sync(), "Z"),
    ],
    "close_of_the_unnamed_and_flush": [(UNNAMED, "Z"), (close_statement() + flush(), "3"), (RUN_UNNAMED, "Z")],
    "flush_keeps_the_unnamed": [(UNNAMED + flush(), "Z"), (flush(), ""), (RUN_UNNAMED + flush(), "Z")],
    "close_of_nothing_and_flush": [(close_statement("no") + close_portal("no") + flush() + flush(), "3")],
    "close_of_a_bad_kind_and_flush": [(message("C", b"x\0") + flush(), "E", HELD), (sync(), "Z")],
    "close_of_a_held_cursor_and_flush": [
        (query("DECLARE held CURSOR WITH HOLD FOR SELECT 1"), "Z", HELD),
        (close_portal("held") + flush(), "3"),
    ],
    "lone_sync": [(sync(), "Z")],
    "syncs": [(sync() + sync() + flush(), "Z", HELD), (b"", "Z")],
    "empty_query": [(query(""), "Z"), (query("") + flush(), "Z")],
    "empty_statement": [(parse("") + bind() + execute() + sync() + flush(), "Z")],
    "in_a_transaction": [
        (query("BEGIN") + flush(), "Z", HELD),
        (BATCH + sync() + flush(), "Z", HELD),
        (parse("SELECT 2", "named") + sync() + close_statement("named") + flush(), "3", HELD),
        (flush(), "", HELD),
        (parse("COMMIT") + bind() + execute() + flush(), "C", HELD),
        (sync() + flush(), "Z"),
    ],
    "in_a_failed_transaction": [
        (query("BEGIN; SELECT 1/0") + flush(), "Z", HELD),
        (close_statement("no") + flush(), "3", HELD),
        (BATCH + flush(), "E", HELD),
        (sync() + flush(), "Z", HELD),
        (query("ROLLBACK") + flush(), "Z"),
    ],
    "a_transaction_that_ends_within_a_batch": [
        (parse("BEGIN") + bind() + execute() + flush(), "C", HELD),
        (parse("SET work_mem = '1MB'") + bind() + execute() + flush(), "C", HELD),
        (parse("SET application_name = 'new'") + bind() + execute() + flush(), "C", HELD),
        (parse("COMMIT") + bind() + execute() + flush(), "C", HELD),
        (close_statement("no") + flush(), "3", HELD),
        (BATCH + sync() + flush(), "Z"),
        (query("SHOW work_mem"), "Z"),
    ],
}


def play(port: int, script: list[Step], others_first: bool, other: Wire) -> list[str]:
    """What the client sees.  The other session must be served after each step
    that does not say otherwise."""
    lines = []
    with Wire.login("127.0.0.1", port) as wire:
        # it is given back after its first transaction, and kept after its second
        wire.query("SELECT 1")
        wire.query("SELECT 1")
        if others_first:
            other.query("SELECT 1")
        end: Step = (query("SELECT 'end'"), "Z")
        for number, (part, last, *state) in enumerate([*script, end]):
            wire.send(part)
            found = wire.read_until(last) if last else []
            lines += [f"{number}: {describe(message)}" for message in found]
            if PART not in state:
                wait_until(lambda: wire.unread_by_server() == 0, what=f"step {number} is read")
            if HELD not in state:
                assert other.query(f"SELECT {number}") == [[str(number)]]
        wire.finish()
    return lines


@pytest.mark.parametrize("others_first", [False, True], ids=["kept", "handed over"])
@pytest.mark.parametrize("promise", SCRIPTS)
def test_the_backend_is_free_after(cluster, promise, others_first):
    seen = []
    for port in (cluster.port, cluster.pool_port):
        with Wire.login("127.0.0.1", port, timeout_s=15) as other:
            before = other.query(ITS_PROCESS)
            seen.append(play(port, SCRIPTS[promise], others_first, other))
            assert other.query(ITS_PROCESS) == before, "the backend lives"
    assert seen[0] == seen[1]


@pytest.mark.parametrize("status", ["alone", "in a transaction"])
def test_a_client_that_leaves_behind_its_flush_costs_no_backend(cluster, status):
    with Wire.login("127.0.0.1", cluster.pool_port, timeout_s=15) as other:
        before = other.query(ITS_PROCESS)
        with Wire.login("127.0.0.1", cluster.pool_port) as gone:
            gone.query("BEGIN" if status != "alone" else "SELECT 1")
            gone.send(flush())
            wait_until(lambda: gone.unread_by_server() == 0, what="it is read")
        assert other.query(ITS_PROCESS) == before
    assert_healthy(cluster)


def test_what_psycopg_does_at_once_leaves_the_backend_free(cluster):
    sessions = [psycopg.connect(cluster.pool(), autocommit=True) for _ in range(3)]
    try:
        for session in sessions:
            session.execute("TRUNCATE target")
            with session.cursor() as cursor:
                cursor.executemany("INSERT INTO target VALUES (%s)", [(n,) for n in range(5)])
        for session in sessions:
            with session.pipeline():
                session.execute("SELECT 1")
                session.execute("SELECT 2")
        for session in sessions:
            with session.pipeline():
                session.execute("BEGIN")
                session.execute("INSERT INTO target VALUES (6)")
                session.commit()
        assert sessions[0].execute("SELECT count(*) FROM target").fetchone() == (8,)
    finally:
        for session in sessions:
            session.close()
    assert_healthy(cluster)
