"""Every login is like the first: the server's own.

A pool's first client of a kind is greeted by a backend, the next ones from
what that one was told.  Each must see what a direct connection sees, also when
what it was told then would no longer be said."""

from __future__ import annotations

import contextlib
import re
import subprocess

import psycopg
import pytest
from behaviour.test_login import login, shape
from harness.cluster import HOST
from harness.health import wait_until
from harness.plain import keepalives
from harness.wire import QueryFailed, Scram, Wire, message, startup, text

PARAMETERS = {"password_encryption": "md5"}

HBA = ["host for_md5 all 127.0.0.1/32 md5", "host for_scram all 127.0.0.1/32 scram-sha-256"]

LONG = "r" * 63

SETUP = [
    "CREATE DATABASE for_md5",
    "CREATE DATABASE for_warned",
    "CREATE DATABASE for_scram",
    "CREATE ROLE grp",
    "CREATE ROLE someone LOGIN",
    "CREATE ROLE idler LOGIN",
    "ALTER ROLE idler SET idle_session_timeout = '300ms'",
    "CREATE ROLE no_password LOGIN",
    "CREATE ROLE with_md5 LOGIN PASSWORD 'x'",
    "CREATE ROLE expired LOGIN PASSWORD 'x' VALID UNTIL '2001-01-01'",
    "CREATE ROLE no_more LOGIN CONNECTION LIMIT 0",
    "CREATE ROLE no_library LOGIN",
    "ALTER ROLE no_library SET session_preload_libraries = 'there_is_none'",
    f"CREATE ROLE {LONG}",
    f"GRANT {LONG} TO someone",
    "SET password_encryption = 'scram-sha-256'; CREATE ROLE by_scram LOGIN PASSWORD 'secret'",
]


def visit(port: int, user: str, database: str, statement: str = "", **options: str) -> list:
    """What a client is told at its login, and the result of a statement."""
    wire = Wire.open(HOST, port)
    messages = wire.log_in(user, database, "wrong", **options)
    seen: list = shape(messages)
    if messages[-1].type == "Z":
        seen.append(sorted(found.strings() for found in messages if found.type == "S"))
        if statement:
            try:
                seen.append(wire.query(statement))
            except QueryFailed as failure:
                seen.append(str(failure))
        wire.finish()
    wire.close()
    return seen


CASES = {
    "long_application_name": ("someone", "postgres", "SHOW application_name", {"application_name": "x" * 70}),
    "long_role": ("someone", "postgres", "SELECT current_user", {"options": f"-c role={LONG}tail"}),
    "libraries": (
        "postgres",
        "postgres",
        "SELECT count(*) FROM pg_settings WHERE name LIKE 'auto_explain.%'",
        {"options": "-c session_preload_libraries=auto_explain"},
    ),
    "keepalives": (
        "someone",
        "postgres",
        "SELECT name, setting FROM pg_settings WHERE name ~ '^tcp_' ORDER BY 1",
        {"options": "-c tcp_keepalives_idle=55 -c tcp_user_timeout=7000"},
    ),
    "no_such_library": ("postgres", "postgres", "", {"options": "-c session_preload_libraries=there_is_none"}),
    "no_such_library_of_a_role": ("no_library", "postgres", "", {}),
    "no_such_parameter_of_ours": ("someone", "postgres", "", {"options": "-c pg_baton.nothing=1"}),
    "a_parameter_of_ours": ("someone", "postgres", "", {"options": "-c pg_baton.port=1"}),
    "encoding": ("someone", "postgres", "SHOW client_encoding", {"client_encoding": "latin1"}),
    "no_such_encoding": ("someone", "postgres", "", {"client_encoding": "nothing", "work_mem": "x"}),
    "encoding_without_a_way": ("someone", "postgres", "", {"client_encoding": "MULE_INTERNAL"}),
    "encoding_without_a_way_comes_last": (
        "someone",
        "postgres",
        "",
        {"client_encoding": "MULE_INTERNAL", "work_mem": "x"},
    ),
    "limit_of_the_role_comes_before_the_database": ("no_more", "no_such_database", "", {}),
    "md5_of_nobody": ("nobody_at_all", "for_md5", "", {}),
    "md5_without_a_password": ("no_password", "for_md5", "", {}),
    "md5_of_an_expired_password": ("expired", "for_md5", "", {}),
    "md5": ("with_md5", "for_md5", "", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_each_login_is_answered_as_the_server_does(server, case):
    user, database, statement, options = CASES[case]
    direct = visit(server.port, user, database, statement, **options)
    for _ in range(3):
        assert visit(server.pool_port, user, database, statement, **options) == direct


WARNED_OF = {
    "collations": (
        "UPDATE pg_database SET datcollversion = 'another' WHERE datname = 'for_warned'",
        "UPDATE pg_database SET datcollversion = NULL WHERE datname = 'for_warned'",
    ),
    "a_setting": (
        "ALTER ROLE warned SET default_text_search_config = 'there_is_none'",
        "ALTER ROLE warned RESET default_text_search_config",
    ),
}


@pytest.mark.parametrize("what", WARNED_OF)
def test_each_client_is_warned_of_what_is_wrong(server, what):
    do, undo = WARNED_OF[what]
    server.sql("CREATE ROLE warned LOGIN")
    try:
        server.sql(do)
        direct = visit(server.port, "warned", "for_warned")
        assert any("WARNING" in str(one) for one in direct), direct
        for _ in range(3):
            assert visit(server.pool_port, "warned", "for_warned") == direct
    finally:
        server.sql(undo)
        server.sql("DROP ROLE warned")


def test_no_client_is_warned_of_what_was_put_right_while_its_backend_started(make_cluster):
    """post_auth_delay: the backend has checked its database, and sleeps before it attaches."""
    server = make_cluster(parameters={"post_auth_delay": "1s"})
    server.sql("CREATE DATABASE for_warned")
    do, undo = WARNED_OF["collations"]
    with psycopg.connect(server.direct(), autocommit=True) as admin:
        admin.execute(do)
        wire = Wire.open(HOST, server.pool_port)
        wire.send(startup({"user": "postgres", "database": "for_warned"}))
        wait_until(lambda: "a version was recorded" in server.log(), what="a backend is warned")
        admin.execute(undo)
    wire.until_ready()
    assert visit(server.pool_port, "postgres", "for_warned") == visit(server.port, "postgres", "for_warned")
    wire.close()


TAKEN_AWAY = {
    "a_role": ("GRANT grp TO someone", "REVOKE grp FROM someone", "-c role=grp"),
    "a_parameter": (
        "GRANT SET ON PARAMETER session_replication_role TO someone",
        "REVOKE SET ON PARAMETER session_replication_role FROM someone",
        "-c session_replication_role=replica",
    ),
}


@pytest.mark.parametrize("what", TAKEN_AWAY)
def test_what_was_taken_away_is_no_client_s_startup_option(server, what):
    give, take, options = TAKEN_AWAY[what]
    try:
        server.sql(give)
        direct = visit(server.port, "someone", "postgres", options=options)
        assert isinstance(direct[-1], list), direct
        for _ in range(3):
            assert visit(server.pool_port, "someone", "postgres", options=options) == direct
    finally:
        server.sql(take)
    direct = visit(server.port, "someone", "postgres", options=options)
    assert "permission denied" in direct[-1]
    for _ in range(2):
        assert visit(server.pool_port, "someone", "postgres", options=options) == direct


def test_a_role_taken_away_is_no_session_s_setting(server):
    server.sql("ALTER ROLE someone SET role = 'grp'")
    statement = "SELECT session_user, current_user"
    try:
        for take in ("GRANT grp TO someone", "REVOKE grp FROM someone"):
            server.sql(take)
            direct = visit(server.port, "someone", "postgres", statement)
            seen = [visit(server.pool_port, "someone", "postgres", statement) for _ in range(3)]
            assert seen == [direct] * 3
    finally:
        server.sql("ALTER ROLE someone RESET role")


def kernel_keepalives(server, wire: Wire) -> list[str]:
    """The keepalive timer of the server's end of a connection, without its time."""
    port = wire.sock.getsockname()[1]
    done = subprocess.run(
        ["ss", "-Htno", f"sport = :{server.pool_port} and dport = :{port}"], capture_output=True, text=True, check=True
    )
    return re.findall(r"timer:\((\w+),(\d+)(min|sec)", done.stdout)


@keepalives
@pytest.mark.pool_only
def test_keepalives_are_in_the_kernel_before_a_session_speaks(server):
    for _ in range(3):
        with Wire.login(HOST, server.pool_port, user="someone", options="-c tcp_keepalives_idle=50") as wire:
            # not while the kernel waits for the client's to acknowledge something
            wait_until(
                lambda: [unit for _, _, unit in kernel_keepalives(server, wire)] == ["sec"], what="the keepalive timer"
            )


@keepalives
@pytest.mark.pool_only
def test_a_reload_takes_back_keepalives_of_detached_sessions(make_cluster):
    server = make_cluster(parameters={"pg_baton.max_backends": 1, "tcp_keepalives_idle": "50"})

    def timers(wire: Wire) -> list[str]:
        return [unit for _, _, unit in kernel_keepalives(server, wire)]

    with contextlib.ExitStack() as stack:
        # the first one is greeted by a backend, the second by the dispatcher
        wires = [stack.enter_context(Wire.login(HOST, server.pool_port)) for _ in range(2)]
        for wire in wires:
            wait_until(lambda: timers(wire) == ["sec"], what="the keepalive timer")
        wires[0].query("SELECT 1")
        server.set_parameters({"tcp_keepalives_idle": None})
        server.reload()
        with psycopg.connect(server.pool(), autocommit=True) as other:
            show = "SHOW tcp_keepalives_idle"
            wait_until(lambda: other.execute(show).fetchone() != ("50",), what="the files are read")
        for wire in wires:
            wire.query("SELECT 1")
            wait_until(lambda: timers(wire) == ["min"], what="the kernel's own timer")


def test_a_session_that_never_speaks_ends_after_its_idle_timeout(server):
    for _ in range(3):
        with Wire.login(HOST, server.pool_port, user="idler") as wire:
            assert wire.read(20).fields()["C"] == "57P05"


CHANGES = {
    "connect": ("REVOKE CONNECT ON DATABASE for_scram FROM PUBLIC", "GRANT CONNECT ON DATABASE for_scram TO PUBLIC"),
    "nologin": ("ALTER ROLE by_scram NOLOGIN", "ALTER ROLE by_scram LOGIN"),
    "database": ("ALTER DATABASE for_scram ALLOW_CONNECTIONS false", "ALTER DATABASE for_scram ALLOW_CONNECTIONS true"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_a_client_s_first_and_last_word_counts(server, change):
    do, undo = CHANGES[change]

    def interrupted(port: int) -> list[str]:
        """The last message of the exchange comes after the change."""
        with Wire.open(HOST, port) as wire:
            wire.send(startup({"user": "by_scram", "database": "for_scram"}))
            wire.read()
            scram = Scram("secret")
            wire.send(message("p", text("SCRAM-SHA-256") + scram.first()))
            challenge = wire.read()
            server.sql(do)
            wire.send(message("p", scram.final(challenge.body[4:])))
            return shape(wire.read_until("ZE"))[-1:]

    for port in (server.port, server.pool_port):
        for _ in range(2):
            wire, messages = login(server.pool_port, "by_scram", "for_scram", "secret")
            assert messages[-1].type == "Z"
            wire.query("SELECT 1")
            wire.finish()
            wire.close()
        try:
            seen = interrupted(port)
            if port == server.port:
                direct = seen
            assert seen == direct and seen[0].startswith("E")
        finally:
            server.sql(undo)


@pytest.mark.pool_only
def test_a_name_in_a_login_makes_no_line_of_the_log(server):
    with server.new_log() as log:
        visit(server.pool_port, "x\n2001-01-01 00:00:00 UTC [1] LOG:  forged", "postgres")
        visit(server.pool_port, "someone", "y\n2001-01-01 00:00:00 UTC [1] LOG:  forged")
        wait_until(lambda: log().count("forged") >= 2, what="both are logged")
        lines = log().splitlines()
    assert not [line for line in lines if line.startswith("2001-01-01")]
