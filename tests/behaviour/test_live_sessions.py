"""A change that PostgreSQL applies only to new logins does not affect live sessions.

The change neither ends nor alters a session, and no session goes on as another
role that has taken the name of its role. Each session is compared with a session
on the server's own port to which the same happens."""

from __future__ import annotations

import contextlib

import psycopg
import pytest
from harness.health import wait_until
from harness.wire import QueryFailed, Wire

PARAMETERS = {"max_prepared_transactions": 4, "pg_baton.session_wait_timeout": "4s"}

HBA = ["host all live_scram 127.0.0.1/32 scram-sha-256"]

SETUP = ["CREATE DATABASE live", "CREATE DATABASE elsewhere"]

WHO = "SELECT session_user, current_user, current_setting('is_superuser'), current_setting('work_mem')"


def outcome(wire: Wire, sql: str = WHO):
    try:
        return wire.query(sql)
    except QueryFailed as failure:
        return str(failure)


def enter(port: int, user: str = "live", database: str = "live", password: str = "one") -> Wire:
    return Wire.login("127.0.0.1", port, user=user, database=database, password=password)


def may_enter(server) -> bool:
    try:
        enter(server.pool_port).close()
    except Exception as refusal:
        assert "pg_hba.conf" in str(refusal)
        return False
    return True


@contextlib.contextmanager
def idle_backends_go(server):
    """Idle backends end within the block only: a change that finds no backend has no effect to test."""
    server.set_parameters({"pg_baton.backend_idle_timeout": "1s"})
    server.reload()
    try:
        yield
    finally:
        server.set_parameters({"pg_baton.backend_idle_timeout": None})
        server.reload()


def without_numbers(found):
    return "".join("0" if letter.isdigit() else letter for letter in found) if isinstance(found, str) else found


@pytest.fixture
def roles(server):
    server.sql("CREATE ROLE live LOGIN")
    server.sql("SET password_encryption = 'scram-sha-256'; CREATE ROLE live_scram LOGIN PASSWORD 'one'")
    yield server
    with psycopg.connect(server.direct(), autocommit=True) as session:
        session.execute("ALTER DATABASE live ALLOW_CONNECTIONS true")
        session.execute("ALTER DATABASE live RESET ALL")
        session.execute("GRANT CONNECT ON DATABASE live TO PUBLIC")
        for (role,) in session.execute("SELECT rolname FROM pg_roles WHERE rolname ~ '^live'").fetchall():
            session.execute(f"DROP ROLE {role}")


# The statements that run while a session lives. The session's role is live_scram if the first statement names it, and
# live if not.
CHANGES = {
    "renamed": ["ALTER ROLE live RENAME TO live_old"],
    "renamed_and_made_anew": [
        "ALTER ROLE live RENAME TO live_old",
        "CREATE ROLE live LOGIN SUPERUSER",
        "ALTER ROLE live SET work_mem = '77MB'",
    ],
    "dropped_and_made_anew": ["DROP ROLE live", "CREATE ROLE live LOGIN SUPERUSER"],
    "nologin": ["ALTER ROLE live NOLOGIN"],
    "role_limit": ["ALTER ROLE live CONNECTION LIMIT 0"],
    "expired": ["ALTER ROLE live VALID UNTIL '2001-01-01'"],
    "closed": ["ALTER DATABASE live ALLOW_CONNECTIONS false", "ALTER DATABASE live SET work_mem = '5MB'"],
    "connect_revoked": ["REVOKE CONNECT ON DATABASE live FROM PUBLIC", "ALTER DATABASE live SET work_mem = '6MB'"],
    "settings": ["ALTER ROLE live SET work_mem = '7MB'", "ALTER ROLE live NOLOGIN"],
    "everybody_s_settings": [
        "ALTER ROLE ALL SET work_mem = '7MB'",
        "ALTER ROLE live NOLOGIN",
        "ALTER ROLE ALL RESET ALL",
    ],
    "promoted": ["ALTER ROLE live SUPERUSER"],
    "password": ["ALTER ROLE live_scram PASSWORD 'two'"],
    "password_and_settings": ["ALTER ROLE live_scram PASSWORD 'two'", "ALTER ROLE live_scram SET work_mem = '8MB'"],
    "password_s_owner_made_anew": [
        "ALTER ROLE live_scram RENAME TO live_scram_old",
        "CREATE ROLE live_scram LOGIN SUPERUSER PASSWORD 'two'",
    ],
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_for_new_logins_leave_live_sessions_as_they_are(roles, change):
    user = "live_scram" if "live_scram" in CHANGES[change][0] else "live"
    with (
        enter(roles.port, user) as direct,
        enter(roles.pool_port, user) as first,
        enter(roles.pool_port, user) as second,
    ):
        sessions = (direct, first, second)
        before = [outcome(session) for session in sessions]
        assert before[0] == before[1] == before[2]
        with psycopg.connect(roles.direct(), autocommit=True) as administrator:
            administrator.execute("SET password_encryption = 'scram-sha-256'")
            for statement in CHANGES[change]:
                administrator.execute(statement)
        # A new session logs in under this name, and a backend runs its query.
        for port in (roles.port, roles.pool_port):
            try:
                with enter(port, user, password="two") as new:
                    outcome(new)
            except Exception:
                pass
        for _ in range(3):
            after = [without_numbers(outcome(session)) for session in sessions]
            assert after[0] == after[1] == after[2], change


# After these changes no backend could log in as the role, or a backend would log in as another role.
CLOSES_LOGIN = [
    "renamed",
    "renamed_and_made_anew",
    "nologin",
    "role_limit",
    "expired",
    "connect_revoked",
    "settings",
    "password",
    "password_and_settings",
    "password_s_owner_made_anew",
]

# Statements that test the session's role, privileges and settings: a direct connection gives the expected answers.
ASKED = [
    WHO,
    "SET SESSION AUTHORIZATION postgres",
    "CREATE ROLE live_other",
    "SELECT rolname FROM pg_authid",
    "SELECT pg_read_file('postgresql.conf')",
    "RESET SESSION AUTHORIZATION; " + WHO,
    "SELECT setting, reset_val, source FROM pg_settings WHERE name IN ('work_mem', 'role')",
    "DISCARD ALL",
    WHO,
]


@pytest.mark.parametrize("change", CLOSES_LOGIN)
def test_new_backends_serve_sessions_that_could_not_log_in_again(roles, change):
    """The old backends have ended: each new backend logs in as a role that may log in, changes to the session's role,
    and has the privileges and settings of the session's role and no others."""
    user = "live_scram" if "live_scram" in CHANGES[change][0] else "live"
    with (
        enter(roles.port, user) as direct,
        enter(roles.pool_port, user) as first,
        enter(roles.pool_port, user) as second,
    ):
        assert outcome(direct) == outcome(first) == outcome(second)
        for statement in CHANGES[change]:
            roles.sql(statement)
        with idle_backends_go(roles):
            wait_until(
                lambda: roles.sql("SELECT count(*) FROM pg_baton_backends WHERE database = 'live'") == [(0,)],
                what="its backends have gone",
            )
        # Two transactions at once, which a single backend cannot serve.
        assert first.query("BEGIN") == second.query("BEGIN")
        assert outcome(first) == outcome(second) == outcome(direct)
        assert first.query("COMMIT") == second.query("COMMIT")
        for sql in ASKED:
            expected = outcome(direct, sql)
            assert [outcome(session, sql) for session in (first, second)] == [expected] * 2, sql


def test_a_session_goes_on_when_its_line_of_pg_hba_has_gone(roles):
    with enter(roles.pool_port) as session:
        assert outcome(session)[0][0] == "live"
        with idle_backends_go(roles):
            wait_until(
                lambda: roles.sql("SELECT count(*) FROM pg_baton_backends WHERE database = 'live'") == [(0,)],
                what="its backend has gone",
            )
        roles.write_hba(["host all live all reject", "local all live reject", *HBA])
        roles.reload()
        try:
            wait_until(lambda: not may_enter(roles), what="nobody comes in any more")
            assert outcome(session)[0][0] == "live"
        finally:
            roles.write_hba(HBA)
            roles.reload()


DEMOTIONS = {
    "altered": ["ALTER ROLE live NOSUPERUSER"],
    "prepared": ["BEGIN", "ALTER ROLE live NOSUPERUSER", "PREPARE TRANSACTION 'demoted'", "COMMIT PREPARED 'demoted'"],
    "catalog_updated": ["UPDATE pg_authid SET rolsuper = false WHERE rolname = 'live'"],
}


@pytest.mark.parametrize("demotion", DEMOTIONS)
def test_a_former_superuser_logs_in_as_no_superuser(roles, demotion):
    roles.sql("ALTER ROLE live SUPERUSER")
    with enter(roles.port) as direct, enter(roles.pool_port) as session:
        assert outcome(direct) == outcome(session)
        with psycopg.connect(roles.direct(), autocommit=True) as administrator:
            for statement in DEMOTIONS[demotion]:
                administrator.execute(statement)
        for _ in range(3):
            found = []
            for port in (roles.port, roles.pool_port):
                with enter(port) as new:
                    found.append(
                        (
                            new.parameters["is_superuser"],
                            outcome(new),
                            outcome(new, "SET SESSION AUTHORIZATION postgres"),
                        )
                    )
            assert found[0] == found[1] and found[0][0] == "off"
        # As in stock PostgreSQL, live sessions go on unchanged.
        assert outcome(direct) == outcome(session)


def test_a_setting_changed_in_the_catalog_reaches_new_sessions(roles):
    roles.sql("ALTER ROLE live SET work_mem = '7MB'")
    with enter(roles.pool_port) as session:
        assert outcome(session, "SHOW work_mem") == [["7MB"]]
        roles.sql("UPDATE pg_db_role_setting SET setconfig = '{work_mem=8MB}' WHERE setconfig = '{work_mem=7MB}'")
        for port in (roles.port, roles.pool_port):
            with enter(port) as new:
                assert outcome(new, "SHOW work_mem") == [["8MB"]]
        assert outcome(session, "SHOW work_mem") == [["7MB"]]


# Settings that only a starting backend takes from the files, and the query that shows them to a session.
AT_START = {
    "backend_parameter": ({"ignore_system_indexes": True}, "SHOW ignore_system_indexes"),
    "superuser_backend_parameter": ({"jit_profiling_support": True}, "SHOW jit_profiling_support"),
    "preloaded_library": (
        {"session_preload_libraries": "auto_explain"},
        "SELECT count(*) > 0 FROM pg_settings WHERE name = 'auto_explain.log_format'",
    ),
}


@pytest.mark.parametrize("what", AT_START)
def test_file_settings_taken_at_backend_start_reach_new_sessions(roles, what):
    parameters, question = AT_START[what]

    def seen(port: int):
        with enter(port) as new:
            return outcome(new, question)

    with enter(roles.port) as direct, enter(roles.pool_port) as session:
        before = outcome(direct, question)
        assert outcome(session, question) == before == seen(roles.pool_port)
        try:
            roles.set_parameters(parameters)
            roles.reload()
            wait_until(lambda: seen(roles.port) != before, what="the server has reloaded")
            wait_until(lambda: seen(roles.pool_port) == seen(roles.port), what="new sessions have it")
            for _ in range(3):
                assert seen(roles.pool_port) == seen(roles.port)
        finally:
            roles.set_parameters({name: None for name in parameters})
            roles.reload()
        wait_until(lambda: seen(roles.port) == before, what="the server has reloaded")
        wait_until(lambda: seen(roles.pool_port) == before, what="new sessions have it no more")
        assert outcome(session, "SELECT session_user") == [["live"]]


def test_settings_of_one_role_replace_no_other_role_s_backends(roles):
    """A role that may change its own settings cannot make the server start backends for other roles."""

    roles.sql("CREATE ROLE live_other LOGIN")
    with enter(roles.pool_port, "live_other") as other, enter(roles.pool_port) as busy:
        for _ in range(3):
            outcome(other)
        backends = "SELECT pid FROM pg_baton_backends WHERE database = 'live' AND state <> 'retiring'"
        before = set(roles.sql(backends))
        for number in range(50):
            assert isinstance(outcome(busy, f"ALTER ROLE CURRENT_USER SET work_mem = '{number + 1}MB'"), list)
            # A login makes the dispatcher look at the settings.
            enter(roles.pool_port, "postgres").finish()
            outcome(other)
        assert before and before <= set(roles.sql(backends))
        # A session that logs in now has the setting all the same.
        with enter(roles.pool_port) as new:
            assert outcome(new)[0][3] == "50MB"


@pytest.mark.pool_only
@pytest.mark.parametrize("most", [1, 3])
def test_a_change_of_settings_ends_no_backend(make_cluster, most):
    """The existing backends greet the logins after the change, and all sessions are of one pool."""
    cluster = make_cluster(parameters={"pg_baton.max_backends": most, "pg_baton.max_extra_backends": 0})
    cluster.sql("CREATE EXTENSION pg_baton")

    def backends() -> set:
        return set(cluster.sql("SELECT pid FROM pg_baton_backends WHERE state <> 'retiring'"))

    old = [Wire.login("127.0.0.1", cluster.pool_port) for _ in range(4)]
    for session in old[:most]:
        session.query("BEGIN")
    for session in old[:most]:
        session.query("COMMIT")
    first = backends()
    assert len(first) == most
    for number in range(1, 4):
        cluster.sql(f"ALTER ROLE postgres SET work_mem = '{number}MB'")
        assert [outcome(session)[0][3] for session in old] == ["4MB"] * 4
        for _ in range(3):
            with Wire.login("127.0.0.1", cluster.pool_port) as new:
                assert outcome(new)[0][3] == f"{number}MB"
        assert [outcome(session)[0][3] for session in old] == ["4MB"] * 4
        assert backends() == first
    pools = "SELECT count(*), sum(sessions) FROM pg_baton_pools WHERE sessions > 0"
    wait_until(lambda: cluster.sql(pools) == [(1, 4)], what="the new ones have left, and all are of one pool")
    for session in old:
        session.close()


LATER = {
    "role": ("ALTER ROLE live SET work_mem = '5MB'", "ALTER ROLE live RESET work_mem"),
    "database": ("ALTER DATABASE live SET work_mem = '6MB'", "ALTER DATABASE live RESET work_mem"),
    "role_in_database": (
        "ALTER ROLE live IN DATABASE live SET work_mem = '7MB'",
        "ALTER ROLE live IN DATABASE live RESET ALL",
    ),
    "all_roles": ("ALTER ROLE ALL SET work_mem = '8MB'", "ALTER ROLE ALL RESET work_mem"),
    "two_at_once": (
        "ALTER ROLE live SET work_mem = '5MB'; ALTER DATABASE live SET work_mem = '6MB'",
        "ALTER DATABASE live RESET work_mem; ALTER ROLE live RESET work_mem",
    ),
    "search_path": ("ALTER ROLE live SET search_path = 'pg_catalog', 'x'", "ALTER ROLE live RESET search_path"),
}


@pytest.mark.parametrize("change", LATER)
def test_a_login_has_current_settings_whichever_process_greets(roles, change):
    """A login is greeted by a backend that was idle, that was in a transaction meanwhile, or that was dedicated;
    each session from before the change keeps the settings that it had."""
    seen = "SELECT current_setting('work_mem'), current_setting('search_path'), reset_val FROM pg_settings "
    seen += "WHERE name = 'work_mem'"

    def comes(port: int):
        with enter(port) as new:
            return outcome(new, seen)

    with enter(roles.pool_port) as idle, enter(roles.pool_port) as busy, enter(roles.pool_port) as dedicated:
        before = comes(roles.port)
        for session in (idle, busy, dedicated):
            assert outcome(session, seen) == before
        dedicated.query("LISTEN x")
        busy.query("BEGIN")
        for _ in range(2):
            for statement in LATER[change]:
                for part in statement.split(";"):
                    roles.sql(part)
                # Logins that the existing backends greet, and logins that the dispatcher greets.
                assert [comes(roles.pool_port) for _ in range(3)] == [comes(roles.port)] * 3
                for session in (idle, busy, dedicated):
                    assert outcome(session, seen) == before
            dedicated.query("UNLISTEN x")
            busy.query("COMMIT")
            assert [comes(roles.pool_port) for _ in range(3)] == [before] * 3
            busy.query("BEGIN")
        busy.query("COMMIT")


# Settings of the role that only a starting backend takes, and the query that shows them to a session.
AT_START_BY_ROLE = {
    "session_preload_libraries": (
        "session_preload_libraries = 'auto_explain'",
        "SELECT count(*) > 0 FROM pg_settings WHERE name = 'auto_explain.log_format'",
    ),
    "temp_buffers": ("temp_buffers = '2MB'", "SHOW temp_buffers"),
}


@pytest.mark.parametrize("what", AT_START_BY_ROLE)
def test_role_settings_taken_at_start_reach_the_next_login(roles, what):
    """The session keeps the setting, whichever backend serves it, beside sessions from before the change."""
    setting, question = AT_START_BY_ROLE[what]
    with enter(roles.pool_port) as old, enter(roles.pool_port) as other:
        with enter(roles.port) as direct:
            without = outcome(direct, question)
        for _ in range(2):
            # The backend of this session is from before the change, and is not asked to greet a login.
            other.query("BEGIN")
            assert outcome(old, question) == without
            roles.sql(f"ALTER ROLE live SET {setting}")
            with enter(roles.port) as direct:
                with_it = outcome(direct, question)
            assert with_it != without
            with enter(roles.pool_port) as new, enter(roles.pool_port) as next_one:
                assert [outcome(session, question) for session in (new, next_one)] == [with_it] * 2
                next_one.query("BEGIN")
                other.query("COMMIT")
                for _ in range(3):
                    assert outcome(new, question) == with_it
                next_one.query("COMMIT")
                assert [outcome(session, question) for session in (new, next_one)] == [with_it] * 2
            roles.sql(f"ALTER ROLE live RESET {what}")
            for _ in range(3):
                with enter(roles.pool_port) as new:
                    assert outcome(new, question) == without
                assert outcome(old, "SELECT session_user") == [["live"]]


@pytest.mark.pool_only
def test_an_administrator_replaces_backends_and_ends_no_session(roles):
    """docs/operations.md promises it: pg_baton.backend_lifetime replaces the backends, and the session goes on."""
    pids = "SELECT pid FROM pg_baton_backends WHERE database = 'live'"
    with enter(roles.pool_port) as session:
        before = outcome(session)
        old = set(roles.sql(pids))
        assert old
        roles.set_parameters({"pg_baton.backend_lifetime": "1s"})
        roles.reload()
        try:
            wait_until(
                lambda: outcome(session) == before and not old & set(roles.sql(pids)), 20, "the old ones have gone"
            )
        finally:
            roles.set_parameters({"pg_baton.backend_lifetime": None})
            roles.reload()


# More roles than the dispatcher looks at in one go.
MANY_ROLES = 150


@pytest.mark.pool_only
def test_settings_of_all_roles_reach_new_logins_of_many_roles(roles):
    names = [f"live_{number}" for number in range(MANY_ROLES)]
    roles.sql("".join(f"CREATE ROLE {name} LOGIN;" for name in names))
    old = {name: enter(roles.pool_port, name) for name in names}
    for name, session in old.items():
        assert outcome(session) == [[name, name, "off", "4MB"]]
    try:
        with Wire.login("127.0.0.1", roles.pool_port, database="live") as administrator:
            administrator.query("ALTER ROLE ALL SET work_mem = '7MB'")
            # The roles behind all others log in first.
            for name in reversed(names):
                with enter(roles.pool_port, name) as new:
                    assert outcome(new) == [[name, name, "off", "7MB"]]
        for name, session in old.items():
            assert outcome(session) == [[name, name, "off", "4MB"]]
    finally:
        roles.sql("ALTER ROLE ALL RESET work_mem")
        for session in old.values():
            session.close()
