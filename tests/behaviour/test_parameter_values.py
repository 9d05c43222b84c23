"""Which values our own parameters take, and what a mistake in a file does."""

from __future__ import annotations

import psycopg
import pytest
from harness.wire import Wire


@pytest.mark.pool_only
@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("dispatcher_log", ["debug", " warn, baton::dispatcher=TRACE", "off"], ["verbose", "", "warn,,info", "=info"]),
        ("dedicated_objects", ["", 'a, "B c"'], ['"x', "a b", "a,,b"]),
        ("listen_addresses", ["", "*", "localhost, ::1"], ["a b c;;", "a,", '"x']),
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused(server, name, good, bad):
    def alter(value: str) -> None:
        quoted = value.replace("'", "''")
        server.sql(f"ALTER SYSTEM SET pg_baton.{name} = '{quoted}'")

    try:
        for value in bad:
            with pytest.raises(psycopg.errors.InvalidParameterValue, match=f'"pg_baton.{name}"'):
                alter(value)
        for value in good:
            alter(value)
    finally:
        server.sql(f"ALTER SYSTEM RESET pg_baton.{name}")


@pytest.mark.pool_only
def test_a_mistake_in_a_file_is_a_warning_and_the_server_starts(make_cluster):
    server = make_cluster(
        parameters={"pg_baton.nonsense": "1", "pg_baton.max_backends": "0", "pg_baton.dispatcher_log": "verbose"}
    )
    assert server.sql("SHOW pg_baton.max_backends") == [("20",)]
    assert server.sql("SHOW pg_baton.dispatcher_log") == [("info",)]
    for text in (
        r'WARNING:  invalid configuration parameter name "pg_baton.nonsense"',
        r"WARNING:  0 is outside the valid range for parameter \"pg_baton.max_backends\"",
        r'WARNING:  invalid value for parameter "pg_baton.dispatcher_log": "verbose"',
    ):
        server.wait_for_log(text, start=0)
    with Wire.login("127.0.0.1", server.pool_port) as session:
        assert session.query("SELECT 1") == [["1"]]
