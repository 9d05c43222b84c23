"""A transaction holds a backend that others share for no longer than
pg_baton.transaction_timeout: then its session ends, as by transaction_timeout of 17."""

from __future__ import annotations

import psycopg
import pytest
from harness.health import wait_until
from harness.wire import Message, Wire, bind, execute, parse, query, sync

pytestmark = pytest.mark.pool_only

LIMIT = "300ms"
SETUP = [
    "CREATE ROLE limited LOGIN",
    f"ALTER ROLE limited SET pg_baton.transaction_timeout = '{LIMIT}'",
    "CREATE ROLE free LOGIN",
    "CREATE TABLE things (a int)",
    "GRANT ALL ON things TO limited",
]


@pytest.fixture(scope="module", params=["normal", "forced"])
def own(run, request):
    cluster = run.cluster(
        f"transaction-timeout-{request.param}",
        parameters={"pg_baton.max_backends": 2, "pg_baton.force_migration": request.param == "forced"},
    )
    cluster.start()
    for statement in ["CREATE EXTENSION pg_baton", *SETUP]:
        cluster.sql(statement)
    yield cluster
    cluster.finish()


def login(server, user: str = "limited", **options) -> Wire:
    return Wire.login("127.0.0.1", server.pool_port, user=user, **options)


def last_words(messages: list[Message]) -> tuple[str, str]:
    fatal = [one for one in messages if one.type == "E"][-1]
    fields = fatal.fields()
    assert (fields["S"], fields["C"], fields["M"]) == (
        "FATAL", "25P04", "terminating connection due to transaction timeout"
    )  # fmt: skip
    return fields["C"], fields["D"]


def wait_for_no_session(server, user: str = "limited") -> None:
    wait_until(
        lambda: server.sql(f"SELECT count(*) FROM pg_baton_sessions WHERE user_name = '{user}'") == [(0,)],
        what="the session has ended",
    )


TOO_LONG: dict[str, list[bytes]] = {
    "a_statement": [query("SELECT pg_sleep(60)")],
    "a_block_that_idles": [query("BEGIN; INSERT INTO things VALUES (1)")],
    "a_block_that_has_failed": [query("BEGIN"), query("SELECT 1/0")],
    "a_block_of_short_statements": [query("BEGIN"), *[query("SELECT pg_sleep(0.1)")] * 20],
    "a_batch_without_its_sync": [parse("SELECT pg_sleep(60)") + bind() + execute()],
    "a_statement_that_catches_errors": [
        query(
            "DO $$BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN OTHERS OR query_canceled THEN PERFORM pg_sleep(60); END$$"
        )
    ],
    "copy_in": [query("COPY things FROM STDIN")],
}


@pytest.mark.parametrize("what", TOO_LONG)
def test_transaction_too_long_on_shared_backend_ends_its_session(own, what):
    with login(own) as session, login(own, "free") as other:
        session.send(*TOO_LONG[what], *([sync()] if what == "a_batch_without_its_sync" else []))
        code, detail = last_words(session.until_closed())
        assert "pg_baton.transaction_timeout" in detail
        assert own.sql("SELECT count(*) FROM things") == [(0,)]
        assert other.query("SELECT 1") == [["1"]]
    wait_for_no_session(own)


def test_the_error_is_the_same_where_the_log_is_silent(own):
    own.sql("ALTER ROLE limited SET log_min_messages = 'panic'")
    try:
        with login(own) as session:
            session.send(query("SELECT pg_sleep(60)"))
            last_words(session.until_closed())
    finally:
        own.sql("ALTER ROLE limited RESET log_min_messages")


def test_short_transactions_and_idle_sessions_are_not_timed(own):
    with login(own) as session, login(own) as other:
        for _ in range(8):
            for wire in (session, other):
                wire.query("SELECT pg_sleep(0.1)")
        # as in stock, each transaction of a procedure is timed by itself
        session.query("DO $$BEGIN FOR i IN 1..8 LOOP PERFORM pg_sleep(0.1); COMMIT; END LOOP; END$$")
        session.send(*[query("SELECT pg_sleep(0.1)")] * 8)
        for _ in range(8):
            assert [one.type for one in session.until_ready()][-2:] == ["C", "Z"]
        other.query("SELECT pg_sleep(0.2)")


def test_a_session_that_keeps_its_backend_anyway_is_not_timed(own):
    with login(own) as session:
        session.query("LISTEN here")
        wait_until(
            lambda: own.sql("SELECT mode FROM pg_baton_sessions WHERE user_name = 'limited'") == [("dedicated",)],
            what="it is dedicated",
        )
        session.query("SELECT pg_sleep(0.6)")
        session.query("UNLISTEN *")
        session.send(query("SELECT pg_sleep(60)"))
        last_words(session.until_closed())


def test_only_a_superuser_sets_it_and_a_reload_counts_at_once(own):
    with psycopg.connect(own.pool(user="free"), autocommit=True) as session:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("SET pg_baton.transaction_timeout = 0")
        session.execute("SELECT pg_sleep(0.6)")
        own.set_parameters({"pg_baton.transaction_timeout": LIMIT})
        own.reload()
        try:
            # on each of the backends
            show = "SHOW pg_baton.transaction_timeout"
            wait_until(lambda: [session.execute(show).fetchone() for _ in range(6)] == [(LIMIT,)] * 6, what="a reload")
            with pytest.raises(psycopg.Error, match="transaction timeout"):
                session.execute("SELECT pg_sleep(60)")
        finally:
            own.set_parameters({"pg_baton.transaction_timeout": None})
            own.reload()
    options = f"-c pg_baton.transaction_timeout={LIMIT}"
    with psycopg.connect(own.pool(options=options), autocommit=True) as superuser:
        superuser.execute("SELECT 1")
        with pytest.raises(psycopg.Error, match="transaction timeout"):
            superuser.execute("SELECT pg_sleep(60)")
    with psycopg.connect(own.pool(), autocommit=True) as superuser:
        superuser.execute(f"SET pg_baton.transaction_timeout = '{LIMIT}'")
        with pytest.raises(psycopg.Error, match="transaction timeout"):
            superuser.execute("SELECT pg_sleep(60)")


def test_a_session_that_turns_the_limit_off_goes_on(own):
    with psycopg.connect(own.pool(user="postgres"), autocommit=True) as session:
        session.execute(f"SET pg_baton.transaction_timeout = '{LIMIT}'")
        session.execute("RESET pg_baton.transaction_timeout")
        session.execute("SELECT pg_sleep(0.6)")
