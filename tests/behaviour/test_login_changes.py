"""A change of the conditions for a login counts for the very next login.

The pool remembers what it was told about a client; each login that begins after
the commit of a change must see the change, from wherever it was made."""

from __future__ import annotations

import os
import re
import signal
import threading
import time

import psycopg
import pytest
from behaviour.test_login import login, shape
from harness.debugger import needs_gdb, stopped_at
from harness.health import wait_until
from harness.processes import ITS_PROCESS
from harness.wire import Closed, LoginFailed, Wire, query

PARAMETERS = {"max_prepared_transactions": 4}

HBA = ["host all changing_scram 127.0.0.1/32 scram-sha-256", "host all +turned_away 127.0.0.1/32 reject"]

SETUP = [
    "CREATE ROLE turned_away NOLOGIN",
    "CREATE ROLE changing LOGIN",
    "CREATE ROLE limited LOGIN CONNECTION LIMIT 1",
    "CREATE ROLE changing_scram LOGIN PASSWORD 'secret'",
    "CREATE DATABASE changing_db",
    "CREATE DATABASE limited_db CONNECTION LIMIT 1",
    "GRANT ALL ON DATABASE changing_db TO postgres",
]

# Each change, and the statement that undoes it.
CHANGES = {
    "nologin": ("ALTER ROLE changing NOLOGIN", "ALTER ROLE changing LOGIN"),
    "catalog_updated": (
        "UPDATE pg_authid SET rolcanlogin = false WHERE rolname = 'changing'",
        "UPDATE pg_authid SET rolcanlogin = true WHERE rolname = 'changing'",
    ),
    "in_a_block": (
        "DO $$ BEGIN BEGIN ALTER ROLE changing NOLOGIN; EXCEPTION WHEN others THEN RAISE; END; END $$",
        "DO $$ BEGIN ALTER ROLE changing LOGIN; END $$",
    ),
    "role_dropped": ("DROP ROLE changing", "CREATE ROLE changing LOGIN"),
    "role_renamed": ("ALTER ROLE changing RENAME TO changed", "ALTER ROLE changed RENAME TO changing"),
    "role_limit": ("ALTER ROLE changing CONNECTION LIMIT 0", "ALTER ROLE changing CONNECTION LIMIT -1"),
    "connect_revoked": (
        "REVOKE CONNECT ON DATABASE changing_db FROM PUBLIC",
        "GRANT CONNECT ON DATABASE changing_db TO PUBLIC",
    ),
    "database_closed": (
        "ALTER DATABASE changing_db ALLOW_CONNECTIONS false",
        "ALTER DATABASE changing_db ALLOW_CONNECTIONS true",
    ),
    "database_limit": (
        "ALTER DATABASE changing_db CONNECTION LIMIT 0",
        "ALTER DATABASE changing_db CONNECTION LIMIT -1",
    ),
    "membership": ("GRANT turned_away TO changing", "REVOKE turned_away FROM changing"),
    "password": ("ALTER ROLE changing_scram PASSWORD 'other'", "ALTER ROLE changing_scram PASSWORD 'secret'"),
    "expiry": (
        "ALTER ROLE changing_scram VALID UNTIL '2001-01-01'",
        "ALTER ROLE changing_scram VALID UNTIL 'infinity'",
    ),
}


def attempt(port: int, user: str) -> list[str]:
    wire, messages = login(port, user, "changing_db", "secret")
    if messages[-1].type == "Z":
        wire.finish()
    wire.close()
    return shape(messages)


def connect(server, way: str):
    return psycopg.connect(server.pool() if way == "pool" else server.direct(), autocommit=True)


@pytest.mark.parametrize("way", ["direct", "pool"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_next_login_sees_a_change(server, change, way):
    do, undo = CHANGES[change]
    user = "changing_scram" if "changing_scram" in do else "changing"
    with connect(server, way) as session:
        for _ in range(3):
            before = [attempt(server.pool_port, user) for _ in range(2)]
            assert before[0] == before[1] == attempt(server.port, user)
            assert not before[0][-1].startswith("E"), before
            session.execute(do)
            after = [attempt(server.pool_port, user) for _ in range(2)]
            assert after[0] != before[0]
            assert after[0] == after[1] == attempt(server.port, user)
            session.execute(undo)
            assert attempt(server.pool_port, user) == before[0]


@pytest.mark.parametrize("way", ["direct", "pool"])
def test_the_next_login_sees_a_prepared_change_once_committed(server, way):
    with connect(server, way) as session:
        try:
            attempt(server.pool_port, "changing")
            session.execute("BEGIN")
            session.execute("ALTER ROLE changing NOLOGIN")
            session.execute("PREPARE TRANSACTION 'change'")
            assert not attempt(server.pool_port, "changing")[-1].startswith("E")
            session.execute("COMMIT PREPARED 'change'")
            assert "not permitted to log in" in attempt(server.pool_port, "changing")[-1]
        finally:
            session.execute("ALTER ROLE changing LOGIN")
    assert not attempt(server.pool_port, "changing")[-1].startswith("E")


def test_a_change_rolled_back_changes_nothing(server):
    with connect(server, "pool") as session:
        before = attempt(server.pool_port, "changing")
        session.execute("BEGIN")
        session.execute("ALTER ROLE changing NOLOGIN")
        assert attempt(server.pool_port, "changing") == before
        session.execute("ROLLBACK")
        assert attempt(server.pool_port, "changing") == before


def test_a_remembered_password_expires(server):
    try:
        while True:
            ((until,),) = server.sql("SELECT now() + interval '2s'")
            over = f"SELECT clock_timestamp() > '{until}'"
            server.sql(f"ALTER ROLE changing_scram VALID UNTIL '{until}'")
            seen = attempt(server.pool_port, "changing_scram")
            if server.sql(over) == [(False,)]:
                break  # else the login took so long that it may have been refused
        assert not seen[-1].startswith("E")
        wait_until(lambda: server.sql(over) == [(True,)], what="it has expired")
        after = attempt(server.pool_port, "changing_scram")
        assert after[-1].startswith("E") and after == attempt(server.port, "changing_scram")
    finally:
        server.sql("ALTER ROLE changing_scram VALID UNTIL 'infinity'")


@pytest.mark.parametrize("way", ["direct", "pool"])
def test_concurrent_logins_leave_nothing_stale_behind(server, way):
    """The dangerous moment is the commit itself: an answer given then must not
    be remembered beyond it."""
    over = threading.Event()

    def knock():
        while not over.is_set():
            try:
                attempt(server.pool_port, "changing")
            except (Closed, OSError):
                pass

    threads = [threading.Thread(target=knock) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        with connect(server, way) as session:
            for _ in range(150):
                session.execute("ALTER ROLE changing NOLOGIN")
                assert "not permitted to log in" in attempt(server.pool_port, "changing")[-1]
                session.execute("ALTER ROLE changing LOGIN")
                assert not attempt(server.pool_port, "changing")[-1].startswith("E")
    finally:
        over.set()
        for thread in threads:
            thread.join()
        server.sql("ALTER ROLE changing LOGIN")


def test_a_reload_of_pg_hba_counts(server):
    try:
        for lines, refused in ((["host all changing 127.0.0.1/32 reject", *HBA], True), (HBA, False)) * 2:
            assert attempt(server.pool_port, "changing")
            server.write_hba(lines)
            server.reload()
            deadline = time.monotonic() + 20
            while attempt(server.pool_port, "changing")[-1].startswith("E") != refused:
                assert time.monotonic() < deadline
                time.sleep(0.02)
    finally:
        server.write_hba(HBA)
        server.reload()


LOGGED = {
    "log_connections": "connection authorized: user=changing ",
    "log_disconnections": r"disconnection: session time: 0:00:\d\d\.\d\d\d user=changing ",
}


@pytest.mark.pool_only
@pytest.mark.parametrize("parameter", LOGGED)
def test_what_is_logged_of_clients_follows_a_reload(server, parameter):
    """As on the server's own port, a new connection has the values that the postmaster has."""
    try:
        for on in (True, False, True):
            server.set_parameters({parameter: on})
            server.reload()
            deadline = time.monotonic() + 20
            with server.new_log() as log:
                while True:
                    so_far = len(log())
                    assert attempt(server.pool_port, "changing")
                    assert attempt(server.pool_port, "changing")
                    time.sleep(0.1)  # a thread writes the messages to the log
                    if bool(re.search(LOGGED[parameter], log()[so_far:])) == on:
                        break
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
    finally:
        server.set_parameters({parameter: False})
        server.reload()


@pytest.mark.parametrize("user, database", [("limited", "changing_db"), ("changing", "limited_db")])
def test_connections_that_count_for_a_limit_are_counted_anew(server, user, database):
    """These connections come and go on the server's own port, and the pool is not told."""

    def admitted() -> bool:
        wire, messages = login(server.pool_port, user, database, None)
        if messages[-1].type == "Z":
            wire.finish()
        wire.close()
        return messages[-1].type == "Z"

    with Wire.login("127.0.0.1", server.port, user=user, database=database):
        assert not admitted() and not admitted()
    wait_until(admitted, what="the other one has gone")


def test_a_database_half_dropped_is_known_at_once(server):
    """DROP DATABASE marks the database in place before the steps that may fail."""

    def visit(port: int) -> list[str]:
        wire, messages = login(port, "changing", "half_dropped", None)
        if messages[-1].type == "Z":
            wire.finish()
        wire.close()
        return shape(messages)

    server.sql("CREATE DATABASE half_dropped")
    before = [visit(server.pool_port) for _ in range(2)]
    assert not before[-1][-1].startswith("E")
    # The pool's idle backend would be in the way.
    wait_until(
        lambda: (
            server.sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = 'half_dropped'")
            == [(0,)]
        ),
        what="nobody is in the database",
    )
    assert not visit(server.pool_port)[-1].startswith("E")
    with Wire.login("127.0.0.1", server.port) as locker, Wire.login("127.0.0.1", server.port) as dropper:
        ((pid,),) = dropper.query(ITS_PROCESS)
        locker.query("BEGIN; LOCK pg_tablespace")
        dropper.send(query("DROP DATABASE half_dropped WITH (FORCE)"))
        wait_until(
            lambda: server.sql(f"SELECT count(*) FROM pg_locks WHERE pid = {pid} AND NOT granted") == [(1,)],
            what="DROP DATABASE waits",
        )
        dropper.cancel_request()
        assert [m.fields()["C"] for m in dropper.until_ready() if m.type == "E"] == ["57014"]
        locker.query("ROLLBACK")
    after = visit(server.pool_port)
    assert "invalid database" in after[-1] and after == visit(server.port)
    server.sql("DROP DATABASE half_dropped")
    after = visit(server.pool_port)
    assert "does not exist" in after[-1] and after == visit(server.port)


@needs_gdb
@pytest.mark.pool_only
@pytest.mark.parametrize("change", ["connect_revoked", "database_closed", "nologin", "membership"])
def test_nothing_learnt_during_a_commit_outlives_it(server, change):
    """The launcher's catalog caches learn of a commit after it has become
    visible; an answer given between must not be kept."""
    do, undo = CHANGES[change]
    with Wire.login("127.0.0.1", server.port) as session:
        try:
            ((pid,),) = session.query(ITS_PROCESS)
            before = attempt(server.pool_port, "changing")
            with stopped_at(int(pid), "AtEOXact_Inval") as stop:
                session.send(query(do))
                stop.wait()
                for _ in range(3):
                    attempt(server.pool_port, "changing")
            session.until_ready()
            after = [attempt(server.pool_port, "changing") for _ in range(2)]
            assert after[0] == after[1] == attempt(server.port, "changing") != before
        finally:
            server.sql(undo)


@needs_gdb
@pytest.mark.pool_only
def test_a_commit_counts_if_its_process_dies_before_it_can_tell(make_cluster):
    cluster = make_cluster()
    cluster.expect_in_log("was terminated by signal 9", "terminating any other active server processes")
    for statement in SETUP:
        cluster.sql(statement)
    assert not attempt(cluster.pool_port, "changing")[-1].startswith("E")
    session = Wire.login("127.0.0.1", cluster.port)
    ((pid,),) = session.query(ITS_PROCESS)
    session.query("SET synchronous_commit = on")
    start = len(cluster.log())
    with stopped_at(int(pid), "AtEOXact_Inval") as stop:
        session.send(query("ALTER ROLE changing NOLOGIN"))
        stop.wait()
        os.kill(int(pid), signal.SIGKILL)
    session.close()
    # The postmaster has to notice the crash, and to restart the server.
    cluster.wait_for_log("database system is ready to accept connections", 60, start)
    cluster.wait_pool_ready()
    after = attempt(cluster.pool_port, "changing")
    assert "not permitted to log in" in after[-1] and after == attempt(cluster.port, "changing")


@pytest.mark.pool_only
@pytest.mark.parametrize(
    "first, second",
    [
        ({"user": "limited", "database": "postgres"}, {"user": "limited", "database": "changing_db"}),
        ({"user": "changing", "database": "limited_db"}, {"user": "limited", "database": "limited_db"}),
    ],
    ids=["role", "database"],
)
def test_a_connection_limit_counts_sessions_not_idle_backends(server, first, second):
    """Backends of another pool stay idle, and the server counts them."""
    server.sql("GRANT CONNECT ON DATABASE changing_db, limited_db TO PUBLIC")

    def gets_in(options: dict[str, str]) -> bool:
        # The end of a session is noticed a moment later, as in stock.
        try:
            with Wire.login("127.0.0.1", server.pool_port, **options) as session:
                return session.query("SELECT 1") == [["1"]]
        except LoginFailed:
            return False

    for options in (first, second, first):
        wait_until(lambda: gets_in(options), what=f"{options} gets in")
