"""What a client asks for when it connects: its session has it, and RESET goes back to it."""

from __future__ import annotations

import psycopg
import pytest
from harness.account import DEBUG_PARALLEL
from harness.compare import same_as_direct
from harness.wire import LoginFailed, Wire, startup
from parameter_world import SETUP, SHOW  # noqa: F401 (the fixture reads SETUP)

STARTUP = {
    "application_name_and_fallback": {"application_name": "app", "TimeZone": "Asia/Tokyo"},
    "application_name_not_ascii": {"application_name": "café"},
    "datestyle": {"DateStyle": "SQL, DMY", "IntervalStyle": "iso_8601"},
    "options_dash_c": {"options": "-c work_mem=7MB -c my.start=x --statement-timeout=90s"},
    "options_escaped_blanks": {"options": "-c my.start=a\\ b\\\\c -cwork_mem=6MB"},
    "short_options": {"options": "-e -S 5000 -fh"},
    "client_encoding": {"client_encoding": "LATIN1"},
    "client_encoding_quoted": {"client_encoding": "'latin1'"},
    "role_at_startup": {"options": "-c role=alice"},
    "search_path_at_startup": {"options": "-c search_path=pg_catalog,\\ public"},
    "custom_parameter_at_startup": {"my.direct": "given"},
    "extra_float_digits": {"extra_float_digits": "3"},
    "timeouts": {"options": "-c lock_timeout=33s -c idle_in_transaction_session_timeout=44s"},
    "superuser_only_for_superuser": {"options": "-c log_min_messages=error"},
    "backend_only": {"options": "-c ignore_system_indexes=on"},
    "backend_only_post_auth_delay": {"options": "-c log_disconnections=on"},
    "last_one_wins": {"options": "-c work_mem=2MB -c work_mem=3MB"},
    "boolean_spellings": {"options": "-c enable_seqscan=of -c enable_sort=ye"},
    "replication_false": {"replication": "false"},
    "protocol_extension_options": {"_pq_.some_option": "1"},
}

AFTER_STARTUP = [
    SHOW,
    "SHOW work_mem",
    "SET work_mem = '9MB'",
    "SHOW work_mem",
    "RESET work_mem",
    "SHOW work_mem",
    "SHOW application_name",
    "SET application_name = 'changed'",
    "RESET application_name",
    "SHOW application_name",
    "SELECT session_user, current_user",
    "RESET ALL",
    SHOW,
    "SELECT current_setting('my.start', true)",
    "SHOW TimeZone",
    "SHOW client_encoding",
    "DISCARD ALL",
    SHOW,
    "SELECT session_user, current_user",
]


@pytest.mark.parametrize("promise", STARTUP)
def test_session_has_its_startup_options_and_reset_restores_them(server, promise):
    same_as_direct(server, AFTER_STARTUP, **STARTUP[promise])


BAD_STARTUP = {
    "unknown_parameter": {"options": "-c no_such_parameter=1"},
    "bad_value": {"options": "-c work_mem=banana"},
    "out_of_range": {"options": "-c work_mem=1kB"},
    "postmaster_parameter": {"options": "-c shared_buffers=1GB"},
    "sighup_parameter": {"options": "-c archive_command=x"},
    "no_such_switch": {"options": "-Z"},
    "switch_without_value": {"options": "-c"},
    "switch_of_the_postmaster": {"options": "-p 1234"},
    "name_without_value": {"options": "-c work_mem"},
    "words": {"options": "hello world"},
    "unknown_encoding": {"client_encoding": "KLINGON"},
    "unknown_time_zone": {"TimeZone": "Nowhere/Land"},
    "unknown_parameter_by_name": {"no_such_parameter": "1"},
    "role_that_does_not_exist": {"options": "-c role=nobody_here"},
    "internal_parameter": {"server_version": "9"},
    "custom_name_not_valid": {"options": "-c my.1bad.=x"},
    "replication_nonsense": {"replication": "maybe"},
}


@pytest.mark.parametrize("promise", BAD_STARTUP)
def test_bad_startup_options_get_the_server_s_own_error(server, promise):
    lines = same_as_direct(server, ["SELECT 1"], ignore=r" [FLR]='[^']*'", **BAD_STARTUP[promise])
    assert any("error" in line for line in lines), lines


def test_unprivileged_user_cannot_start_with_superuser_parameter(server):
    same_as_direct(
        server, ["SHOW log_min_messages"], user="alice", options="-c log_min_messages=error", ignore=r" [FLR]='[^']*'"
    )


def test_unprivileged_session_starts_with_its_role(server):
    same_as_direct(server, AFTER_STARTUP, user="alice", options="-c role=team -c work_mem=6MB")


@pytest.mark.parametrize("database", ["postgres", "tuned"])
@pytest.mark.parametrize("user", ["alice", "preset"])
def test_settings_of_role_and_database_apply(server, user, database):
    same_as_direct(
        server,
        AFTER_STARTUP + ["SHOW my.role_setting", "SHOW statement_timeout", "SHOW lock_timeout"],
        user=user,
        database=database,
    )
    same_as_direct(
        server, AFTER_STARTUP, user=user, database=database, options="-c work_mem=4MB -c statement_timeout=55s"
    )


def test_pgoptions_reach_the_session(server):
    with psycopg.connect(server.pool(options="-c work_mem=7MB -c my.p=q"), autocommit=True) as connection:
        for _ in range(5):
            assert connection.execute("SHOW work_mem").fetchone() == ("7MB",)
            assert connection.execute("SHOW my.p").fetchone() == ("q",)


def test_unknown_startup_role_does_not_let_the_client_in(server):
    with pytest.raises(LoginFailed):
        Wire.login("127.0.0.1", server.pool_port, options="-c role=nobody_here")


def test_no_session_sees_how_its_backend_joined_the_pool(server):
    """The word it proved itself with, and the address of the client it was opened for."""
    show = ["SHOW pg_baton.attach", "SELECT current_setting('pg_baton.attach')", "RESET ALL", "SHOW pg_baton.attach"]
    same_as_direct(server, show, user="alice")
    same_as_direct(server, show + [f"SET {DEBUG_PARALLEL} = on", "SELECT current_setting('pg_baton.attach')"])


# A startup option may say half of a value, or name what another one finds.
PARTIAL = {
    "half_of_a_date_style": ({"DateStyle": "ISO"}, "datestyle = 'SQL, DMY'"),
    "two_halves_of_a_date_style": ({"options": "-c datestyle=DMY", "DateStyle": "SQL"}, "work_mem = '5MB'"),
    "two_halves_over_the_role_s": ({"options": "-c datestyle=DMY -c datestyle=SQL"}, "datestyle = 'German, YMD'"),
    "half_in_the_role": ({}, "datestyle = 'DMY'"),
    "named_in_the_role_s_path": ({"default_text_search_config": "mine"}, "search_path = hidden"),
    "named_in_its_own_path": (
        {"options": "-c search_path=hidden -c default_text_search_config=mine"},
        "search_path = pg_catalog",
    ),
    "over_the_role_s": ({"options": "-c work_mem=7MB -c my.a=b"}, "my.a = 'c'"),
    "read_write_over_the_role_s": ({"options": "-c transaction_read_only=off"}, "default_transaction_read_only = on"),
}


@pytest.mark.parametrize("promise", PARTIAL)
def test_startup_options_come_before_what_the_role_says(server, promise):
    options, setting = PARTIAL[promise]
    server.sql("CREATE SCHEMA hidden")
    server.sql("CREATE TEXT SEARCH CONFIGURATION hidden.mine (COPY = simple)")
    server.sql(f"ALTER ROLE bob SET {setting}")
    show = ["SHOW DateStyle", "SHOW default_text_search_config", "SHOW search_path", "SHOW my.a", "RESET ALL", SHOW]
    try:
        same_as_direct(server, show, user="bob", ignore=r" [FLR]='[^']*'", **options)
    finally:
        server.sql("ALTER ROLE bob RESET ALL")
        server.sql("DROP SCHEMA hidden CASCADE")


@pytest.mark.pool_only
@pytest.mark.parametrize("letter", ["\\", " "])
def test_options_too_long_for_a_new_backend_are_refused_at_once(server, letter):
    """They are escaped for it, which doubles these letters."""
    with pytest.raises(LoginFailed) as refused:
        Wire.login("127.0.0.1", server.pool_port, session_preload_libraries=letter * 5500)
    assert refused.value.fields["C"] == "54000"


def test_clients_with_a_thousand_options_each_all_come_in(server):
    """All at once, each with its own values. The dispatcher lets few of them in in one round."""
    clients = [Wire.open("127.0.0.1", server.pool_port) for _ in range(50)]
    for number, client in enumerate(clients):
        options = {f"o.o{at}": f"{number}" for at in range(900)}
        client.send(startup({"user": "postgres", "database": "postgres", **options}))
    for number, client in enumerate(clients):
        client.until_ready()
        assert client.query("SHOW o.o0") == client.query("SHOW o.o899") == [[f"{number}"]]
        client.finish()
