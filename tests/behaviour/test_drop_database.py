"""Statements that need a database without other sessions work as with direct connections.

PostgreSQL counts processes for these statements.  An idle backend of the pool does not
count, and a pooled session between two transactions does."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest
from harness.compare import describe
from harness.wire import LoginFailed, QueryFailed, Wire, query

HOST = "127.0.0.1"

SETUP = ["CREATE ROLE db_owner LOGIN CREATEDB", "CREATE ROLE db_stranger LOGIN CREATEDB"]

WAYS = ["direct", "pool"]

# Each statement needs database "wanted" without other sessions; the second statement undoes it.
STATEMENTS = {
    "drop": ("DROP DATABASE wanted", "CREATE DATABASE wanted"),
    "rename": ("ALTER DATABASE wanted RENAME TO renamed", "ALTER DATABASE renamed RENAME TO wanted"),
    "template": ("CREATE DATABASE copied TEMPLATE wanted", "DROP DATABASE copied"),
}


def port_of(server, way: str) -> int:
    return server.port if way == "direct" else server.pool_port


def login(server, way: str, **options) -> Wire:
    return Wire.login(HOST, port_of(server, way), **options)


def error_of(session: Wire, sql: str) -> dict[str, str]:
    """The error's fields, without the place in the source."""
    with pytest.raises(QueryFailed) as failure:
        session.query(sql)
    return {key: value for key, value in failure.value.fields.items() if key not in "FLR"}


@pytest.fixture
def wanted(server):
    """A database for the statements; after the test it is dropped, under each name that it may have."""
    server.sql("CREATE DATABASE wanted")
    yield "wanted"
    for name in ("wanted", "renamed", "copied"):
        server.sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.mark.parametrize("way", WAYS)
def test_a_client_creates_uses_and_drops_its_database_repeatedly(server, way):
    for number in range(12):
        with login(server, way) as admin:
            admin.query("DROP DATABASE IF EXISTS wanted")
            admin.query("CREATE DATABASE wanted")
        sessions = [login(server, "pool", database="wanted") for _ in range(3)]
        sessions[0].query(f"CREATE TABLE t AS SELECT {number} AS n")
        for session in sessions:
            assert session.query("SELECT n FROM t") == [[str(number)]]
        for session in sessions:
            session.finish()
        with login(server, way) as admin:
            admin.query("DROP DATABASE wanted")
        with pytest.raises(LoginFailed) as failure:
            login(server, "pool", database="wanted")
        assert failure.value.fields["C"] == "3D000"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", STATEMENTS)
def test_idle_backends_of_the_pool_are_in_nobodys_way(server, wanted, way, kind):
    statement, undo = STATEMENTS[kind]
    with login(server, way) as admin:
        for _ in range(3):
            with login(server, "pool", database="wanted") as user:
                user.query("SELECT 1")
                user.finish()
            admin.query(statement)
            admin.query(undo)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", STATEMENTS)
def test_sessions_that_stay_are_the_servers_own_error(server, wanted, way, kind):
    statement, _ = STATEMENTS[kind]
    seen = []
    for users_way in WAYS:
        users = [login(server, users_way, database="wanted") for _ in range(2)]
        for user in users:
            user.query("SELECT 1")
        with login(server, way) as admin:
            seen.append(error_of(admin, statement))
        for user in users:
            assert user.query("SELECT 2") == [["2"]]
            user.finish()
    assert seen[0] == seen[1]
    assert seen[0]["C"] == "55006" and seen[0]["D"] == "There are 2 other sessions using the database."


@pytest.mark.pool_only
@pytest.mark.parametrize("way", WAYS)
def test_a_session_that_no_backend_serves_still_blocks_the_drop(server, wanted, way):
    user = login(server, "pool", database="wanted")
    user.query("SELECT 1")
    deadline = time.monotonic() + 20
    while server.sql("SELECT count(*) FROM pg_baton_backends WHERE database = 'wanted'") != [(0,)]:
        assert time.monotonic() < deadline
        server.sql(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_baton_backends"
            " WHERE database = 'wanted' AND state = 'idle'"
        )
    with login(server, way) as admin:
        failure = error_of(admin, "DROP DATABASE wanted")
    assert (failure["C"], failure["D"]) == ("55006", "There is 1 other session using the database.")
    assert user.query("SELECT current_database()") == [["wanted"]]
    user.finish()


@pytest.mark.parametrize("way", WAYS)
def test_a_session_that_leaves_in_time_lets_the_drop_succeed(server, wanted, way):
    user = login(server, "pool", database="wanted")
    user.query("SELECT 1")
    with login(server, way) as admin:
        admin.send(query("DROP DATABASE wanted"))
        assert admin.silent(0.3)
        assert user.query("SELECT 2") == [["2"]]
        user.finish()
        assert describe(admin.until_ready()[0]) == "complete DROP DATABASE"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("state", ["idle", "in_transaction", "running", "dedicated"])
def test_force_ends_sessions_in_whatever_state(server, wanted, way, state):
    begin = {
        "idle": "SELECT 1",
        "in_transaction": "BEGIN",
        "running": "SELECT 1",
        "dedicated": "SELECT pg_advisory_lock(1)",
    }[state]
    endings = []
    for users_way in WAYS:
        with login(server, "direct") as admin:
            admin.query("DROP DATABASE IF EXISTS wanted")
            admin.query("CREATE DATABASE wanted")
        users = [login(server, users_way, database="wanted") for _ in range(3)]
        for user in users[:1] if state == "dedicated" else users:
            user.query(begin)
        if state == "running":
            for user in users:
                user.send(query("SELECT pg_sleep(60)"))
            while server.sql("SELECT count(*) FROM pg_stat_activity WHERE query ~ '^SELECT pg_sleep'") != [(3,)]:
                pass
        with login(server, way) as admin:
            admin.query("DROP DATABASE wanted WITH (FORCE)")
        for user in users:
            fields = [m.fields() for m in user.until_closed() if m.type == "E"]
            endings.append([{key: value for key, value in f.items() if key not in "FLR"} for f in fields])
    assert endings[0][0]["C"] == "57P01"
    assert all(ending == endings[0] for ending in endings), endings


@pytest.mark.parametrize("way", WAYS)
def test_after_a_rename_only_the_new_name_is_there(server, wanted, way):
    with login(server, "pool", database="wanted") as user:
        user.query("CREATE TABLE t AS SELECT 7 AS n")
        user.finish()
    with login(server, way) as admin:
        admin.query("ALTER DATABASE wanted RENAME TO renamed")
    for here in WAYS:
        with pytest.raises(LoginFailed) as failure:
            login(server, here, database="wanted")
        assert failure.value.fields["C"] == "3D000"
    with login(server, "pool", database="renamed") as user:
        assert user.query("SELECT n, current_database() FROM t") == [["7", "renamed"]]
        user.finish()


@pytest.mark.parametrize("way", WAYS)
def test_a_refused_drop_or_rename_disturbs_no_session(server, wanted, way):
    user = login(server, "pool", database="wanted")
    user.query("SELECT 1")
    with login(server, way, user="db_stranger") as stranger:
        for statement in ("DROP DATABASE wanted", "DROP DATABASE wanted WITH (FORCE)", STATEMENTS["rename"][0]):
            assert error_of(stranger, statement)["C"] == "42501"
    assert user.query("SELECT 2") == [["2"]]
    user.finish()


# The role of the session in the database, as the role is when the database's owner drops it by force; the statements
# make it so after the session's login.
WHOSE = {
    "a superuser's": [],
    "a renamed superuser's": ["ALTER ROLE db_user RENAME TO db_renamed"],
    "one whose name another role has": [
        "ALTER ROLE db_user RENAME TO db_renamed",
        "CREATE ROLE db_user",
        "GRANT db_user TO db_owner",
    ],
    "no superuser's any more": ["ALTER ROLE db_user NOSUPERUSER"],
    "a role's that the owner is a member of": ["ALTER ROLE db_user NOSUPERUSER", "GRANT db_user TO db_owner"],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("whose", WHOSE)
def test_force_ends_only_sessions_that_its_user_may_end(server, way, whose):
    """The session's role counts by its OID, with the attributes and members that it has now; a refusal has the server's
    own message, on any major version."""
    seen = []
    for users_way in WAYS:
        server.sql("CREATE ROLE db_user LOGIN SUPERUSER")
        server.sql("CREATE DATABASE wanted OWNER db_owner")
        user = login(server, users_way, user="db_user", database="wanted")
        user.query("SELECT 1")
        for change in WHOSE[whose]:
            server.sql(change)
        with login(server, way, user="db_owner") as owner:
            try:
                outcome = owner.query("DROP DATABASE wanted WITH (FORCE)")
            except QueryFailed as failure:
                outcome = {key: value for key, value in failure.fields.items() if key not in "FLR"}
                assert user.query("SELECT 2") == [["2"]]
        user.close()
        seen.append(outcome)
        server.sql("DROP DATABASE IF EXISTS wanted WITH (FORCE)")
        for role in ("db_user", "db_renamed"):
            server.sql(f"DROP ROLE IF EXISTS {role}")
    assert seen[0] == seen[1]
    assert isinstance(seen[0], dict) == ("member" not in whose)


@pytest.mark.parametrize("way", WAYS)
def test_a_login_during_a_rename_waits_and_is_told_the_outcome(server, wanted, way):
    """A rename in an open transaction locks the name until the transaction ends."""
    for end, name in (("ROLLBACK", "wanted"), ("COMMIT", None)):
        with login(server, "pool", database="wanted") as user:
            user.query("SELECT 1")
            user.finish()
        outcome: list[str] = []

        def come() -> None:
            try:
                with login(server, "pool", database="wanted") as late:
                    outcome.append(late.query("SELECT current_database()")[0][0])
                    late.finish()
            except LoginFailed as failure:
                outcome.append(failure.fields["C"])

        with login(server, way) as admin:
            admin.query("BEGIN")
            admin.query("ALTER DATABASE wanted RENAME TO renamed")
            late = threading.Thread(target=come)
            late.start()
            late.join(0.5)
            assert not outcome
            admin.query(end)
            late.join(30)
        assert outcome == [name or "3D000"]


def test_a_drop_in_a_transaction_disturbs_no_session_and_fails(server, wanted):
    with login(server, "pool", database="wanted") as user:
        user.query("SELECT 1")
        with psycopg.connect(server.pool()) as admin, pytest.raises(psycopg.errors.ActiveSqlTransaction):
            admin.execute("DROP DATABASE wanted WITH (FORCE)")
        assert user.query("SELECT 2") == [["2"]]
        user.finish()
