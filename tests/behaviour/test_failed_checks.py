"""A failed check of the server's internals disables the features that rest on it, and
not the server. Without pooling each session has a backend of its own for life, the log
and a view say why, and clients see the same as on a direct connection."""

from __future__ import annotations

import contextlib
import time

import psycopg
import pytest
from harness.account import server_major
from harness.certificates import Authority, make_secure
from harness.compare import same_as_direct

pytestmark = pytest.mark.pool_only

COSTS_POOLING = [
    "client_port",
    "signal_barriers",
    "login_triggers",
    "keepalives",
    "taint",
    "context",
    "relation_cache",
    "parameters",
    "reset_values",
    "set_values",
    "reports",
    "sequences",
    "temporary_namespace",
    "sql_functions",
    "kept_functions",
    "statements",
    "portals",
    "seed",
    "libraries",
]

SETUP = [
    "CREATE EXTENSION pg_baton",
    "CREATE ROLE alice LOGIN",
    "ALTER ROLE alice SET work_mem = '5MB'",
    "CREATE FUNCTION add_one(a int) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN a + 1; END'",
    "CREATE SEQUENCE counting",
    "GRANT USAGE ON SEQUENCE counting TO alice",
]

SCRIPT = [
    "SHOW work_mem",
    "SHOW DateStyle",
    "SET my.own = 'mine'",
    "SET DateStyle = 'German'",
    "RESET DateStyle",
    "PREPARE one(int) AS SELECT add_one($1)",
    "EXECUTE one(1)",
    "SELECT nextval('counting') > 0, currval('counting') = lastval()",
    "BEGIN",
    "DECLARE here CURSOR FOR SELECT * FROM generate_series(1, 3)",
    "FETCH 2 FROM here",
    "SELECT no_such_column",
    "ROLLBACK",
    "SHOW my.own",
    "DISCARD ALL",
]


def broken(make_cluster, check: str, **parameters: object):
    more = {name.replace("__", "."): value for name, value in parameters.items()}
    server = make_cluster(parameters={"pg_baton.break_self_check": check, "pg_baton.max_backends": 3, **more})
    for statement in SETUP:
        server.sql(statement)
    return server


def failed_checks(server) -> list[tuple]:
    return server.sql("SELECT costs, problem <> '', since <= now() FROM pg_baton_failed_checks")


def causes(server) -> list[tuple]:
    return server.sql(
        "SELECT mode, dedicated_cause, count(*) FROM pg_baton_sessions WHERE user_name = 'alice' GROUP BY 1, 2"
    )


def wait_for(server, wanted, look) -> None:
    end = time.monotonic() + 30
    while look(server) != wanted:
        assert time.monotonic() < end, look(server)
        time.sleep(0.05)


@pytest.mark.parametrize(("check", "forced"), [*((check, False) for check in COSTS_POOLING), ("statements", True)])
def test_without_pooling_sessions_keep_own_backends_and_say_why(make_cluster, check, forced):
    server = broken(make_cluster, check, pg_baton__force_migration=forced)
    with contextlib.ExitStack() as stack:
        sessions = [
            stack.enter_context(
                psycopg.connect(
                    server.pool(user="alice", options=f"-c DateStyle=SQL -c my.number={n}"), autocommit=True
                )
            )
            for n in range(6)
        ]
        for n, session in enumerate(sessions):
            session.execute(f"SET my.other = '{n}'")
        for n, session in enumerate(sessions):
            row = session.execute("SELECT current_setting('my.number'), current_setting('my.other')").fetchone()
            assert row == (str(n), str(n))
        assert len({session.execute("SELECT pg_backend_pid()").fetchone() for session in sessions}) == 6
        assert causes(server) == [("dedicated", "failed check", 6)]
    wait_for(server, [], causes)
    assert failed_checks(server) == [("pooling", True, True)]
    assert server.log().count("pg_baton's check of this server failed") == 1
    for _ in range(2):
        same_as_direct(server, SCRIPT, user="alice", options="-c DateStyle=SQL -c statement_timeout=1h")


def test_without_pooling_a_bad_startup_option_fails_as_directly(make_cluster):
    server = broken(make_cluster, "statements")
    for options in ("-c DateStyle=nonsense", "-c no_such_parameter=1", "-c work_mem=1kB"):
        for _ in range(2):
            with pytest.raises(psycopg.OperationalError) as through_pool:
                psycopg.connect(server.pool(user="alice", options=options))
            with pytest.raises(psycopg.OperationalError) as directly:
                psycopg.connect(server.direct(user="alice", options=options))
            assert str(through_pool.value).split("FATAL:")[1] == str(directly.value).split("FATAL:")[1]
    same_as_direct(server, SCRIPT, user="alice")


def test_without_pooling_a_backend_ends_with_its_session(make_cluster):
    server = broken(make_cluster, "parameters")

    def backends(server):
        return server.sql("SELECT count(*) FROM pg_baton_backends WHERE user_name = 'alice' AND session_id IS NOT NULL")

    for _ in range(8):
        with psycopg.connect(server.pool(user="alice"), autocommit=True) as session:
            session.execute("SET my.own = 'mine'")
        with psycopg.connect(server.pool(user="alice"), autocommit=True) as session:
            with pytest.raises(psycopg.errors.UndefinedObject):
                session.execute("SHOW my.own")
        psycopg.connect(server.pool(user="alice")).close()
    wait_for(server, [(0,)], backends)


def test_without_pooling_a_reload_reaches_sessions(make_cluster):
    server = broken(make_cluster, "reset_values")
    with psycopg.connect(server.pool(user="alice"), autocommit=True) as session:
        server.set_parameters({"pg_baton.backend_idle_timeout": "2min", "application_name": "reloaded"})
        server.reload()
        end = time.monotonic() + 30
        while session.execute("SHOW pg_baton.backend_idle_timeout").fetchone() != ("2min",):
            assert time.monotonic() < end
            time.sleep(0.05)


def test_wait_sets_that_are_not_understood_cost_no_pooling(make_cluster):
    server = broken(make_cluster, "wait_sets", pg_baton__force_migration=True)
    assert failed_checks(server) == [("speed", True, True)]
    for _ in range(2):
        same_as_direct(server, [*SCRIPT, "SELECT repeat('long', 1000000)"], user="alice")
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(psycopg.connect(server.pool(user="alice"), autocommit=True)) for _ in range(6)]
        for _ in range(5):
            for session in sessions:
                assert session.execute("SELECT add_one(1)").fetchone() == (2,)
        assert causes(server) == [("shared", None, 6)]


def test_functions_that_are_not_as_expected_cost_no_pooling(make_cluster):
    server = broken(make_cluster, "functions")
    same_as_direct(server, SCRIPT, user="alice")
    assert failed_checks(server) == [("functions", True, True)]


def test_process_ids_that_cannot_be_given_cost_no_pooling(make_cluster):
    server = broken(make_cluster, "process_ids")
    assert failed_checks(server) == [("process IDs", True, True)]
    same_as_direct(server, SCRIPT, user="alice")


def test_rules_that_admit_no_backend_cost_the_pool_and_no_client(make_cluster):
    """No backend can be opened, but sessions still get in, as native sessions."""
    server = broken(make_cluster, "trusted_rules")
    assert failed_checks(server) == [("backends", True, True)]
    with psycopg.connect(server.pool(user="alice")):
        assert causes(server) == [("native", "failed check", 1)]
    same_as_direct(server, SCRIPT, user="alice")


def test_an_unexpected_certificate_hash_costs_channel_binding(make_cluster, run):
    """Clients that a backend authenticates get no channel binding. They log in without it."""
    authority = Authority(run.directory / "hashed otherwise")
    server = make_cluster(
        start=False,
        parameters={"pg_baton.break_self_check": "certificate", "pg_baton.login": "server"},
        hba=["hostssl all alice all scram-sha-256"],
    )
    make_secure(server, authority)
    server.start()
    server.sql("CREATE EXTENSION pg_baton")
    server.sql("CREATE ROLE alice LOGIN PASSWORD 'correct'")
    chosen = {"user": "alice", "password": "correct", "sslmode": "require"}
    psycopg.connect(server.pool(**chosen, channel_binding="disable")).close()
    psycopg.connect(server.pool(**chosen, channel_binding="prefer")).close()
    psycopg.connect(server.direct(**chosen, channel_binding="require")).close()
    with pytest.raises(psycopg.OperationalError, match="channel binding"):
        psycopg.connect(server.pool(**chosen, channel_binding="require"))
    assert failed_checks(server) == [("channel binding", True, True)]


@pytest.mark.skipif(server_major() < 16, reason="SYSTEM_USER came with 16")
def test_an_unexpected_function_costs_the_system_user(make_cluster):
    """SYSTEM_USER is then the backend's, and everything else works as before."""
    server = broken(make_cluster, "system_user")
    with psycopg.connect(server.pool(user="alice")) as session:
        session.execute("SELECT SYSTEM_USER")
        assert causes(server) == [("shared", None, 1)]
    same_as_direct(server, SCRIPT, user="alice")
    assert failed_checks(server) == [("system user", True, True)]


def test_statistics_that_cannot_be_told_apart_are_said_so(make_cluster):
    """The statistics are then the backend's, and everything else works as before."""
    server = broken(make_cluster, "own_statistics")
    same_as_direct(server, SCRIPT, user="alice")
    assert failed_checks(server) == [("statistics", True, True)]


def test_nothing_is_said_of_a_server_that_is_as_expected(make_cluster):
    server = broken(make_cluster, "")
    same_as_direct(server, SCRIPT, user="alice")
    assert failed_checks(server) == []
