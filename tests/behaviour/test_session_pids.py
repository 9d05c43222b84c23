"""A session has one process ID for its life, and all of SQL knows the session by it."""

from __future__ import annotations

import random
import threading
import time

import psycopg
import pytest
from harness.health import wait_until
from harness.wire import Closed, Wire, query, startup

PID_MAX_LIMIT = 4_194_304  # no process of Linux has a greater number

SETUP = [
    "CREATE EXTENSION pg_baton",
    "CREATE ROLE owner LOGIN",
    "CREATE ROLE guard LOGIN IN ROLE pg_signal_backend",
    "CREATE ROLE stranger LOGIN",
    "CREATE TABLE accounts (id int PRIMARY KEY, amount int)",
    "INSERT INTO accounts SELECT i, 0 FROM generate_series(1, 10) i",
    "GRANT ALL ON accounts TO PUBLIC",
]

PARAMETERS = {"pg_baton.max_backends": 4}


def open_wire(server, **options) -> Wire:
    return Wire.login("127.0.0.1", server.pool_port, **options)


def errors(messages) -> list[tuple[str, str]]:
    return [(m.fields()["S"], m.fields()["C"]) for m in messages if m.type == "E"]


def warnings(messages) -> list[str]:
    return [m.fields()["M"] for m in messages if m.type == "N"]


def shown(server, pid: int) -> list[tuple]:
    return server.sql(f"SELECT state, wait_event FROM pg_stat_activity WHERE pid = {pid}")


def runs(server, pid: int) -> None:
    wait_until(lambda: shown(server, pid) == [("active", "PgSleep")], what=f"{pid} runs")


def rests(server, pid: int) -> None:
    """Waits until no backend has the session any more."""
    session = f"SELECT 1 FROM pg_baton_backends b JOIN pg_baton_sessions s ON s.id = b.session_id WHERE s.pid = {pid}"
    wait_until(lambda: server.sql(session) == [], what=f"{pid} rests")


def is_closed(session: Wire) -> list[tuple[str, str]]:
    return errors(session.until_closed(20))


@pytest.mark.parametrize("port", ["pool_port", "port"])
def test_a_session_can_be_cancelled_by_the_number_it_was_told(server, port):
    with open_wire(server) as session, Wire.login("127.0.0.1", getattr(server, port)) as other:
        assert server.pool_port == server.port or session.backend_pid > PID_MAX_LIMIT
        for _ in range(3):
            session.query("SELECT 1")
            session.send(query("SELECT pg_sleep(60)"))
            runs(server, session.backend_pid)
            assert other.query(f"SELECT pg_cancel_backend({session.backend_pid})") == [["t"]]
            assert errors(session.until_ready(20)) == [("ERROR", "57014")]
            assert session.query("SELECT pg_backend_pid()") == [[str(session.backend_pid)]]


def test_a_running_session_can_be_ended_by_its_number(server):
    with open_wire(server) as session, open_wire(server) as other:
        session.send(query("SELECT pg_sleep(60)"))
        runs(server, session.backend_pid)
        assert other.query(f"SELECT pg_terminate_backend({session.backend_pid}, 20000)") == [["t"]]
        assert is_closed(session) == [("FATAL", "57P01")]
        assert shown(server, session.backend_pid) == []
        assert other.query("SELECT 1") == [["1"]]


def test_an_idle_session_can_be_ended_by_its_number(server):
    with open_wire(server) as session, open_wire(server) as other, open_wire(server) as third:
        for wire in (session, other, third, session, third):
            wire.query("SELECT 1")
        assert other.query(f"SELECT pg_cancel_backend({session.backend_pid})") == [["t"]]
        assert session.query("SELECT 2") == [["2"]], "a cancel means nothing to who is idle"
        assert other.query(f"SELECT pg_terminate_backend({session.backend_pid}, 20000)") == [["t"]]
        assert is_closed(session) == [("FATAL", "57P01")]
        assert other.query("SELECT 3") == third.query("SELECT 3") == [["3"]]


def test_session_idle_in_transaction_can_be_ended_with_its_locks(server):
    with open_wire(server) as session, open_wire(server) as other:
        session.query("BEGIN")
        session.query("LOCK accounts")
        assert other.query(f"SELECT pg_terminate_backend({session.backend_pid}, 20000)") == [["t"]]
        assert other.query("SELECT count(*) FROM accounts") == [["10"]]
        assert is_closed(session) == [("FATAL", "57P01")]


@pytest.mark.pool_only
def test_a_waiting_session_is_cancelled_or_ended_at_once(make_cluster):
    server = make_cluster(parameters={"pg_baton.max_backends": 1})
    with open_wire(server) as holder, open_wire(server) as waiting:
        for _ in range(2):
            assert holder.query("SELECT 1") == waiting.query("SELECT 1")
        holder.query("BEGIN")
        waiting.send(query("SELECT 'never executed'"))
        found = f"SELECT state, query FROM pg_stat_activity WHERE pid = {waiting.backend_pid}"
        wait_until(lambda: server.sql(found) == [("active", "<waiting for a backend>")], what="it waits")
        server.sql(f"SELECT pg_cancel_backend({waiting.backend_pid})")
        assert errors(waiting.until_ready(20)) == [("ERROR", "57014")]
        waiting.send(query("SELECT 'never executed'"))
        wait_until(lambda: server.sql(found)[0][0] == "active", what="it waits again")
        server.sql(f"SELECT pg_terminate_backend({waiting.backend_pid})")
        assert is_closed(waiting) == [("FATAL", "57P01")]
        holder.query("COMMIT")


def test_rights_to_cancel_and_end_sessions_are_as_when_direct(server):
    def answers(user: str, pid: int) -> list:
        with open_wire(server, user=user) as wire:
            got = []
            for function in ("pg_cancel_backend", "pg_terminate_backend"):
                found = wire.ask(query(f"SELECT {function}({pid})"))
                got.append([(m.fields()["C"], m.fields()["M"]) for m in found if m.type == "E"])
            return got

    with (
        open_wire(server, user="owner") as pooled,
        Wire.login("127.0.0.1", server.port, user="owner") as direct,
        open_wire(server) as pooled_super,
        Wire.login("127.0.0.1", server.port) as direct_super,
    ):
        assert answers("stranger", pooled.backend_pid) == answers("stranger", direct.backend_pid)
        assert answers("stranger", pooled.backend_pid)[0][0][0] == "42501"
        assert answers("guard", pooled_super.backend_pid) == answers("guard", direct_super.backend_pid)
        assert answers("guard", pooled_super.backend_pid)[0][0][0] == "42501"
        assert answers("guard", pooled.backend_pid) == [[], []]
        assert is_closed(pooled) == [("FATAL", "57P01")]
        assert pooled_super.query("SELECT 1") == [["1"]]


def test_process_id_of_a_past_session_finds_no_session(server):
    with open_wire(server) as session:
        gone = []
        for _ in range(20):
            with open_wire(server) as one:
                one.query("SELECT 1")
                gone.append(one.backend_pid)
        wait_until(lambda: all(shown(server, pid) == [] for pid in gone), what="all have gone")
        with open_wire(server) as other:
            for pid in [*gone, 2**31 - 1]:
                for function in ("pg_cancel_backend", "pg_terminate_backend"):
                    found = session.ask(query(f"SELECT {function}({pid})"))
                    assert warnings(found) == [f"PID {pid} is not a PostgreSQL backend process"] or warnings(found) == [
                        f"PID {pid} is not a PostgreSQL server process"
                    ]
            assert other.query("SELECT 1") == [["1"]]


STORM_SHOTS = 6000


@pytest.mark.parametrize("backends", [1, 4])
def test_storm_of_cancels_and_terminations_hits_only_its_targets(make_cluster, backends):
    """Sessions come and go on few backends while sessions are cancelled and ended by their
    numbers, including numbers of sessions that have long ended: a session that was not aimed
    at is not affected, even if it is on the target's backend by then."""
    server = make_cluster(parameters={"pg_baton.max_backends": backends})
    stop = threading.Event()
    victims: list[int] = []
    aimed_at: set[int] = set()
    problems: list[str] = []
    hits = [0, 0]

    def bystander(number: int) -> None:
        with open_wire(server) as wire:
            while not stop.is_set():
                found = wire.ask(query(f"SELECT {number}"))
                if errors(found):
                    problems.append(f"a bystander got {errors(found)}")
                    return

    def victim() -> None:
        while not stop.is_set():
            with open_wire(server) as wire:
                victims.append(wire.backend_pid)
                try:
                    for _ in range(random.randrange(1, 30)):
                        for found in errors(wire.ask(query("SELECT 1"))):
                            hits[0] += found == ("ERROR", "57014")
                            if found[1] not in ("57014", "57P01") or wire.backend_pid not in aimed_at:
                                problems.append(f"a victim got {found}")
                except (Closed, OSError):
                    hits[1] += 1
                    if wire.backend_pid not in aimed_at:
                        problems.append("a session was ended that nobody has aimed at")

    threads = [threading.Thread(target=bystander, args=(n,)) for n in range(6)]
    threads += [threading.Thread(target=victim) for _ in range(4)]
    for thread in threads:
        thread.start()
    shots = 0
    rolls = random.Random(5)
    try:
        with psycopg.connect(server.direct(), autocommit=True) as killer:
            killer.execute("SET client_min_messages = error")
            end = time.monotonic() + 240
            while shots < STORM_SHOTS and time.monotonic() < end and not problems:
                known = len(victims)
                if not known:
                    continue
                # One of the latest sessions, and a session that has gone or is about
                # to go; every second session is left alone.
                for pid in (victims[known - 1], rolls.choice(victims[:known])):
                    if pid % 2:
                        continue
                    function = "pg_terminate_backend" if rolls.randrange(5) == 0 else "pg_cancel_backend"
                    aimed_at.add(pid)
                    killer.execute(f"SELECT {function}({pid})")
                    shots += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert problems == []
    assert shots >= STORM_SHOTS and not any(thread.is_alive() for thread in threads)
    assert hits[1] > 0, "nobody was ended"
    server.expect_in_log("terminating connection due to administrator command")


LOCKS = """
SELECT blocked.pid, blocked.query, blocked.state, blocked.wait_event_type,
       blocking.pid, blocking.query, blocking.state, l.mode
FROM pg_stat_activity blocked
JOIN pg_locks l ON l.pid = blocked.pid AND NOT l.granted
JOIN LATERAL unnest(pg_blocking_pids(blocked.pid)) b(pid) ON true
JOIN pg_stat_activity blocking ON blocking.pid = b.pid
"""


def test_monitor_sees_blocking_and_blocked_sessions_with_queries(server):
    with open_wire(server, user="owner") as holder, open_wire(server, user="stranger") as blocked:
        for turn in range(3):
            with open_wire(server) as other:
                other.query("SELECT 1")
            holder.query("BEGIN")
            holder.query(f"UPDATE accounts SET amount = {turn} WHERE id = 1")
            blocked.send(query(f"UPDATE accounts SET amount = -{turn} WHERE id = 1"))
            expected = [
                (
                    blocked.backend_pid,
                    f"UPDATE accounts SET amount = -{turn} WHERE id = 1",
                    "active",
                    "Lock",
                    holder.backend_pid,
                    f"UPDATE accounts SET amount = {turn} WHERE id = 1",
                    "idle in transaction",
                    "ShareLock",
                )
            ]
            wait_until(lambda: server.sql(LOCKS) == expected, what="one is blocked by the other")
            ((held,),) = server.sql(
                f"SELECT count(*) FROM pg_locks WHERE pid = {holder.backend_pid}"
                " AND relation = 'accounts'::regclass AND granted"
            )
            assert held == 1
            holder.query("COMMIT")
            assert errors(blocked.until_ready(20)) == []


DASHBOARD = """
SELECT state, usename, datname, host(client_addr), application_name, count(*), count(DISTINCT pid), bool_and(query LIKE 'SELECT %')
FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() GROUP BY 1, 2, 3, 4, 5 ORDER BY 2, 5
"""


def test_a_dashboard_counts_every_session_once(server):
    """The dashboard counts sessions by state, user, database and client; few sessions have a backend."""
    wires = [
        open_wire(server, user=("owner", "guard", "stranger")[n % 3], application_name=f"app {n % 2}")
        for n in range(60)
    ]
    try:
        for number, wire in enumerate(wires):
            wire.query(f"SELECT {number}")
        expected = [
            ("idle", user, "postgres", "127.0.0.1", f"app {n}", 10, 10, True)
            for user in ("guard", "owner", "stranger")
            for n in (0, 1)
        ]
        for _ in range(5):
            wait_until(lambda: server.sql(DASHBOARD) == expected, what="all are shown")
        last = dict(server.sql("SELECT pid, query FROM pg_stat_activity WHERE application_name LIKE 'app%'"))
        assert last == {wire.backend_pid: f"SELECT {number}" for number, wire in enumerate(wires)}
        by_number = server.sql(
            "SELECT pg_stat_get_backend_pid(n), pg_stat_get_backend_activity(n), pg_stat_get_backend_client_port(n)"
            " FROM pg_stat_get_backend_idset() n WHERE pg_stat_get_backend_activity(n) ~ '^SELECT [0-9]+$'"
        )
        assert sorted(by_number) == sorted(
            (wire.backend_pid, f"SELECT {number}", wire.sock.getsockname()[1]) for number, wire in enumerate(wires)
        )
        mine = server.sql(f"SELECT pid, state FROM pg_stat_get_activity({wires[7].backend_pid})")
        assert mine == [(wires[7].backend_pid, "idle")]
    finally:
        for wire in wires:
            wire.finish()
    wait_until(lambda: server.sql(DASHBOARD) == [], what="all have gone")


@pytest.mark.pool_only
def test_backend_between_sessions_does_not_show_as_a_session(server):
    """Only pg_baton_backends shows such a backend, and both its numbers when it serves a session again."""
    rows = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    numbers = (
        "SELECT count(*) FROM pg_stat_get_backend_idset() n WHERE pg_stat_get_backend_pid(n) <> pg_backend_pid()"
        " AND pg_stat_get_backend_dbid(n) = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    for _ in range(3):
        with open_wire(server) as session:
            session.query("SELECT 1")
            session.finish()
        wait_until(lambda: server.sql(rows) == [(0,)], what="nobody is shown")
        assert server.sql("SELECT count(*) > 0, count(session_pid) FROM pg_baton_backends") == [(True, 0)]
        wait_until(lambda: server.sql(numbers) == [(0,)], what="nobody has a number")
    with open_wire(server) as session:
        session.query("BEGIN")
        ((process,),) = server.sql(f"SELECT pid FROM pg_baton_backends WHERE session_pid = {session.backend_pid}")
        assert process <= PID_MAX_LIMIT < session.backend_pid
        # The connection of the last question may still be about to end.
        wait_until(lambda: server.sql(rows) == [(1,)], what="the session alone is shown")


@pytest.mark.pool_only
def test_starting_backend_does_not_show_as_a_session(server):
    """A session shows once, from the beginning of its login: the process that is about to
    serve it does not show as a second session."""
    roles = [f"new_{n}" for n in range(20)]
    server.sql("; ".join(f"CREATE ROLE {role} LOGIN" for role in roles))
    look = (
        "SELECT pid, usename, state FROM pg_stat_activity"
        f" WHERE backend_type = 'client backend' AND pid <= {PID_MAX_LIMIT} AND pid <> pg_backend_pid()"
    )
    processes, is_over = [], threading.Event()

    def watch() -> None:
        with psycopg.connect(server.direct(), autocommit=True) as watcher:
            while not is_over.is_set():
                processes.extend(watcher.execute(look).fetchall())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        for role in roles:
            with open_wire(server, user=role) as session:
                assert session.query("SELECT current_user") == [[role]]
    finally:
        is_over.set()
        watching.join()
    assert processes == []


def test_an_idle_session_s_times_and_client_are_its_own(server):
    with open_wire(server, application_name="timed") as session, open_wire(server) as other:
        session.query("SET application_name = 'renamed'")
        session.query("SELECT 'last'")
        for _ in range(5):
            other.query("SELECT 1")
        ((start, began, changed, name, text, port, before),) = server.sql(
            "SELECT backend_start, query_start, state_change, application_name, query, client_port, xact_start"
            f" FROM pg_stat_activity WHERE pid = {session.backend_pid}"
        )
        assert start <= began <= changed
        assert (name, text, port, before) == ("renamed", "SELECT 'last'", session.sock.getsockname()[1], None)


def test_unprivileged_role_does_not_see_another_s_session(server):
    with open_wire(server, user="owner") as session, open_wire(server, user="stranger") as other:
        session.query("SELECT 'a secret'")
        look = "SELECT usename, query, state, client_addr, query_start FROM pg_stat_activity WHERE usename = 'owner'"
        assert other.query(look) == [["owner", "<insufficient privilege>", None, None, None]]
        assert session.query(
            "SELECT count(*) FROM pg_stat_activity WHERE query = '<insufficient privilege>' AND usename = 'owner'"
        ) == [["0"]]


@pytest.mark.pool_only
def test_numbers_hold_in_compiled_expressions(server):
    """JIT calls built-in functions by their symbols unless it is told otherwise."""
    with open_wire(server, options="-c jit=on -c jit_above_cost=0 -c jit_inline_above_cost=0") as session:
        found = session.query("SELECT DISTINCT pg_backend_pid() + i * 0 FROM generate_series(1, 1000) i")
        assert found == [[str(session.backend_pid)]]


@pytest.mark.pool_only
def test_without_it_shows_the_processes(make_cluster):
    server = make_cluster(parameters={"pg_baton.break_self_check": "process_ids", "pg_baton.max_backends": 2})
    with open_wire(server) as session:
        ((pid,),) = session.query("SELECT pg_backend_pid()")
        assert int(pid) <= PID_MAX_LIMIT
        assert session.query(f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}") == [["1"]]


@pytest.mark.pool_only
def test_a_session_ended_while_it_logs_in_is_told_so(make_cluster):
    server = make_cluster(parameters={"pg_baton.max_backends": 1})
    with open_wire(server) as holder:
        holder.query("BEGIN")
        late = Wire.open("127.0.0.1", server.pool_port)
        late.send(
            startup(
                {"user": "postgres", "database": "postgres", "application_name": "late", "options": "-c work_mem=1MB"}
            )
        )
        found = "SELECT pid FROM pg_stat_activity WHERE application_name = 'late'"
        wait_until(lambda: len(server.sql(found)) == 1, what="it waits to be greeted")
        server.sql(f"SELECT pg_terminate_backend(pid) FROM ({found}) x")
        assert is_closed(late) == [("FATAL", "57P01")]
        late.close()
        holder.query("COMMIT")
