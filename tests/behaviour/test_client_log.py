"""What the dispatcher logs is in the server's own log, with the fields and texts of a direct connection."""

from __future__ import annotations

import csv
import json
import re

import pytest
from harness.health import wait_until
from harness.wire import Wire, query, startup

pytestmark = pytest.mark.pool_only

LOGGED = {
    "logging_collector": "on",
    "log_destination": "stderr,csvlog,jsonlog",
    "log_directory": "written",
    "log_filename": "server.log",
    "log_rotation_age": 0,
    "log_line_prefix": "%m [%p] %u@%d %r %a %b %e ",
    "log_timezone": "Asia/Tokyo",
    "log_connections": True,
    "log_disconnections": True,
}

# pg_hba.conf has them on lines 1 to 6.
HBA = [
    "local all all trust",
    "host all by_scram,without,locked,limited all scram-sha-256",
    "host all by_md5 all md5",
    "host all by_password,nobody all password",
    "host all banned all reject",
    "host all postgres all trust",
]

SETUP = """
CREATE ROLE by_scram LOGIN PASSWORD 'right';
CREATE ROLE without LOGIN;
CREATE ROLE locked NOLOGIN PASSWORD 'right';
CREATE ROLE limited LOGIN PASSWORD 'right' CONNECTION LIMIT 0;
CREATE ROLE by_password LOGIN PASSWORD 'right';
SET password_encryption = 'md5';
CREATE ROLE by_md5 LOGIN PASSWORD 'right';
CREATE EXTENSION pg_baton
"""

WAITING = "SELECT count(*)::int FROM pg_baton_sessions WHERE state = 'waiting'"

# How each login ends: the words of its last line.
LOGINS = {
    "in": ("by_scram", "postgres", "right", "disconnection: session time"),
    "wrong scram": ("by_scram", "postgres", "wrong", "authentication failed"),
    "wrong md5": ("by_md5", "postgres", "wrong", "authentication failed"),
    "wrong password": ("by_password", "postgres", "wrong", "authentication failed"),
    "no password": ("without", "postgres", "right", "authentication failed"),
    "no role": ("nobody", "postgres", "right", "authentication failed"),
    "banned": ("banned", "postgres", "right", "pg_hba.conf rejects"),
    "no line": ("stranger", "postgres", "right", "no pg_hba.conf entry"),
    "no login": ("locked", "postgres", "right", "not permitted to log in"),
    "no database": ("by_scram", "nowhere", "right", 'database "nowhere" does not exist'),
    "limited": ("limited", "postgres", "right", "too many connections for role"),
}


@pytest.fixture(scope="module")
def server(run):
    """A server that logs in all three forms."""
    cluster = run.cluster("client-log", parameters=LOGGED).start()
    cluster.sql(SETUP)
    cluster.write_hba(HBA, replaces=True)
    cluster.reload()
    wait_until(lambda: "log writer" in "".join(p.command for p in cluster.processes()), what="the log writer")
    yield cluster
    cluster.finish()


def text(cluster, ending: str) -> str:
    file = cluster.data / "written" / f"server.{ending}"
    return file.read_text(errors="replace") if file.exists() else ""


def csv_rows(cluster, since: int = 0) -> list[list[str]]:
    return list(csv.reader(text(cluster, "csv")[since:].splitlines(keepends=True)))


def try_login(cluster, port: int, user: str, database: str, password: str) -> int:
    """Returns the client's port."""
    with Wire.open("127.0.0.1", port) as wire:
        number = wire.sock.getsockname()[1]
        messages = wire.log_in(user, database, password, application_name="one")
        if messages[-1].type == "Z":
            wire.finish()
        return number


# The columns of csvlog, by their place: their values are the connection's.
VARYING = {"log_time": 0, "process_id": 3, "connection_from": 4, "session_id": 5, "session_line_num": 6,
           "session_start_time": 8, "virtual_transaction_id": 9}  # fmt: skip
COMMAND_TAG = 7


def plain(words: str, port: int) -> str:
    # The server has no backend type yet when it writes its first line, up to 17.
    words = words.replace("not initialized", "client backend")
    return re.sub(r"time: [\d:.]+", "", words).replace(str(port), "PORT")


def lines_of(cluster, port: int, last: str, since: tuple[int, int, int]) -> tuple[list, list, list]:
    """The lines of the client with this port: of the csvlog, the jsonlog, and the text."""
    mine = f"127.0.0.1:{port}"

    def rows() -> list[list[str]]:
        return [row for row in csv_rows(cluster, since[0]) if len(row) > 20 and row[4] == mine]

    wait_until(lambda: any(last in row[13] for row in rows()), 20, f"a line with {last!r}")
    found = []
    for row in rows():
        assert row[0].endswith(" JST") and row[8].endswith(" JST"), row
        kept = [value for place, value in enumerate(row) if place not in {*VARYING.values(), COMMAND_TAG}]
        found.append([plain(value, port) for value in kept])

    def objects() -> list[dict]:
        records = [json.loads(line) for line in text(cluster, "json")[since[1] :].splitlines()]
        return [record for record in records if record.get("remote_port") == port]

    wait_until(lambda: any(last in record["message"] for record in objects()), 20, f"{last!r} in the jsonlog")
    varying = {"timestamp", "pid", "remote_port", "session_id", "line_num", "session_start", "vxid", "txid", "ps"}
    kept = [
        {name: plain(value, port) if isinstance(value, str) else value for name, value in record.items()
         if name not in varying}
        for record in objects()
    ]  # fmt: skip
    wait_until(lambda: re.search(rf"127\.0\.0\.1\({port}\).*{re.escape(last)}", text(cluster, "log")), 20, last)
    stderr = re.findall(
        rf"(?m)^\S+ \S+ JST \[\d+\] (.*127\.0\.0\.1\({port}\).*(?:\n.*(?:DETAIL|HINT): .*(?:\n\t.*)*)*)",
        text(cluster, "log")[since[2] :],
    )
    return found, kept, [re.sub(r"(?m)^\S+ \S+ JST \[\d+\] ", "", plain(line, port)) for line in stderr]


@pytest.mark.parametrize("case", LOGINS)
def test_a_login_has_the_lines_of_a_direct_one(server, case):
    """In all three forms of the log, with the same fields; the process ID differs."""
    user, database, password, last = LOGINS[case]
    found = []
    for port in (server.port, server.pool_port):
        since = tuple(len(text(server, ending)) for ending in ("csv", "json", "log"))
        number = try_login(server, port, user, database, password)
        found.append(lines_of(server, number, last, since))
    direct, pool = found
    for form, (expected, seen) in enumerate(zip(direct, pool, strict=True)):
        assert seen == expected, ("csvlog", "jsonlog", "stderr")[form]
        assert len(seen) >= 2


def test_a_session_s_lines_have_its_process_id_in_sql(server):
    with Wire.login("127.0.0.1", server.pool_port, application_name="known") as wire:
        pid, number = wire.backend_pid, wire.sock.getsockname()[1]
        start = server.sql(f"SELECT to_hex(trunc(extract(epoch FROM backend_start))::int) FROM pg_stat_activity"
                           f" WHERE pid = {pid}")  # fmt: skip
        wire.finish()
    rows = []

    def is_there() -> bool:
        rows[:] = [row for row in csv_rows(server) if len(row) > 20 and row[4] == f"127.0.0.1:{number}"]
        return any("disconnection" in row[13] for row in rows)

    wait_until(is_there, 20, "the disconnection")
    ((began,),) = start
    for row in rows:
        if "connection authorized" in row[13] or "disconnection" in row[13]:
            assert row[3] == str(pid)
            assert row[5] == f"{began}.{pid:x}"
    (end,) = [row for row in rows if "disconnection" in row[13]]
    assert end[22] == "known"


def test_a_name_begins_no_line_of_its_own(server):
    """Nor with bytes that are no text in any encoding."""
    name = b"x\n2001-01-01 00:00:00.000 JST [1] forged\xff\xfe%s%n"
    before = len(text(server, "csv"))
    with Wire.open("127.0.0.1", server.pool_port) as wire:
        wire.send(startup({"user": name, "database": "postgres"}))
        assert wire.until_closed(20)[-1].type == "E"
    wait_until(lambda: "forged" in text(server, "csv")[before:], 20, "its line")
    wait_until(lambda: "forged" in text(server, "log"), 20, "its line")
    for line in text(server, "log").splitlines():
        assert not line.startswith("2001-"), line
    rows = [row for row in csv_rows(server, before) if len(row) > 20 and "forged" in row[13]]
    assert len(rows) == 1 and rows[0][11] == "FATAL" and "\n" not in rows[0][1]


def test_the_dispatcher_s_own_lines_are_in_all_logs(server):
    before = len(text(server, "csv"))
    server.reload()
    wait_until(lambda: "pg_baton: parameters reloaded" in text(server, "csv")[before:], 20, "the csvlog")
    (dispatcher,) = server.dispatcher_pids()
    row = [row for row in csv_rows(server, before) if "parameters reloaded" in row[13]][0]
    assert row[3] == str(dispatcher) and row[11] == "LOG" and row[23] == "pg_baton dispatcher"
    wait_until(lambda: "pg_baton: parameters reloaded" in text(server, "json"), 20, "the jsonlog")


def test_log_min_messages_fatal_leaves_refusals_alone(server):
    server.set_parameters({"log_min_messages": "fatal"})
    server.reload()
    try:
        wait_until(lambda: server.sql("SHOW log_min_messages") == [("fatal",)], what="a reload")

        def is_silent() -> bool:
            before = len(text(server, "csv"))
            number = try_login(server, server.pool_port, "banned", "postgres", "right")
            lines = []

            def is_there() -> bool:
                rows = csv_rows(server, before)
                lines[:] = [row for row in rows if len(row) > 20 and row[4] == f"127.0.0.1:{number}"]
                return any("rejects" in row[13] for row in lines)

            wait_until(is_there, 20, "the refusal")
            return {row[11] for row in lines} == {"FATAL"}

        wait_until(is_silent, 20, "no other line is written")
    finally:
        server.set_parameters({"log_min_messages": "warning"})
        server.reload()


def test_long_waits_and_long_held_backends_are_logged(make_cluster):
    """As lines of the session, with the cause, from the threshold on; -1 logs none."""
    cluster = make_cluster(
        parameters={"pg_baton.max_backends": 1, "pg_baton.max_extra_backends": 0, "log_line_prefix": "%m [%p] %u %a "}
    )
    said = r"{name} LOG:  pg_baton: session {what} for \d+\.\d\d\d ms: {why}"
    waited = said.format(name="waiter", what="waited", why="ready queue")
    kept = said.format(name="keeper", what="has kept its backend", why="listen")

    def wait_and_keep() -> None:
        with (
            Wire.login("127.0.0.1", cluster.pool_port, application_name="holder") as holder,
            Wire.login("127.0.0.1", cluster.pool_port, application_name="waiter") as waiter,
        ):
            waiter.query("SELECT 1")
            holder.query("BEGIN")
            waiter.send(query("SELECT 2"))
            wait_until(lambda: cluster.sql(WAITING) == [(1,)], what="it waits")
            holder.query("COMMIT")
            assert waiter.until_ready(20)[-1].type == "Z"
        with Wire.login("127.0.0.1", cluster.pool_port, application_name="keeper") as keeper:
            keeper.query("LISTEN anything")
            keeper.query("SELECT 1")
            keeper.query("SELECT 1")
            keeper.query("UNLISTEN *")
        # its backend has seen that it keeps it no longer
        wait_until(lambda: cluster.sql("SELECT count(*) FROM pg_baton_sessions") == [(0,)], what="all have left")

    cluster.sql("CREATE EXTENSION pg_baton")
    wait_and_keep()
    cluster.set_parameters({"pg_baton.log_min_wait": "0", "pg_baton.log_min_pin": "0"})
    cluster.reload()
    wait_until(lambda: cluster.sql("SHOW pg_baton.log_min_pin") == [("0",)], what="a reload")
    assert not re.findall(waited, cluster.log()) and not re.findall(kept, cluster.log())
    wait_and_keep()
    cluster.wait_for_log(waited)
    cluster.wait_for_log(kept)
    assert len(re.findall(kept, cluster.log())) == 1
    cluster.set_parameters({"pg_baton.log_min_wait": "1h", "pg_baton.log_min_pin": "1h"})
    cluster.reload()
    wait_until(lambda: cluster.sql("SHOW pg_baton.log_min_pin") == [("1h",)], what="a reload")
    start = len(cluster.log())
    wait_and_keep()
    assert not re.findall(f"{waited}|{kept}", cluster.log()[start:])
