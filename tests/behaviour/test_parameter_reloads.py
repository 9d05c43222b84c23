"""A parameter of the configuration file counts from the next reload on, also for the
sessions that are there; when it is taken out again, the value from before counts.

These tests have the parameters that no test of their own subject changes on a running
server; test_every_parameter.py knows where each parameter is changed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from harness.health import wait_until, wait_until_replaced
from harness.ports import HOST
from harness.wire import Wire, bind, execute, parse, query, sync

pytestmark = pytest.mark.pool_only

BACKENDS = 3
PARAMETERS = {"pg_baton.max_backends": BACKENDS, "max_connections": 30}


@pytest.fixture
def set_to(server):
    """set_to(name, value) sets it by the file and a reload. At the end the fixture restores all."""
    before: dict[str, str | None] = {}

    def change(name: str, value: object) -> None:
        name = f"pg_baton.{name}"
        before.setdefault(name, server.parameters.get(name))
        server.set_parameters({name: value})
        server.reload()

    yield change
    server.set_parameters(before)
    server.reload()
    wait_until(lambda: count(server, "pg_baton_sessions") == 0, what="all have left")
    wait_until(lambda: backends(server) <= BACKENDS, what="what was too many has gone")


@pytest.fixture
def held(server, crowd):
    """Sessions that hold all backends, in transactions, and two others, which are logged in
    already: a login just after a reload may need a backend."""
    *holders, one, other = crowd(server, BACKENDS + 2)
    for holder in holders:
        holder.query("BEGIN")
    return holders, [one, other]


def count(server, what: str) -> int:
    return server.sql(f"SELECT count(*) FROM {what}")[0][0]


def backends(server) -> int:
    return count(server, "pg_baton_backends WHERE state NOT IN ('starting', 'retiring')")


def waiting(server) -> int:
    return server.sql("SELECT waiting FROM pg_baton_dispatchers")[0][0]


def has_said_nothing(wire: Wire, seconds: float) -> bool:
    """True if nothing arrives for that long; else the answer is read."""
    try:
        wire.read(seconds)
    except TimeoutError:
        return True
    wire.until_ready()
    return False


def test_session_wait_timeout_counts_for_sessions_that_wait(server, set_to, held):
    holders, (waiter, _) = held
    waiter.send(query("SELECT 1"))
    wait_until(lambda: waiting(server) == 1, what="it waits")
    set_to("session_wait_timeout", "1s")
    assert [found.fields()["C"] for found in waiter.until_ready() if found.type == "E"] == ["53300"]
    set_to("session_wait_timeout", 0)

    def waits_on() -> bool:
        waiter.send(query("SELECT 2"))
        return has_said_nothing(waiter, 3)

    wait_until(waits_on, what="there is no limit")
    for holder in holders:
        holder.query("COMMIT")
    assert [found.row() for found in waiter.until_ready() if found.type == "D"] == [[b"2"]]


def test_message_timeout_counts_for_the_next_message(server, set_to):
    whole = query("SELECT 42 /*" + 100_000 * "x" + "*/")

    def ends() -> bool:
        with Wire.login(HOST, server.pool_port) as sloth:
            sloth.send(whole[:50_000])
            try:
                found = sloth.read(3)
            except TimeoutError:
                rows = [found.row() for found in sloth.ask(whole[50_000:]) if found.type == "D"]
                assert rows == [[b"42"]]
                return False
            assert found.fields()["C"] == "57P05"
            return True

    assert not ends()
    # set by pg_baton.test_constants
    set_to("message_timeout_ms", 500)
    wait_until(ends, what="who stops in the middle of a message is ended")
    set_to("message_timeout_ms", 0)
    wait_until(lambda: not ends(), what="nobody is")


def test_max_extra_backends_counts_for_sessions_already_waiting(server, set_to, held):
    """Tests have no extra backends unless they ask for them."""
    holders, (late, _) = held
    late.send(query("SELECT 1"))
    wait_until(lambda: waiting(server) == 1, what="it waits")
    assert late.silent(2) and backends(server) == BACKENDS
    set_to("max_extra_backends", 1)
    assert late.until_ready()[-1].type == "Z"
    # the extra backend stays as long as the others are held, and no longer
    assert backends(server) == BACKENDS + 1
    set_to("max_extra_backends", 0)
    for holder in holders:
        holder.query("COMMIT")
    wait_until(lambda: backends(server) <= BACKENDS, what="what was added goes")
    for holder in holders:
        holder.query("BEGIN")
    late.send(query("SELECT 2"))
    assert late.silent(2) and backends(server) == BACKENDS
    holders[0].query("COMMIT")
    assert late.until_ready()[-1].type == "Z"


def test_min_backends_counts_for_pools_that_no_session_uses(server, set_to, crowd):
    crowd(server, 1)[0].query("SELECT 1")
    set_to("backend_idle_timeout", "100ms")
    wait_until(lambda: backends(server) <= 1, what="those without work go")
    set_to("min_backends", 3)
    wait_until(lambda: backends(server) == 3, what="they are there though nobody asks")
    set_to("min_backends", 2)
    wait_until(lambda: backends(server) == 2, what="one goes")
    set_to("min_backends", 0)
    wait_until(lambda: backends(server) <= 1, what="nobody keeps them")


def test_max_dedicated_counts_for_sessions_already_dedicated(server, set_to, crowd):
    def dedicated() -> int:
        return count(server, "pg_baton_sessions WHERE mode = 'dedicated'")

    def heard_of() -> int:
        return server.sql("SELECT sum(dedicated)::int FROM pg_baton_pools")[0][0]

    holder, other = crowd(server, 2)
    listeners = crowd(server, 2 * BACKENDS)
    for many, listener in enumerate(listeners, 1):
        listener.query("LISTEN something")
        # One after the other: which session ends depends on when the dispatcher has heard of each.
        wait_until(lambda many=many: heard_of() == many, what="the dispatcher knows it as dedicated")
    assert dedicated() == len(listeners)
    holder.query("BEGIN")
    set_to("max_dedicated", 1)

    def some_are_ended() -> bool:
        # Dedicated sessions beyond the limit hold places of shared backends.  The other sessions
        # want one more place, at the latest when the free backends have gone: there are too many.
        assert other.query("SELECT 1") == [["1"]]
        return any(listener.has_input() for listener in listeners)

    wait_until(some_are_ended, what="somebody's place is another's")
    ended = [listener for listener in listeners if listener.has_input()]
    assert ended and ended == listeners[-len(ended) :] and len(ended) < len(listeners)
    assert dedicated() == len(listeners) - len(ended)
    assert {listener.until_closed()[-1].fields()["C"] for listener in ended} == {"53300"}
    ((evictions,),) = server.sql("SELECT sum(evictions)::int FROM pg_baton_stats")
    assert evictions >= len(ended)
    set_to("max_dedicated", -1)
    more = crowd(server, len(ended))

    def all_listen() -> bool:
        for listener in more:
            listener.query("LISTEN something")
        return dedicated() == len(listeners)

    wait_until(all_listen, what="as many are as before")
    for _ in range(3):
        assert other.query("SELECT pg_sleep(0.5), 2") == [["", "2"]]
    assert dedicated() == len(listeners) and not any(listener.has_input() for listener in more)


def is_native(server, database: str = "postgres") -> bool:
    """False if the login has to wait for a backend, because no native session waits for a backend."""
    with Wire.open(HOST, server.pool_port, timeout_s=3) as wire:
        try:
            assert wire.log_in("postgres", database)[-1].type == "Z"
        except TimeoutError:
            return False
        return server.sql(f"SELECT mode FROM pg_baton_sessions WHERE pid = {wire.backend_pid}") == [("native",)]


def test_native_dbuser_names_counts_for_the_next_login(server, set_to, crowd):
    (before,) = crowd(server, 1)
    assert not is_native(server)
    set_to("native_dbuser_names", "*/postgres")
    wait_until(lambda: is_native(server), what="who comes is native")
    assert before.query("SELECT 1") == [["1"]]
    assert count(server, "pg_baton_sessions WHERE mode = 'shared'") == 1
    set_to("native_dbuser_names", "template1/*")
    wait_until(lambda: not is_native(server), what="that name is on the list no more")
    assert is_native(server, "template1")
    set_to("native_dbuser_names", "")
    wait_until(lambda: not is_native(server, "template1"), what="nobody is")


def test_native_when_waiting_counts_for_the_next_login(server, set_to, held):
    holders, waiters = held
    for waiter in waiters:
        waiter.send(query("SELECT 1"))
    wait_until(lambda: waiting(server) == 2, what="two wait")
    wait_until(lambda: not is_native(server), what="nobody is native")
    set_to("native_when_waiting", 2)
    wait_until(lambda: is_native(server), what="who comes is native")
    set_to("native_when_waiting", 0)
    wait_until(lambda: not is_native(server), what="they are not counted")
    for holder in holders:
        holder.query("COMMIT")
    for waiter in waiters:
        assert waiter.until_ready()[-1].type == "Z"


def most_in_a_backend(server, watchers: list[Wire], what: str) -> int:
    """The most such memory contexts in a backend, while each backend has only a watcher as its session."""
    for watcher in watchers:
        watcher.query("BEGIN")
    assert backends(server) == len(watchers)
    most = max(
        int(watcher.query(f"SELECT count(*) FROM pg_backend_memory_contexts WHERE {what}")[0][0])
        for watcher in watchers
    )
    for watcher in watchers:
        watcher.query("COMMIT")
    return most


def test_backend_cache_memory_counts_for_backends_that_are_there(server, set_to, crowd):
    """Each backend drops the statements and functions that no session has; each session still has its own."""
    many = 30
    session, *watchers = crowd(server, 1 + BACKENDS)
    session.query("CREATE OR REPLACE FUNCTION own() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'")
    # 100 kB each, analysed
    wide = ", ".join(f"1 + {n} + length('{n}')" for n in range(200))
    session.ask(b"".join(parse(f"SELECT {n}, {wide}", f"s{n}") for n in range(many)) + sync())

    def kept() -> tuple[int, int]:
        return (
            most_in_a_backend(server, watchers, "name = 'CachedPlanSource'"),
            most_in_a_backend(server, watchers, "name = 'PL/pgSQL function' AND ident LIKE 'own%'"),
        )

    def use() -> None:
        for _ in range(2 * BACKENDS):
            answer = session.ask(b"".join(bind([], f"s{n}") + execute() for n in range(many)) + sync())
            assert [int(m.row()[0]) for m in answer if m.type == "D"] == list(range(many))
            calls = "".join(f"SET search_path = public, s{n}; SELECT own();" for n in range(many))
            assert [m.row() for m in session.ask(query(calls)) if m.type == "D"] == [[b"1"]] * many

    def few_are_kept() -> bool:
        statements, functions = kept()
        return statements < many and functions < many

    try:
        use()
        assert min(kept()) >= many
        set_to("backend_cache_memory", "1MB")
        wait_until(few_are_kept, what="only a few are kept")
        set_to("backend_cache_memory", "64MB")
        use()
        assert min(kept()) >= many
    finally:
        session.query("DROP FUNCTION own()")


def threads(server) -> int:
    names = (path.read_text() for path in Path(f"/proc/{server.dispatcher_pids()[0]}/task").glob("*/comm"))
    return 1 + sum(name.startswith("sessions") for name in names)


def test_dispatcher_start_parameters_count_for_the_next_one(server, set_to, crowd):
    (old,) = server.dispatcher_pids()
    program = os.readlink(f"/proc/{old}/exe")
    wrapper = server.home / "wrapper"
    wrapper.write_text(f'#!/bin/sh\necho "started by a wrapper" >&2\nexec "{program}" "$@"\n')
    wrapper.chmod(0o755)

    def next_one() -> None:
        (last,) = server.dispatcher_pids()
        server.expect_in_log(r"dispatcher \(PID \d+\) has ended: child process was terminated by signal 9")
        os.kill(last, signal.SIGKILL)
        wait_until_replaced(server, last)
        server.wait_pool_ready()

    def shown() -> int:
        return server.sql("SELECT threads FROM pg_baton_dispatchers")[0][0]

    (session,) = crowd(server, 1)
    before = threads(server)
    before_set = server.parameters.get("pg_baton.dispatchers")
    assert shown() == before
    set_to("dispatchers", 3)
    set_to("dispatcher_program", wrapper)
    set_to("dispatcher_log", "debug")
    wait_until(lambda: server.sql("SHOW pg_baton.dispatcher_log") == [("debug",)], what="a reload")
    assert session.query("SELECT 1") == [["1"]]
    assert server.dispatcher_pids() == [old] and threads(server) == before
    with server.new_log() as log:
        next_one()
        assert threads(server) == 3 and shown() == 3
        wait_until(lambda: "started by a wrapper" in log() and "DEBUG" in log(), what="its lines")
    with contextlib.suppress(ConnectionError):
        session.finish()
    for name, value in (("dispatchers", before_set), ("dispatcher_program", program), ("dispatcher_log", None)):
        set_to(name, value)
    wait_until(lambda: server.sql("SHOW pg_baton.dispatcher_log") == [("info",)], what="a reload")
    next_one()
    assert threads(server) == before


def test_a_reload_that_changes_nothing_lets_clients_in(make_cluster):
    """Though transactions hold all backends: many tools reload (Patroni at each switchover)."""
    cluster = make_cluster(
        parameters=PARAMETERS | {"pg_baton.max_extra_backends": 0, "pg_baton.session_wait_timeout": "3s"}
    )
    with contextlib.ExitStack() as stack:

        def come() -> Wire:
            return stack.enter_context(Wire.login(HOST, cluster.pool_port))

        holders = [come() for _ in range(BACKENDS)]
        for holder in holders:
            holder.query("BEGIN")
        come()
        cluster.reload()
        for _ in range(20):
            come()
            time.sleep(0.05)
        assert holders[0].query("COMMIT") == []
        cluster.set_parameters({"DateStyle": "German"})
        cluster.reload()
        wait_until(lambda: come().parameters["DateStyle"].startswith("German"), what="what has changed counts")
