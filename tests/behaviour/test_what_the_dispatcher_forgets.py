"""The dispatcher keeps confidential data of clients in its memory no longer than it
needs them: a process that reads that memory finds the data that are on their way at
that moment and the data that sessions have, but no earlier data.
"""

from __future__ import annotations

import secrets
import time

import psycopg
import pytest
from harness.certificates import Authority, make_secure
from harness.health import wait_until
from harness.process_memory import stands_in_memory
from harness.wire import Wire, message, query, startup

pytestmark = pytest.mark.pool_only

ROLES = """
CREATE EXTENSION pg_baton;
CREATE ROLE in_clear LOGIN PASSWORD 'a {password}';
CREATE ROLE nobody LOGIN PASSWORD 'another';
"""
# More than a record of TLS holds, and more than a relay reads at once.
LARGE = 200_000


def marker() -> str:
    return "marker" + secrets.token_hex(12)


def is_kept(server, text: str) -> bool:
    try:
        return stands_in_memory(server.dispatcher_pids()[0], text.encode())
    except PermissionError:
        pytest.skip("another process's memory cannot be read here")


def assert_forgotten(server, *texts: str) -> None:
    """Threads that have just passed something on may still be about to overwrite it."""
    wait_until(lambda: not any(is_kept(server, text) for text in texts), 20, "it is not forgotten")


@pytest.fixture(scope="module")
def password():
    return marker()


@pytest.fixture(scope="module", params=["normal", "forced"])
def server(run, request, password):
    cluster = run.cluster(
        f"forgets {request.param}",
        parameters={
            # A session that comes takes the backend from the last session, whose context is stored then.
            # With a second backend, started because a session waited, both would stay where they are.
            "pg_baton.max_backends": 2 if request.param == "forced" else 1,
            "pg_baton.force_migration": request.param == "forced",
            "pg_baton.dispatcher_log": "debug",
        },
        hba=["host all in_clear,nobody all password", "local all in_clear,nobody trust"],
    )
    make_secure(cluster, Authority(run.directory / f"certificates {request.param}"))
    cluster.start()
    cluster.sql(ROLES.format(password=password))
    yield cluster
    cluster.finish()


def open_wire(server, secure: bool) -> Wire:
    wire = Wire.open("127.0.0.1", server.pool_port)
    return wire.secure() if secure else wire


def test_what_tls_clients_send_and_are_sent_is_not_kept(server):
    asked, answered = marker(), marker()
    backwards = answered[::-1]
    with psycopg.connect(server.pool(sslmode="require"), autocommit=True) as session:
        assert session.execute(f"SELECT '{asked}', reverse('{backwards}')").fetchone() == (asked, answered)
        times = LARGE // len(asked)
        text = f"SELECT length('{asked * times}'), repeat(reverse('{backwards}'), {times})"
        assert session.execute(text).fetchone() == (len(asked) * times, answered * times)
        assert session.execute("SELECT %s::text || reverse(%s)", (asked, backwards)).fetchone() == (asked + answered,)
        assert_forgotten(server, asked, answered, backwards)
    assert_forgotten(server, asked, answered, backwards)


def test_what_waits_at_a_relay_is_not_kept_when_it_has_gone_on(server):
    """In both directions: for a while, each side does not read what the other side has written."""
    asked, answered = marker(), marker()
    with open_wire(server, secure=True) as wire:
        wire.log_in("postgres", "postgres")
        times = 20 * LARGE // len(asked)
        text = f"SELECT repeat(reverse('{answered[::-1]}'), {times})"
        wire.sock.settimeout(60)
        wire.send(query("SELECT pg_sleep(1)"))
        wire.send(query(f"SELECT length('{asked * (2 * LARGE // len(asked))}')"), query(text))
        time.sleep(2)
        answers = [wire.until_ready(60) for _ in range(3)]
        assert [m.row()[0] for m in answers[2] if m.type == "D"] == [(answered * times).encode()]
        assert_forgotten(server, asked, answered)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_a_password_is_not_kept_when_it_has_let_its_role_in(server, password, secure):
    with psycopg.connect(
        server.pool(user="in_clear", password=f"a {password}", sslmode="require" if secure else "disable"),
        application_name=password[::-1],
    ) as session:
        session.execute("SELECT 1")
        # The search finds data that are in the memory.
        assert is_kept(server, password[::-1])
        assert_forgotten(server, password)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("length", [24, 5000])
def test_a_wrong_password_is_not_kept(server, secure, length):
    wrong = marker()
    text = (wrong * length)[:length] if length > 100 else wrong
    with open_wire(server, secure) as wire:
        wire.send(startup({"user": "in_clear", "database": "postgres"}))
        assert wire.read().type == "R"
        whole = message("p", text.encode() + b"\0")
        # The message comes in pieces, as on a slow network.
        for at in range(0, len(whole), 7 if length < 100 else 999):
            wire.send(whole[at : at + (7 if length < 100 else 999)])
            time.sleep(0.005)
        (error,) = wire.until_closed()
        assert error.fields()["C"] == "28P01"
    assert_forgotten(server, wrong)


def test_statements_and_parameters_of_gone_sessions_are_not_kept(server):
    name, value, statement = marker(), marker(), marker()
    with psycopg.connect(server.pool(), autocommit=True) as session, psycopg.connect(server.pool()) as other:
        session.execute(f"SET my.{name} = '{value}'")
        session.execute(f"PREPARE p AS SELECT '{statement}', $1::int")
        for _ in range(3):
            other.execute("SELECT 1")
            other.commit()
            session.execute("EXECUTE p(1)")
        assert all(is_kept(server, text) for text in (name, value, statement))
        session.execute(f"SET my.{name} = 'another'")
        session.execute("DEALLOCATE p")
        other.execute("SELECT 1")
        other.commit()
        session.execute("SELECT 1")
        assert_forgotten(server, value, statement)
        session.execute(f"SET my.{name} = '{value}'")
    assert_forgotten(server, name, value, statement)


def test_half_a_message_that_was_looked_at_is_not_kept(server):
    asked = marker()
    with open_wire(server, secure=False) as wire:
        wire.log_in("postgres", "postgres")
        whole = query(f"SELECT '{asked}', length('{'x' * 2000}')")
        for at in range(0, len(whole), 500):
            wire.send(whole[at : at + 500])
            time.sleep(0.1)
        rows = [m.row() for m in wire.until_ready() if m.type == "D"]
        assert rows == [[asked.encode(), b"2000"]]
        assert_forgotten(server, asked)
