"""The server's log tells sessions apart, whichever process has written a line."""

from __future__ import annotations

import csv
import time

import pytest
from harness.health import wait_until
from harness.wire import Wire, query

PID_MAX_LIMIT = 4_194_304

# As PostgreSQL's documentation has it for %c.
SESSION_ID = """
SELECT to_hex(trunc(EXTRACT(EPOCH FROM backend_start))::integer) || '.' || to_hex(pid), backend_start
FROM pg_stat_activity WHERE pid = {pid}
"""

pytestmark = pytest.mark.pool_only


def log_in_turns(server) -> list[tuple[Wire, str]]:
    """Three sessions that take turns on two backends; each says its name in what it asks.

    They start in different seconds, so that one's start is not taken for another's.
    """
    wires = []
    for name in ("first", "second", "third"):
        wires.append((Wire.login("127.0.0.1", server.pool_port, application_name=name), name))
        time.sleep(1.0)
    for turn in range(6):
        for wire, name in wires:
            wire.query(f"SELECT 'of {name}', {turn}")
            wire.ask(query(f"SELECT 'of {name}', {turn} / 0"))
            wire.ask(query(f"DO $$BEGIN RAISE WARNING 'of {name}'; END$$"))
    return wires


def test_the_log_line_prefix_shows_the_session_s_id_and_start(make_cluster):
    server = make_cluster(
        parameters={
            "pg_baton.max_backends": 2,
            "log_statement": "all",
            "log_line_prefix": "<%p|%c|%s|%-30c|%30c|%%c> ",
            "log_timezone": "UTC",
        }
    )
    wires = log_in_turns(server)
    processes = set()
    for wire, name in wires:
        ((identity, start),) = server.sql(SESSION_ID.format(pid=wire.backend_pid))
        lines = [line for line in server.log().splitlines() if f"of {name}" in line and "'of" in line]
        assert len(lines) >= 24
        for line in lines:
            process, shown, began, left, right, literal = line.split("> ")[0][1:].split("|")
            processes.add(int(process))
            assert (shown, left, right, literal) == (identity, identity.ljust(30), identity.rjust(30), "%c"), line
            assert began == start.strftime("%Y-%m-%d %H:%M:%S UTC"), line
    assert max(processes) <= PID_MAX_LIMIT, "%p is the process's"
    with Wire.login("127.0.0.1", server.port) as direct:
        direct.query("SELECT 'of a direct session'")
        (line,) = [line for line in server.log().splitlines() if "of a direct" in line]
        assert line.split("|")[1].endswith(f".{direct.backend_pid:x}")
    for wire, _ in wires:
        assert wire.query("SHOW log_line_prefix") == [["<%p|%c|%s|%-30c|%30c|%%c> "]]
        wire.finish()


def test_a_client_hears_once_of_what_is_logged_with_its_id(make_cluster):
    server = make_cluster(
        parameters={"log_line_prefix": "%c ", "log_min_messages": "notice", "client_min_messages": "notice"}
    )
    with Wire.login("127.0.0.1", server.pool_port) as wire:
        found = wire.ask(query("DO $$BEGIN RAISE NOTICE 'once'; RAISE EXCEPTION 'and out'; END$$"))
        assert [m.fields()["M"] for m in found if m.type in "NE"] == ["once", "and out"]
        assert server.log().count("NOTICE:  once") == 1
        assert server.log().count("ERROR:  and out") == 1


def test_the_csv_log_has_the_session_s_start_and_client(make_cluster):
    """Its session_id is made of the session's start and the process's number."""
    server = make_cluster(
        parameters={
            "pg_baton.max_backends": 2,
            "log_statement": "all",
            "logging_collector": "on",
            "log_destination": "csvlog",
            "log_directory": "written",
            "log_filename": "server.log",
            "log_timezone": "UTC",
        }
    )
    wires = log_in_turns(server)
    file = server.data / "written" / "server.csv"
    wait_until(lambda: file.exists() and file.read_text().count("of third") >= 24, what="all is written")
    with open(file) as opened:
        rows = list(csv.reader(opened))
    for wire, name in wires:
        ((identity, start),) = server.sql(SESSION_ID.format(pid=wire.backend_pid))
        own = [row for row in rows if f"of {name}" in row[13] or f"of {name}" in row[19]]
        assert len(own) >= 24
        for row in own:
            assert row[5].split(".")[0] == identity.split(".")[0]
            assert row[8] == start.strftime("%Y-%m-%d %H:%M:%S UTC")
            assert row[4] == f"127.0.0.1:{wire.sock.getsockname()[1]}"
            assert int(row[3]) <= PID_MAX_LIMIT
        wire.finish()
