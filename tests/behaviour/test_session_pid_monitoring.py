"""Queries of monitoring tools have the same answers on the pool as on direct connections."""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import time

import pytest
from harness.health import stop, wait_until
from harness.wire import Wire, query

SETUP = [
    "CREATE EXTENSION pg_baton",
    "CREATE ROLE owner LOGIN",
    "CREATE ROLE stranger LOGIN",
    "CREATE ROLE watcher LOGIN IN ROLE pg_monitor",
    "CREATE TABLE accounts (id int PRIMARY KEY, amount int)",
    "INSERT INTO accounts SELECT i, 0 FROM generate_series(1, 10) i",
    "GRANT ALL ON accounts TO PUBLIC",
]
PARAMETERS = {"pg_baton.max_backends": 8}

# Shows the process ID of each session, which the test replaces with the session's name.
BLOCKING = """
SELECT blocked.pid, blocked.usename, blocked.application_name, blocked.state, blocked.wait_event_type, blocked.query,
       blocking.pid, blocking.usename, blocking.application_name, blocking.state, blocking.query
FROM pg_stat_activity blocked
CROSS JOIN LATERAL unnest(pg_blocking_pids(blocked.pid)) b(pid)
JOIN pg_stat_activity blocking ON blocking.pid = b.pid
ORDER BY blocked.application_name, blocking.application_name
"""

# The PostgreSQL wiki's "Lock Monitoring", shortened to its joins.
LOCK_MONITORING = """
SELECT blocked_locks.pid, blocked_activity.usename, blocking_locks.pid, blocking_activity.usename,
       blocked_activity.query, blocking_activity.query, blocked_locks.locktype, blocked_locks.mode
FROM pg_locks blocked_locks
JOIN pg_stat_activity blocked_activity ON blocked_activity.pid = blocked_locks.pid
JOIN pg_locks blocking_locks
  ON blocking_locks.locktype = blocked_locks.locktype
 AND blocking_locks.database IS NOT DISTINCT FROM blocked_locks.database
 AND blocking_locks.relation IS NOT DISTINCT FROM blocked_locks.relation
 AND blocking_locks.page IS NOT DISTINCT FROM blocked_locks.page
 AND blocking_locks.tuple IS NOT DISTINCT FROM blocked_locks.tuple
 AND blocking_locks.virtualxid IS NOT DISTINCT FROM blocked_locks.virtualxid
 AND blocking_locks.transactionid IS NOT DISTINCT FROM blocked_locks.transactionid
 AND blocking_locks.classid IS NOT DISTINCT FROM blocked_locks.classid
 AND blocking_locks.objid IS NOT DISTINCT FROM blocked_locks.objid
 AND blocking_locks.objsubid IS NOT DISTINCT FROM blocked_locks.objsubid
 AND blocking_locks.pid != blocked_locks.pid
JOIN pg_stat_activity blocking_activity ON blocking_activity.pid = blocking_locks.pid
WHERE NOT blocked_locks.granted AND blocking_locks.granted
ORDER BY 5, 6, 7
"""


def seen_of_a_queue_of_locks(server, port: int) -> list:
    """The waiting and the blocking sessions, as three roles with different privileges see them."""
    sessions = {
        name: Wire.login("127.0.0.1", port, user=user, application_name=name)
        for name, user in (("holder", "owner"), ("second", "stranger"), ("third", "owner"), ("reader", "stranger"))
    }
    names = {str(wire.backend_pid): name for name, wire in sessions.items()}
    seen: list = []
    for turn in range(2):
        for _ in range(3):  # afterwards each session is on any backend
            for wire in sessions.values():
                wire.query("SELECT 1")
        sessions["reader"].query("BEGIN")
        sessions["reader"].query("SELECT 'a lock of another kind' FROM accounts")
        sessions["holder"].query("BEGIN")
        sessions["holder"].query(f"UPDATE accounts SET amount = {turn} WHERE id = 1")
        for name in ("second", "third"):
            sessions[name].send(query(f"UPDATE accounts SET amount = 7 WHERE id = 1 /* {name} */"))
            waits = f"SELECT wait_event_type FROM pg_stat_activity WHERE pid = {sessions[name].backend_pid}"
            wait_until(lambda: server.sql(waits) == [("Lock",)], what=f"{name} waits")
        for user in ("postgres", "watcher", "stranger"):
            with Wire.login("127.0.0.1", port, user=user) as looker:
                for asked in (BLOCKING, LOCK_MONITORING):
                    rows = looker.query(asked)
                    seen.append([[names.get(value, value) for value in row] for row in rows])
        sessions["holder"].query("COMMIT")
        for name in ("second", "third"):
            sessions[name].until_ready(20)
        sessions["reader"].query("COMMIT")
    for wire in sessions.values():
        wire.finish()
    return seen


def test_blocked_and_blocking_sessions_show_as_direct_ones_do(server):
    direct = seen_of_a_queue_of_locks(server, server.port)
    assert len(direct[0]) >= 2 and direct[0][0][0] == "second" and direct[0][0][6] == "holder"
    assert seen_of_a_queue_of_locks(server, server.pool_port) == direct


DASHBOARD = """
SELECT usename, datname, host(client_addr), application_name, state, wait_event_type, wait_event,
       left(query, 12), count(*), count(DISTINCT pid), count(xact_start), count(backend_start), count(query_start)
FROM pg_stat_activity WHERE backend_type = 'client backend' AND application_name LIKE 'app%'
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8
"""


def dashboard(server, port: int, idle: int) -> list[tuple]:
    """Rows of DASHBOARD with `idle` idle sessions and one busy session for each of eight kinds."""
    wires = []
    kinds = [
        (user, database, source)
        for user in ("owner", "stranger")
        for database in ("postgres", "second")
        for source in ("127.0.0.1", "127.0.0.2")
    ]
    for number, (user, database, source) in enumerate(kinds):
        for which in range(idle + 1):
            wire = Wire.open("127.0.0.1", port, source=source)
            wire.log_in(user, database, application_name=f"app {number % 3}")
            if which < idle:
                wire.query(f"SELECT 'idle', {which}")
            elif number % 2:
                wire.query("BEGIN")
                wire.query("SELECT 'open'")
            else:
                wire.send(query("SELECT pg_sleep(600)"))
            wires.append(wire)
    found: list[tuple] = []

    def all_are_there() -> bool:
        found[:] = server.sql(DASHBOARD)
        # A session that has just been answered is idle a moment before it waits for its client.
        all_wait = all(row[5] is not None for row in found)
        active = sum(row[8] for row in found if row[4] == "active")
        return all_wait and active == 4 and sum(row[8] for row in found) == len(wires)

    wait_until(all_are_there, what="all are shown")
    server.sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)'")
    for wire in wires:
        wire.close()
    return found


@pytest.mark.pool_only
def test_dashboard_shows_2000_sessions_on_8_backends_as_direct(make_cluster):
    """The counts by state, user, database and client are those of direct connections,
    of which there are as many for each kind as a server has room for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = make_cluster(
        parameters={"pg_baton.max_backends": 8, "pg_baton.max_sessions": 3000}, hba=["host all all 127.0.0.0/8 trust"]
    )
    for statement in ("CREATE ROLE owner LOGIN", "CREATE ROLE stranger LOGIN", "CREATE DATABASE second"):
        server.sql(statement)
    direct = dashboard(server, server.port, 5)
    wait_until(lambda: server.sql(DASHBOARD) == [], what="all have gone")
    pooled = dashboard(server, server.pool_port, 249)
    assert sum(row[8] for row in pooled) == 2000
    # Each row has the same counts, but 249 idle sessions of a kind in place of five.
    scaled = [row[:8] + tuple(count // 5 * 249 if row[4] == "idle" else count for count in row[8:]) for row in direct]
    assert pooled == scaled
    wait_until(lambda: server.sql(DASHBOARD) == [], what="all have gone")


@pytest.mark.pool_only
def test_reader_of_pg_stat_activity_holds_up_no_other_session(server):
    """While the reader is stopped in the middle of a read, many times, other sessions
    log in, work on every backend, and leave."""
    rolls = random.Random(7)
    crowd = [Wire.login("127.0.0.1", server.pool_port) for _ in range(100)]
    with Wire.login("127.0.0.1", server.port) as looker:
        ((process,),) = looker.query("SELECT harness.its_process()")
        looker.send(
            query("SELECT count(*) FROM generate_series(1, 1000000) i, LATERAL pg_stat_get_activity(nullif(i, i))")
        )
        for _ in range(15):
            time.sleep(rolls.random() / 50)
            stop(int(process))
            try:
                for wire in crowd:
                    wire.send(query("SELECT 1"))
                for wire in crowd:
                    assert wire.until_ready(20)[-1].type == "Z"
                with Wire.login("127.0.0.1", server.pool_port) as other:
                    # not on the server's own port: a new process needs ProcArrayLock, which the stopped reader may hold
                    assert other.query("SELECT count(*) > 100 FROM pg_stat_activity") == [["t"]]
            finally:
                os.kill(int(process), signal.SIGCONT)
        looker.cancel_request()
        assert re.search("canceling", str([m.fields() for m in looker.until_ready(20) if m.type == "E"]))
    for wire in crowd:
        wire.finish()


def test_a_session_that_is_not_tracked_shows_no_earlier_query(server):
    shown = "SELECT state, query, query_start IS NULL FROM pg_stat_activity WHERE application_name = 'untracked'"
    for port in (server.port, server.pool_port):
        with Wire.login("127.0.0.1", port, application_name="untracked") as session:
            session.query("SELECT 'secret'")
            session.query("SET track_activities = off")
            session.query("SELECT 2")
            assert server.sql(shown) == [("disabled", "", True)]
            session.query("SET track_activities = on")
            wait_until(lambda: server.sql(shown)[0][1] != "'secret'", what="the query that set it, or none")
            assert "secret" not in server.sql(shown)[0][1]
        wait_until(lambda: server.sql(shown) == [], what="the session has ended")
