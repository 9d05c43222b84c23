"""A setting of a role or database may be a name: of a role, a text search
configuration, an access method. A login looks the name up; whoever has logged in
keeps what it meant, whatever bears the name later. A backend is older than
either. Each is compared with a login or a session on the server's own port."""

from __future__ import annotations

import pytest

from harness.wire import Message, Wire, query

PARAMETERS = {"pg_baton.session_wait_timeout": "4s"}

SETUP = ["CREATE DATABASE named"]

WHO = (
    "SELECT session_user, current_user, current_setting('role'), current_setting('is_superuser'),"
    " (SELECT source FROM pg_settings WHERE name = 'role')"
)


@pytest.fixture
def roles(server):
    server.sql("CREATE ROLE setter LOGIN; CREATE ROLE given; GRANT given TO setter")
    yield server
    for (role,) in server.sql("SELECT rolname FROM pg_roles WHERE rolname IN ('setter', 'given', 'given_old')"):
        server.sql(f"DROP ROLE {role}")


def login(port: int, question: str) -> list[str]:
    """All that a new client is told, and its answers, but for its key."""
    wire = Wire.open("127.0.0.1", port)
    try:
        messages = wire.log_in("setter", "named")
        messages += wire.ask(query(question))
        wire.finish()
    finally:
        wire.close()
    notices = [str(sorted((k, v) for k, v in one.fields().items() if k in "SCMD")) for one in messages if one.type == "N"]
    reported = sorted(str(one.strings()) for one in messages if one.type == "S")
    return notices + reported + [str(one.row()) for one in messages if one.type == "D"]


def assert_alike(server, question: str) -> list[str]:
    direct = login(server.port, question)
    for _ in range(3):
        assert login(server.pool_port, question) == direct
    return direct


def answers(sessions: list[Wire]) -> list[list[Message]]:
    return [session.ask(query(WHO)) for session in sessions]


def test_a_live_session_keeps_the_role_that_a_setting_gave_it(roles):
    """On backends, too, that have another of that name by a setting."""
    roles.sql("ALTER ROLE setter SET role = 'given'")
    sessions = [Wire.login("127.0.0.1", port, user="setter", database="named") for port in (roles.port, roles.pool_port)]
    try:
        direct, pooled = answers(sessions)
        assert direct == pooled
        for change in (
            "ALTER ROLE given RENAME TO given_old",
            "CREATE ROLE given",
            "GRANT given TO setter",
            # new backends
            "ALTER ROLE setter SET work_mem = '5MB'",
        ):
            roles.sql(change)
        for _ in range(3):
            login(roles.pool_port, WHO)
            direct, pooled = answers(sessions)
            assert direct == pooled
    finally:
        for session in sessions:
            session.finish()
