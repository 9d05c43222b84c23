"""A session's unnamed statement is made on another backend when it is asked for, not before."""

from __future__ import annotations

import contextlib
import time

import pytest
from harness.wire import Wire, bind, close_statement, describe_statement, execute, flush, parse, sync

pytestmark = pytest.mark.pool_only

LARGE = (
    "SELECT count(*) FROM pg_backend_memory_contexts"
    " WHERE total_bytes > 200000 AND name IN ('CachedPlanSource', 'unnamed prepared statement')"
)
NAMED = {"n": "SELECT $1::int + 1", "large": LARGE, "b": "BEGIN", "c": "COMMIT", "r": "ROLLBACK", "f": "SELECT 1 / 0"}


@pytest.fixture(scope="module", params=["one", "forced"])
def cluster(run, request):
    forced = request.param == "forced"
    parameters = {"pg_baton.max_backends": 2 if forced else 1, "pg_baton.force_migration": forced}
    cluster = run.cluster(f"put-off-{request.param}", parameters=parameters).start()
    yield cluster
    cluster.finish()


@pytest.fixture
def sessions(cluster):
    """Three with a large unnamed statement each, that take turns."""
    made = [Wire.login("127.0.0.1", cluster.pool_port) for _ in range(3)]
    for number, session in enumerate(made):
        for name, text in NAMED.items():
            session.ask(parse(text, name) + sync())
        session.ask(parse(f"SELECT {number} -- {'x' * 300_000}") + sync())
    yield made
    for session in made:
        session.finish()


def ran(session: Wire, *messages: bytes, syncs: int = 1) -> list[list[str]]:
    session.send(b"".join(messages))
    rows = []
    for _ in range(syncs):
        rows += [[value.decode() for value in m.row()] for m in session.until_ready() if m.type == "D"]
    return rows


def named(name: str = "n", *values: str) -> bytes:
    return bind(values, name) + execute() + sync()


UNNAMED = bind() + execute() + sync()


def test_large_unnamed_statement_is_made_only_when_asked_for(sessions):
    """Executions of named statements leave it alone, on whatever backend; the next Bind to it finds it."""
    for _ in range(3):
        for session in sessions:
            assert ran(session, named("n", "1")) == [["2"]]
            # what was parsed here stays in its own memory; what is made of a text is in another
            assert ran(session, named("large")) in ([["0"]], [["1"]])
    for number, session in enumerate(sessions):
        assert ran(session, UNNAMED) == [[str(number)]]


def test_an_unnamed_statement_is_there_whenever_it_may_be_meant(sessions):
    """Behind other messages, in transactions, after errors, and described."""
    for _ in range(2):
        for number, session in enumerate(sessions):
            own = [str(number)]
            assert ran(session, named("n", "1"), UNNAMED, named("n", "2"), syncs=3) == [["2"], own, ["3"]]
        for number, session in enumerate(sessions):
            own = [str(number)]
            assert ran(session, bind(["4"], "n") + execute() + bind() + execute() + sync()) == [["5"], own]
        for number, session in enumerate(sessions):
            own = [str(number)]
            assert ran(session, named("b")) == []
            assert ran(session, named("n", "1")) == [["2"]]
            assert ran(session, UNNAMED) == [own]
            assert ran(session, named("c")) == []
        for number, session in enumerate(sessions):
            own = [str(number)]
            ran(session, named("b"))
            assert "E" in [m.type for m in session.ask(named("f"))]
            ran(session, named("r"))
            assert ran(session, UNNAMED) == [own]
        for session in sessions:
            ran(session, named("n", "1"))
            assert "T" in [m.type for m in session.ask(describe_statement() + sync())]
        for number, session in enumerate(sessions):
            assert ran(session, bind(["1"], "n") + execute() + flush() + sync()) == [["2"]]
            assert ran(session, UNNAMED) == [[str(number)]]


def test_an_unnamed_statement_that_has_gone_stays_gone(sessions):
    """Closed, or dropped by a Query, after it was put off."""
    for session in sessions:
        assert ran(session, named("n", "1")) == [["2"]]
    sessions[0].ask(close_statement() + sync())
    sessions[1].query("SELECT 1")
    for session in sessions[:2]:
        assert ran(session, named("n", "1")) == [["2"]]
        (error,) = [m for m in session.ask(UNNAMED) if m.type == "E"]
        assert error.fields()["C"] == "26000"
    assert ran(sessions[2], UNNAMED) == [["2"]]


def pieces(session: Wire, messages: bytes, cut: int) -> None:
    """Sends so that a backend takes the session after the first piece, and may give it back."""
    session.send(messages[:cut])
    time.sleep(0.2)
    session.send(messages[cut:])


@pytest.mark.parametrize("cut", [3, len(bind()), len(bind() + execute())])
def test_an_unnamed_statement_survives_a_request_in_two_pieces(cluster, cut):
    with contextlib.ExitStack() as stack:
        own, *others = [stack.enter_context(Wire.login("127.0.0.1", cluster.pool_port)) for _ in range(3)]
        for _ in range(3):
            own.ask(parse("SELECT 42") + sync())
            for other in others:
                other.ask(parse("SELECT 'of another'") + sync())
            pieces(own, UNNAMED, cut)
            assert [m.row() for m in own.until_ready() if m.type == "D"] == [[b"42"]]


def test_a_dropped_unnamed_statement_does_not_come_back(cluster):
    with Wire.login("127.0.0.1", cluster.pool_port) as own:
        for _ in range(4):
            own.ask(parse("SELECT 42") + sync())
            own.query("SELECT 1")  # drops it, perhaps on another backend
            pieces(own, UNNAMED, 3)
            assert [m.fields()["C"] for m in own.until_ready() if m.type == "E"] == ["26000"]
