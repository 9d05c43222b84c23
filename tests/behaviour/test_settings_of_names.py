"""A setting of a role or database may be a name: of a role, a text search
configuration, an access method. A login looks the name up. A session keeps the
object that the name meant at its login, whatever bears the name later. A backend
is older than both. Each test compares with a login or a session on the server's
own port."""

from __future__ import annotations

import psycopg
import pytest
from harness.wire import LoginFailed, Message, Wire, query

PARAMETERS = {"pg_baton.session_wait_timeout": "20s", "max_prepared_transactions": 2}

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
    """All that the server tells a new client, except its key, and the answers to the question."""
    wire = Wire.open("127.0.0.1", port)
    try:
        messages = wire.log_in("setter", "named")
        messages += wire.ask(query(question))
        wire.finish()
    finally:
        wire.close()
    notices = [
        str(sorted((k, v) for k, v in one.fields().items() if k in "SCMD")) for one in messages if one.type == "N"
    ]
    reported = sorted(str(one.strings()) for one in messages if one.type == "S")
    return notices + reported + [str(one.row()) for one in messages if one.type == "D"]


def assert_alike(server, question: str) -> list[str]:
    direct = login(server.port, question)
    for _ in range(3):
        assert login(server.pool_port, question) == direct
    return direct


def test_new_login_gets_the_role_that_bears_the_name_now(roles):
    roles.sql("ALTER ROLE setter SET role = 'given'")
    before = assert_alike(roles, WHO)
    for change in (
        "ALTER ROLE given SUPERUSER",
        "ALTER ROLE given NOSUPERUSER",
        "REVOKE given FROM setter",
        "GRANT given TO setter",
        "ALTER ROLE given RENAME TO given_old",
        "CREATE ROLE given",
        "GRANT given TO setter",
        "DROP ROLE given",
        "DROP ROLE given_old",
        "CREATE ROLE given",
        "GRANT given TO setter",
    ):
        roles.sql(change)
        after = assert_alike(roles, WHO)
    assert after == before


def test_a_setting_refused_to_the_backend_is_the_next_login_s(roles):
    """Role and database have a setting each. The database's setting counts where the role's is refused."""
    roles.sql("REVOKE given FROM setter; CREATE ROLE given_old; GRANT given_old TO setter")
    roles.sql("ALTER ROLE setter SET role = 'given'; ALTER DATABASE named SET role = 'given_old'")
    try:
        refused = assert_alike(roles, WHO)
        roles.sql("GRANT given TO setter")
        assert assert_alike(roles, WHO) != refused
        roles.sql("REVOKE given FROM setter")
        assert assert_alike(roles, WHO) == refused
    finally:
        roles.sql("ALTER DATABASE named RESET role")


@pytest.mark.parametrize("of", ["ROLE setter", "DATABASE named"])
def test_new_login_gets_the_current_text_search_configuration(roles, of):
    question = "SELECT current_setting('default_text_search_config'), to_tsvector('the rats')"
    roles.sql(f"ALTER {of} SET default_text_search_config = 'public.mine'")
    try:
        without = assert_alike(roles, question)
        for change in (
            "CREATE TEXT SEARCH CONFIGURATION public.mine (COPY = simple)",
            "ALTER TEXT SEARCH CONFIGURATION public.mine RENAME TO other",
            "ALTER TEXT SEARCH CONFIGURATION public.other RENAME TO mine",
            "DROP TEXT SEARCH CONFIGURATION public.mine",
        ):
            roles.sql(change, dbname="named")
            after = assert_alike(roles, question)
        assert after == without
    finally:
        roles.sql(f"ALTER {of} RESET default_text_search_config")


TABLESPACE = (
    "CREATE TABLESPACE named LOCATION ''",
    "ALTER TABLESPACE named RENAME TO other",
    "ALTER TABLESPACE other RENAME TO named",
    "DROP TABLESPACE named",
)

OTHER_NAMES = {
    "default_tablespace": TABLESPACE,
    "temp_tablespaces": TABLESPACE,
    "default_table_access_method": (
        "CREATE ACCESS METHOD named TYPE TABLE HANDLER heap_tableam_handler",
        "DROP ACCESS METHOD named",
    ),
}


@pytest.mark.parametrize("parameter", OTHER_NAMES)
def test_a_new_login_s_default_is_what_there_is_now(roles, parameter):
    question = f"SELECT setting, source FROM pg_settings WHERE name = '{parameter}'"
    roles.sql(f"ALTER ROLE setter SET {parameter} = 'named'")
    with psycopg.connect(
        roles.direct(dbname="named", options="-c allow_in_place_tablespaces=on"), autocommit=True
    ) as administrator:
        without = assert_alike(roles, question)
        for change in OTHER_NAMES[parameter]:
            administrator.execute(change)
            after = assert_alike(roles, question)
        assert after == without


def test_configuration_lookup_uses_the_search_path_set_before_it(roles):
    question = "SELECT current_setting('default_text_search_config'), current_setting('search_path')"
    roles.sql(
        "CREATE SCHEMA there; CREATE TEXT SEARCH CONFIGURATION there.found (COPY = simple);"
        " CREATE TEXT SEARCH CONFIGURATION public.found (COPY = simple)",
        dbname="named",
    )
    try:
        for settings in (
            ["search_path = 'there'", "default_text_search_config = 'found'"],
            ["default_text_search_config = 'found'", "search_path = 'there'"],
        ):
            for setting in settings:
                roles.sql(f"ALTER ROLE setter SET {setting}")
            assert_alike(roles, question)
            roles.sql("ALTER ROLE setter RESET ALL")
    finally:
        roles.sql("DROP SCHEMA there CASCADE; DROP TEXT SEARCH CONFIGURATION public.found", dbname="named")


def test_configuration_is_looked_up_in_schemas_that_exist_now(roles):
    """The lookup follows the search path, with the rights that the role has in its schemas."""
    question = "SELECT current_setting('default_text_search_config')"
    for schema in ("first", "second"):
        roles.sql(
            f"CREATE SCHEMA {schema}; GRANT USAGE ON SCHEMA {schema} TO setter;"
            f" CREATE TEXT SEARCH CONFIGURATION {schema}.found (COPY = simple)",
            dbname="named",
        )
    roles.sql("ALTER ROLE setter SET search_path = first, second")
    roles.sql("ALTER ROLE setter SET default_text_search_config = 'found'")
    try:
        before = assert_alike(roles, question)
        seen = [before]
        for change in (
            "REVOKE USAGE ON SCHEMA first FROM setter",
            "GRANT USAGE ON SCHEMA first TO given",
            "ALTER SCHEMA first RENAME TO away",
            "ALTER SCHEMA away RENAME TO first",
            "ALTER TEXT SEARCH CONFIGURATION first.found SET SCHEMA public",
            "ALTER TEXT SEARCH CONFIGURATION public.found SET SCHEMA first",
            "UPDATE pg_ts_config SET cfgname = 'lost' WHERE cfgname = 'found' AND cfgnamespace = 'first'::regnamespace",
            "UPDATE pg_ts_config SET cfgname = 'found' WHERE cfgname = 'lost'",
            "BEGIN; DROP TEXT SEARCH CONFIGURATION first.found; ROLLBACK",
        ):
            roles.sql(change, dbname="named")
            seen.append(assert_alike(roles, question))
        assert [one == before for one in seen] == [True, False, True, False, True, False, True, False, True, True]
    finally:
        roles.sql("DROP SCHEMA first CASCADE; DROP SCHEMA second CASCADE", dbname="named")


def test_prepared_change_counts_from_its_commit_on(roles):
    question = "SELECT current_setting('default_text_search_config')"
    roles.sql("ALTER ROLE setter SET default_text_search_config = 'public.mine'")
    roles.sql("CREATE TEXT SEARCH CONFIGURATION public.mine (COPY = simple)", dbname="named")
    there = assert_alike(roles, question)
    with psycopg.connect(roles.direct(dbname="named"), autocommit=True) as administrator:
        administrator.execute("BEGIN")
        administrator.execute("DROP TEXT SEARCH CONFIGURATION public.mine")
        administrator.execute("PREPARE TRANSACTION 'drop'")
        # a login that looks the name up would wait for the lock
        administrator.execute("COMMIT PREPARED 'drop'")
    assert assert_alike(roles, question) != there


# The value as a setting of the role, and the statement that creates its object before.
NO_BACKEND = {
    "role": ("given", ""),
    "default_text_search_config": ("public.mine", "CREATE TEXT SEARCH CONFIGURATION public.mine (COPY = simple)"),
    "default_tablespace": ("pg_default", ""),
    "temp_tablespaces": ("pg_default", ""),
    "default_table_access_method": ("heap", ""),
}


@pytest.mark.pool_only
def test_names_in_settings_or_options_cost_a_login_no_backend(make_cluster):
    server = make_cluster(parameters={"pg_baton.max_backends": 1, "pg_baton.session_wait_timeout": "3s"})
    server.sql("CREATE ROLE setter LOGIN; CREATE ROLE given; GRANT given TO setter")

    def come(**options: str) -> Wire:
        return Wire.login("127.0.0.1", server.pool_port, user="setter", **options)

    def assert_greeted(**options: str) -> None:
        come(**options).finish()
        come(**options).finish()
        with come(**options) as busy:
            busy.query("BEGIN")
            try:
                come(**options).finish()
            except LoginFailed as failed:
                pytest.fail(f"{parameter} {options}: {failed}")
            busy.query("COMMIT")
            busy.finish()

    for parameter, (value, before) in NO_BACKEND.items():
        if before:
            server.sql(before)
        server.sql(f"ALTER ROLE setter SET {parameter} = '{value}'")
        assert_greeted()
        server.sql(f"ALTER ROLE setter RESET {parameter}")
        assert_greeted(options=f"-c {parameter}={value}")


def answers(sessions: list[Wire]) -> list[list[Message]]:
    return [session.ask(query(WHO)) for session in sessions]


def test_a_live_session_keeps_the_role_that_a_setting_gave_it(roles):
    """It keeps the role also on backends that have another role of that name by a setting."""
    roles.sql("ALTER ROLE setter SET role = 'given'")
    sessions = [
        Wire.login("127.0.0.1", port, user="setter", database="named") for port in (roles.port, roles.pool_port)
    ]
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
