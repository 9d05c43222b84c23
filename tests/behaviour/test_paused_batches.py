"""A batch whose messages are whole is run, though its Sync has not come yet.

On a direct connection the server runs each message as it reads it: its locks
are taken, its error is told, and statement_timeout runs while the client
pauses.  In the pool that holds a backend, so it is done while another one is left
for other sessions.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest
from harness.compare import describe
from harness.health import assert_healthy, wait_until
from harness.wire import Wire, bind, describe_statement, execute, parse, query, sync

BACKENDS = 3
HALF_OPEN = 25


def start(run, forced, extra):
    cluster = run.cluster(
        f"paused-batches-{'forced' if forced else 'normal'}-{extra}",
        parameters={
            "pg_baton.max_backends": BACKENDS,
            "pg_baton.max_extra_backends": extra,
            "pg_baton.force_migration": forced,
            "max_connections": 100,
        },
    )
    try:
        cluster.start()
        cluster.sql("CREATE EXTENSION IF NOT EXISTS pg_baton")
        yield cluster
    finally:
        cluster.finish()


@pytest.fixture(scope="module", params=[False, True], ids=["normal", "forced"])
def few(run, request):
    yield from start(run, request.param, 0)


@pytest.fixture(scope="module", params=[False, True], ids=["normal", "forced"])
def growing(run, request):
    """In a stall there may be more of them."""
    yield from start(run, request.param, None)


SELECT_1 = parse("SELECT 1")
# What is sent before a pause, up to which answer is read, and what ends the batch.
PAUSES = {
    "statement_timeout_after_parse": ("50ms", SELECT_1, "", describe_statement() + sync()),
    "statement_timeout_after_execute": ("50ms", SELECT_1 + bind() + execute(), "", sync()),
    "an_error_is_told": ("0", parse("SELEC"), "E", sync()),
    "an_error_of_execute_is_told": ("0", parse("SELECT 1/0") + bind() + execute(), "E", bind() + sync()),
}


@pytest.mark.parametrize("case", PAUSES)
def test_a_pause_in_a_batch_is_as_on_a_direct_connection(few, case):
    """The server looks at its timeout as it reads the next message."""
    timeout, part, last, rest = PAUSES[case]
    seen = []
    for port in (few.port, few.pool_port):
        with Wire.login("127.0.0.1", port) as wire:
            lines = wire.ask(query(f"SET statement_timeout = '{timeout}'"))
            for _ in range(3):
                wire.send(part)
                lines += wire.read_until(last) if last else []
                wait_until(lambda: wire.unread_by_server() == 0, what="it is read")
                time.sleep(0.2)
                lines += wire.ask(rest)
            lines += wire.ask(query("SHOW statement_timeout"))
            wire.finish()
        seen.append([describe(line) for line in lines])
    assert any("57014" in line for line in seen[0]) == (case == "statement_timeout_after_parse")
    assert seen[1] == seen[0]


def test_what_a_batch_has_locked_is_locked_while_it_pauses(few):
    with Wire.login("127.0.0.1", few.pool_port) as wire, Wire.login("127.0.0.1", few.pool_port) as other:
        wire.send(parse("SELECT pg_advisory_xact_lock(7)") + bind() + execute())
        wait_until(lambda: other.query("SELECT pg_try_advisory_xact_lock(7)") == [["f"]], what="the batch has been run")
        wire.send(sync())
        wire.until_ready()
        assert other.query("SELECT pg_try_advisory_xact_lock(7)") == [["t"]]
        wire.finish()
        other.finish()


OVER = {
    "describe": (parse("SELECT 1"), describe_statement() + sync()),
    "sync": (parse("SELECT 1") + bind(), sync()),
    "after_execute": (parse("SELECT 1") + bind() + execute(), bind() + sync()),
    "after_an_error": (parse("SELEC"), bind() + sync()),
    "both": (parse("SELECT 1") + bind() + execute() + parse("SELECT 2"), bind() + execute() + sync()),
}


def compare_over(cluster, case, is_full):
    part, rest = OVER[case]
    seen = []
    for port in (cluster.port, cluster.pool_port):
        with ExitStack() as stack:
            wire, *holders = [stack.enter_context(Wire.login("127.0.0.1", port)) for _ in range(1 + BACKENDS)]
            wire.query("SET statement_timeout = '500ms'")
            for holder in holders[1:]:
                holder.query("BEGIN")
            wire.send(part)
            if is_full:
                time.sleep(0.1)
                holders[0].query("BEGIN")
            else:
                wait_until(lambda: wire.unread_by_server() == 0, what="a backend has read it")
            time.sleep(1)
            seen.append([describe(line) for line in wire.ask(rest)])
            for each in [wire, *holders]:
                each.query("ROLLBACK")
                each.finish()
    assert any("57014" in line for line in seen[0]) == (case in ("describe", "sync", "both"))
    assert seen[1] == seen[0]


@pytest.mark.parametrize("case", OVER)
def test_statement_timeout_ends_a_batch_that_waits(few, case):
    """A batch that waits outside of any backend, as no other is left, gets that one
    when statement_timeout is over; its client is told so where a direct connection tells it."""
    compare_over(few, case, False)


@pytest.mark.parametrize("case", OVER)
def test_statement_timeout_ends_a_batch_of_a_full_pool(growing, case):
    """It waits for a backend as any other session does."""
    compare_over(growing, case, True)


@pytest.mark.pool_only
def test_batches_past_their_timeout_do_not_stop_others(growing):
    """They hold their backends, as in stock; others get theirs, as in any stall."""
    with ExitStack() as stack:
        half = [stack.enter_context(Wire.login("127.0.0.1", growing.pool_port)) for _ in range(HALF_OPEN)]
        other = stack.enter_context(Wire.login("127.0.0.1", growing.pool_port))
        for wire in half:
            wire.query("SET statement_timeout = '50ms'")
            wire.send(parse("SELECT 1"))
        for number in range(20):
            assert other.query(f"SELECT {number}") == [[str(number)]]
        for wire in half:
            wait_until(lambda: wire.unread_by_server() == 0, what="a backend has read it")
            time.sleep(0.1)
            assert [answer.type for answer in wire.ask(bind() + execute() + sync())] == list("1EZ")
            wire.finish()
        other.finish()
    assert_healthy(growing)


@pytest.mark.pool_only
def test_half_open_batches_do_not_stop_other_sessions(few):
    """More of them than there are backends; another session goes on, and so do
    they when their Sync comes."""
    with ExitStack() as stack:
        half = [stack.enter_context(Wire.login("127.0.0.1", few.pool_port)) for _ in range(HALF_OPEN)]
        other = stack.enter_context(Wire.login("127.0.0.1", few.pool_port))
        for wire in half:
            wire.send(parse("SELECT 1") + bind() + execute())
        for number in range(200):
            assert other.query(f"SELECT {number}") == [[str(number)]]
        ((backends,),) = few.sql("SELECT count(*) FROM pg_baton_backends WHERE pid IS NOT NULL")
        assert backends <= BACKENDS
        for wire in half:
            assert [answer.type for answer in wire.ask(sync())] == list("12DCZ")
            wire.finish()
        other.finish()
    assert_healthy(few)
