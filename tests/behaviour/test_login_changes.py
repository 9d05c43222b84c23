"""Whatever decides who may log in counts for the very next login.

The pool remembers what it was told about a client; a change must be seen by
whoever comes after it has been committed, from wherever it was made."""

from __future__ import annotations

import re
import threading
import time

import psycopg
import pytest

from behaviour.test_login import login, shape
from harness.wire import Closed

PARAMETERS = {"max_prepared_transactions": 4}

HBA = [
    "host all changing_scram 127.0.0.1/32 scram-sha-256",
    "host all +turned_away 127.0.0.1/32 reject",
]

SETUP = [
    "CREATE ROLE turned_away NOLOGIN",
    "CREATE ROLE changing LOGIN",
    "CREATE ROLE changing_scram LOGIN PASSWORD 'secret'",
    "CREATE DATABASE changing_db",
    "GRANT ALL ON DATABASE changing_db TO postgres",
]

# What is done, and what undoes it.
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
def test_the_next_login_sees_a_prepared_change_when_it_is_committed(server, way):
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


def test_a_password_expires_while_it_is_remembered(server):
    try:
        server.sql("ALTER ROLE changing_scram VALID UNTIL '%s'" % server.sql("SELECT now() + interval '2s'")[0][0])
        until = time.monotonic() + 2
        seen = attempt(server.pool_port, "changing_scram")
        assert not seen[-1].startswith("E")
        time.sleep(max(0, until - time.monotonic()) + 0.2)
        after = attempt(server.pool_port, "changing_scram")
        assert after[-1].startswith("E") and after == attempt(server.port, "changing_scram")
    finally:
        server.sql("ALTER ROLE changing_scram VALID UNTIL 'infinity'")


@pytest.mark.parametrize("way", ["direct", "pool"])
def test_others_who_log_in_meanwhile_leave_nothing_stale_behind(server, way):
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
    "log_connections": "pg_baton: connection authorized: user=changing ",
    "log_disconnections": "pg_baton: disconnection: .* user=changing ",
}


@pytest.mark.pool_only
@pytest.mark.parametrize("parameter", LOGGED)
def test_what_is_logged_of_clients_follows_a_reload(server, parameter):
    """As for a new connection to the server's own port: it asks the postmaster."""
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
                    if bool(re.search(LOGGED[parameter], log()[so_far:])) == on:
                        break
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
    finally:
        server.set_parameters({parameter: False})
        server.reload()
