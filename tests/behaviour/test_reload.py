"""A reload reaches every session, whatever it is doing, and harms none."""

from __future__ import annotations

import psycopg
import pytest
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
def test_reload_within_a_transaction_leaves_the_session_its_values(server, name, end):
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
            (pid,) = session.execute("SELECT pg_backend_pid()").fetchone()
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
            (pid,) = session.execute("SELECT pg_backend_pid()").fetchone()
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
