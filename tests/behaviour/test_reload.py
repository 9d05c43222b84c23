"""A reload reaches every session, whatever it is doing, and harms none."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import psycopg
import pytest
from harness.health import wait_until
from harness.processes import ITS_PROCESS
from harness.wire import Message, Wire, bind, execute, parse, query, sync, terminate
from parameter_world import SETUP  # noqa: F401 (the fixture reads it)

VALUES = {
    "TimeZone": ("Asia/Tokyo", "Europe/Berlin"),
    "search_path": ("pg_catalog, public", "nowhere"),
    "DateStyle": ("German", "SQL, DMY"),
}

ENDS = {
    "commit": ["COMMIT"],
    "rollback": ["ROLLBACK"],
    "savepoint": ["ROLLBACK TO s", "SET LOCAL {name} TO '{other}'", "RELEASE s", "COMMIT"],
}


def reload_seen_by(server, pid: int) -> None:
    """Reloads, and waits until one backend has read the files.  It says so in
    the log: they have a mistake, and its log_min_messages is debug3."""
    start = len(server.log())
    server.set_parameters({"vacuum_cost_limit": "mistaken"})
    server.reload()
    server.wait_for_log(rf'\[{pid}\].*invalid value for parameter "vacuum_cost_limit"', start=start)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", VALUES)
def test_reload_within_a_transaction_keeps_the_session_s_values(server, name, end):
    stored, other = VALUES[name]
    try:
        server.sql("ALTER ROLE bob SET log_min_messages = 'debug3'")
        with psycopg.connect(server.pool(user="bob"), autocommit=True) as session:
            (before,) = session.execute(f"SHOW {name}").fetchone()
            # Its next backend has a setting of its role that the session has not.
            server.sql(f"ALTER ROLE bob SET {name} = {stored if name == 'search_path' else repr(stored)}")
            with psycopg.connect(server.pool(user="bob"), autocommit=True) as new:
                assert new.execute(f"SHOW {name}").fetchone() == (stored.replace("German", "German, DMY"),)

            session.execute("BEGIN")
            (pid,) = session.execute(ITS_PROCESS).fetchone()
            session.execute("SAVEPOINT s")
            session.execute(f"SET LOCAL {name} TO '{other}'")
            reload_seen_by(server, pid)
            assert session.execute(f"SHOW {name}").fetchone() == (other.strip('"'),)
            for statement in ENDS[end]:
                session.execute(statement.format(name=name, other=other))
            for _ in range(3):
                assert session.execute(f"SHOW {name}").fetchone() == (before,)
            session.execute(f"SET {name} TO '{other}'")
            session.execute(f"RESET {name}")
            assert session.execute(f"SHOW {name}").fetchone() == (before,)
    finally:
        server.set_parameters({"vacuum_cost_limit": None})
        server.reload()
        server.sql("ALTER ROLE bob RESET ALL")


def test_reload_within_a_transaction_reaches_the_session(server):
    try:
        server.sql("ALTER ROLE bob SET log_min_messages = 'debug3'")
        with psycopg.connect(server.pool(user="bob", options="-c work_mem=3MB"), autocommit=True) as session:
            session.execute("BEGIN")
            (pid,) = session.execute(ITS_PROCESS).fetchone()
            server.set_parameters({"random_page_cost": 3.5, "work_mem": "9MB"})
            reload_seen_by(server, pid)
            assert session.execute("SHOW random_page_cost").fetchone() == ("3.5",)
            assert session.execute("SHOW work_mem").fetchone() == ("3MB",)
            session.execute("COMMIT")
            for _ in range(3):
                assert session.execute("SHOW random_page_cost").fetchone() == ("3.5",)
                assert session.execute("SHOW work_mem").fetchone() == ("3MB",)
    finally:
        server.set_parameters({"random_page_cost": None, "work_mem": None, "vacuum_cost_limit": None})
        server.reload()
        server.sql("ALTER ROLE bob RESET ALL")


@pytest.mark.parametrize("forced", [False, True], ids=["normal", "forced"])
def test_config_files_count_only_after_the_server_has_read_them(make_cluster, forced):
    """What stands in a file is nothing to a new backend until a reload. (On a
    server of its own: elsewhere some backend may not have come to the last one.)"""
    server = make_cluster(parameters={"pg_baton.max_backends": 12, "pg_baton.force_migration": forced})
    server.sql("CREATE ROLE bob LOGIN")
    with psycopg.connect(server.pool(user="bob"), autocommit=True) as old:
        (load_time,) = server.sql("SELECT pg_conf_load_time()")
        before = old.execute("SHOW maintenance_work_mem").fetchone()
        server.set_parameters({"work_mem": "77MB", "maintenance_work_mem": "88MB"})
        try:
            # The backends to come have a setting that the session has not.
            server.sql("ALTER ROLE bob SET maintenance_work_mem = '9MB'")
            for _ in range(3):
                with psycopg.connect(server.pool(user="bob"), autocommit=True) as new:
                    assert new.execute("SHOW work_mem").fetchone() == ("4MB",)
                    assert new.execute("SHOW maintenance_work_mem").fetchone() == ("9MB",)
                    assert new.execute("SELECT pg_conf_load_time()").fetchone() == load_time
                assert old.execute("SHOW work_mem").fetchone() == ("4MB",)
                assert old.execute("SHOW maintenance_work_mem").fetchone() == before
        finally:
            server.set_parameters({"work_mem": None, "maintenance_work_mem": None})
            server.sql("ALTER ROLE bob RESET ALL")


def test_reload_reaches_old_sessions_despite_a_new_role_setting(server):
    """The session logged in before the setting; the files are what it has."""
    with psycopg.connect(server.pool(user="bob"), autocommit=True) as old:
        try:
            server.sql("ALTER ROLE bob SET maintenance_work_mem = '9MB'")
            with psycopg.connect(server.pool(user="bob"), autocommit=True) as new:
                assert new.execute("SHOW maintenance_work_mem").fetchone() == ("9MB",)
            server.set_parameters({"maintenance_work_mem": "88MB"})
            server.reload()
            wait_until(
                lambda: old.execute("SHOW maintenance_work_mem").fetchone() == ("88MB",), what="the files are read"
            )
            for _ in range(3):
                assert old.execute("SHOW maintenance_work_mem").fetchone() == ("88MB",)
                with psycopg.connect(server.pool(user="bob"), autocommit=True) as new:
                    assert new.execute("SHOW maintenance_work_mem").fetchone() == ("9MB",)
        finally:
            server.set_parameters({"maintenance_work_mem": None})
            server.reload()
            server.sql("ALTER ROLE bob RESET ALL")


ENCODING = "SELECT chr(233), setting, reset_val, source FROM pg_settings WHERE name = 'client_encoding'"


def encoding_of_a_new_client(port: int) -> str:
    with Wire.login("127.0.0.1", port, user="bob") as client:
        return client.query("SHOW client_encoding")[0][0]


@pytest.mark.parametrize("where", ["role", "database", "files"])
def test_a_session_keeps_the_client_encoding_it_began_with(server, where):
    """It interprets what the server sends by it. New clients begin with the new one."""
    sessions = [Wire.login("127.0.0.1", port, user="bob") for port in (server.port, server.pool_port)]

    def answers(statement: str) -> list[list[Message]]:
        return [session.ask(query(statement)) for session in sessions]

    before = sessions[0].ask(query(ENCODING))
    try:
        if where == "files":
            server.set_parameters({"client_encoding": "LATIN2"})
            server.reload()
        else:
            server.sql(f"ALTER {where} {'bob' if where == 'role' else 'postgres'} SET client_encoding = 'LATIN2'")
        for port in (server.port, server.pool_port):
            wait_until(lambda port=port: encoding_of_a_new_client(port) == "LATIN2", what="new clients have it")
        for _ in range(4):
            direct, pooled = answers(ENCODING)
            assert direct == pooled == before
        for statement in ("SET client_encoding = 'LATIN1'", ENCODING, "RESET client_encoding", ENCODING, ENCODING):
            direct, pooled = answers(statement)
            assert direct == pooled
        assert pooled == before
    finally:
        server.set_parameters({"client_encoding": None})
        server.reload()
        server.sql("ALTER ROLE bob RESET ALL")
        server.sql("ALTER DATABASE postgres RESET client_encoding")
        for session in sessions:
            session.finish()
        for port in (server.port, server.pool_port):
            wait_until(lambda port=port: encoding_of_a_new_client(port) == "UTF8", what="the old one is back")


@pytest.mark.pool_only
@pytest.mark.parametrize("end", ["finish", "close", "reset", "commit", "statement"])
def test_reload_seen_by_a_leaving_session_counts_for_the_next(server, end):
    """Its startup option hid the new value from the server's own reading."""
    try:
        session = Wire.login("127.0.0.1", server.pool_port, user="bob", work_mem="1MB")
        try:
            session.ask(query("BEGIN"))
            ((pid,),) = session.query(ITS_PROCESS)
            server.set_parameters({"work_mem": "8MB", "random_page_cost": 3.5})
            server.reload()
            wait_until(lambda: session.query("SHOW random_page_cost") == [["3.5"]], 20, "the session has seen it")
            assert session.query("SHOW work_mem") == [["1MB"]]
            if end == "commit":
                session.send(query("COMMIT"), terminate())
                session.until_closed()
            elif end == "statement":
                session.send(parse("COMMIT"), bind(), execute(), sync(), terminate())
                session.until_closed()
            else:
                getattr(session, end)()
        finally:
            session.close()
        # As many at once as it takes for one of them to come to that backend.
        seen = {}
        with contextlib.ExitStack() as stack:
            while pid not in seen:
                assert len(seen) < 12  # max_backends of these tests
                new = stack.enter_context(Wire.login("127.0.0.1", server.pool_port, user="bob"))
                new.query("BEGIN")
                ((value, its_pid),) = new.query(f"SELECT current_setting('work_mem'), ({ITS_PROCESS})")
                seen[its_pid] = value
        assert set(seen.values()) == {"8MB"}, (pid, seen)
    finally:
        server.set_parameters({"work_mem": None, "random_page_cost": None})
        server.reload()


MISTAKES = {
    # what is set, and what a backend that reads it says
    "line": ({"maintenance_work_mem": "99MB", "mistaken =": "x"}, "syntax error in file"),
    "name": (
        {"maintenance_work_mem": "99MB", "there_is_none": "x"},
        'unrecognized configuration parameter "there_is_none"',
    ),
    "value": ({"maintenance_work_mem": "mistaken"}, 'invalid value for parameter "maintenance_work_mem"'),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_reload_of_mistaken_files_leaves_the_values_that_were(server, mistake):
    """Also those that a setting of its role would hide from the session."""
    question = "SELECT setting, source FROM pg_settings WHERE name = 'maintenance_work_mem'"
    parameters, complaint = MISTAKES[mistake]
    try:
        server.set_parameters({"maintenance_work_mem": "88MB", "log_min_messages": "debug3"})
        server.reload()
        wait_until(lambda: server.sql(question) == [(str(88 * 1024), "configuration file")], 20, "the files are read")
        with Wire.login("127.0.0.1", server.pool_port, user="bob") as old:
            wait_until(lambda: old.query(question)[0][0] == str(88 * 1024), 20, "the files are read here, too")
            server.sql("ALTER ROLE bob SET maintenance_work_mem = '9MB'")
            pids = set()
            for _ in range(4):
                with Wire.login("127.0.0.1", server.pool_port, user="bob") as new:
                    assert new.query(question) == [[str(9 * 1024), "user"]]
                assert old.query(question) == [[str(88 * 1024), "configuration file"]]
                pids.add(old.query(ITS_PROCESS)[0][0])
            start = len(server.log())
            server.set_parameters(parameters)
            server.reload()
            for pid in (pid for pid in pids if Path(f"/proc/{pid}").exists()):
                complained = re.compile(rf"\[{pid}\].*{complaint}")
                # a backend of stock reads them when it is asked something
                wait_until(
                    lambda: old.query("SELECT 1") and complained.search(server.log()[start:]), 20, "they have been read"
                )
            for _ in range(4):
                assert old.query(question) == [[str(88 * 1024), "configuration file"]]
                with Wire.login("127.0.0.1", server.pool_port, user="bob") as new:
                    assert new.query(question) == [[str(9 * 1024), "user"]]
            # Gone from the files, it is what was compiled in.
            server.set_parameters({name: None for name in parameters})
            server.reload()
            wait_until(lambda: old.query(question) == [[str(64 * 1024), "default"]], 20, "the files are right again")
    finally:
        server.set_parameters({name: None for name in ("maintenance_work_mem", "log_min_messages", *parameters)})
        server.reload()
        server.sql("ALTER ROLE bob RESET ALL")
