"""The identity that the server shows of a session is the session's own."""

from __future__ import annotations

import os
import socket
import time

import psycopg
import pytest
from harness.health import wait_until
from harness.wire import Wire, query

SETUP = ["CREATE ROLE eve LOGIN", "CREATE TABLE seen (a int)"]

ACTIVITY = (
    "SELECT datname, usename, application_name, host(client_addr), client_port, backend_type, backend_start"
    " FROM pg_stat_activity WHERE pid = pg_backend_pid()"
)


def local_port(session: psycopg.Connection) -> int:
    with socket.socket(fileno=os.dup(session.fileno())) as sock:
        return sock.getsockname()[1]


def test_activity_shows_the_session_s_client_and_name(server):
    sessions = [
        psycopg.connect(server.pool(user=user, application_name=f"app {n}"), autocommit=True)
        for n, user in enumerate(["postgres", "eve", "postgres", "eve", "postgres"])
    ]
    try:
        starts = {}
        for _ in range(4):
            for n, session in enumerate(sessions):
                row = session.execute(ACTIVITY).fetchone()
                assert row[:6] == (
                    "postgres",
                    session.info.user,
                    f"app {n}",
                    "127.0.0.1",
                    local_port(session),
                    "client backend",
                )
                assert starts.setdefault(n, row[6]) == row[6], "backend_start moved"
        sessions[0].execute("SET application_name = 'renamed'")
        assert sessions[0].execute(ACTIVITY).fetchone()[2] == "renamed"
        assert sessions[2].execute(ACTIVITY).fetchone()[2] == "app 2"
    finally:
        for session in sessions:
            session.close()


def test_activity_of_a_unix_socket_client_has_no_address(server):
    with (
        psycopg.connect(server.pool(host=str(server.home)), autocommit=True) as unix,
        psycopg.connect(server.pool(), autocommit=True) as tcp,
    ):
        for _ in range(4):
            assert unix.execute(
                "SELECT client_addr, client_port, inet_client_addr(), inet_server_addr() FROM pg_stat_activity"
                " WHERE pid = pg_backend_pid()"
            ).fetchone() == (None, -1, None, None)
            assert tcp.execute("SELECT host(inet_client_addr()), inet_client_port()").fetchone() == (
                "127.0.0.1",
                local_port(tcp),
            )
            assert tcp.execute("SELECT host(inet_server_addr()), inet_server_port()").fetchone() == (
                "127.0.0.1",
                server.pool_port,
            )


def test_the_log_names_the_session_s_client(server):
    with (
        server.new_log() as log,
        Wire.login("127.0.0.1", server.pool_port, application_name="logged_one") as one,
        Wire.login("127.0.0.1", server.pool_port, user="eve", application_name="logged_two") as two,
    ):
        ports = [wire.sock.getsockname()[1] for wire in (one, two)]
        for turn in range(3):
            one.ask(query(f"SELECT 'one{turn}'::int"))
            two.ask(query(f"SELECT 'two{turn}'::int"))
        for turn in range(3):
            for word, name, port, user in (
                ("one", "logged_one", ports[0], "postgres"),
                ("two", "logged_two", ports[1], "eve"),
            ):
                wanted = f'[{name}] [127.0.0.1({port})] {user}@postgres ERROR:  invalid input syntax for type integer: "{word}{turn}"'
                wait_until(lambda: wanted in log(), what=f"the log has {wanted}")


def test_idle_in_transaction_is_shown(server):
    with Wire.login("127.0.0.1", server.pool_port, application_name="in_tx") as session:
        session.query("BEGIN")
        session.query("SELECT 'last words'")
        shown = "SELECT state, query FROM pg_stat_activity WHERE application_name = 'in_tx'"
        wait_until(
            lambda: server.sql(shown) == [("idle in transaction", "SELECT 'last words'")],
            what="its last words are shown",
        )
        session.query("ROLLBACK")


def test_terminated_session_gets_the_server_s_word(server):
    with Wire.login("127.0.0.1", server.pool_port, application_name="doomed") as session:
        session.query("BEGIN")
        server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'doomed'")
        found = session.until_closed(20)
        assert [(m.fields()["S"], m.fields()["C"]) for m in found if m.type == "E"] == [("FATAL", "57P01")]


def test_session_statistics_reach_the_tables(server):
    with psycopg.connect(server.pool(), autocommit=True) as session:
        for n in range(7):
            session.execute("INSERT INTO seen VALUES (%s)", (n,))
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        rows = server.sql("SELECT n_tup_ins FROM pg_stat_user_tables WHERE relname = 'seen'")
        if rows and rows[0][0] >= 7:
            break
        time.sleep(0.1)
    assert rows[0][0] == 7
    server.sql("TRUNCATE seen")
    server.sql("SELECT pg_stat_reset()")


def test_row_security_and_privileges_follow_the_session_s_user(server):
    server.sql("CREATE TABLE private (owner name, v int)")
    try:
        server.sql("ALTER TABLE private ENABLE ROW LEVEL SECURITY")
        server.sql("CREATE POLICY own ON private USING (owner = current_user)")
        server.sql("GRANT SELECT ON private TO PUBLIC")
        server.sql("INSERT INTO private VALUES ('eve', 1), ('postgres', 2)")
        with (
            psycopg.connect(server.pool(), autocommit=True) as boss,
            psycopg.connect(server.pool(user="eve"), autocommit=True) as eve,
            psycopg.connect(server.pool(), autocommit=True) as as_eve,
        ):
            as_eve.execute("SET ROLE eve")
            for _ in range(4):
                assert boss.execute("SELECT count(*) FROM private").fetchone() == (2,)
                assert eve.execute("SELECT v FROM private").fetchall() == [(1,)]
                assert as_eve.execute("SELECT v FROM private").fetchall() == [(1,)]
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    eve.execute("SELECT * FROM seen")
    finally:
        server.sql("DROP TABLE private")


@pytest.mark.pool_only
@pytest.mark.parametrize("forced", [False, True])
def test_activity_does_not_show_clients_that_have_left(make_cluster, forced):
    """Backends outlive their sessions, and must not show sessions that have ended."""
    server = make_cluster(parameters={"pg_baton.max_backends": 3, "pg_baton.force_migration": forced})
    with Wire.login("127.0.0.1", server.pool_port, application_name="stays") as stays:
        for turn in range(4):
            with Wire.login("127.0.0.1", server.pool_port, application_name="leaves") as leaves:
                for _ in range(turn + 1):
                    leaves.query("SELECT 'a secret of its own'")
                    stays.query("SELECT 1")
        wait_until(
            lambda: (
                server.sql(
                    "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                    " AND (application_name = 'leaves' OR query LIKE '%secret%')"
                )
                == [(0,)]
            ),
            what="nobody shows who has left",
        )
