"""Many prepared statements in many sessions: a backend keeps each statement once, by its
content; a statement costs nothing where it is not used; each session still has its own."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from harness.compare import same_as_direct
from harness.health import start_two_backends, wait_until
from harness.processes import ITS_PROCESS
from harness.wire import Wire, bind, close_statement, describe_statement, execute, parse, query, sync

LISTED = 'SELECT name, statement, generic_plans, custom_plans FROM pg_prepared_statements ORDER BY name COLLATE "C"'

# Plans that the backend keeps saved, including the views of the session in place (prepared-statements.md).
KEPT = "SELECT count(*) FROM pg_backend_memory_contexts WHERE name = 'CachedPlanSource'"


def make(run, name: str, **parameters) -> object:
    settings = {f"pg_baton.{key}": value for key, value in parameters.items()}
    cluster = run.cluster(name, parameters=settings).start()
    cluster.sql("CREATE TABLE numbered AS SELECT a, a % 7 AS b FROM generate_series(1, 100) a")
    return cluster


@pytest.fixture(scope="module")
def one_backend(run):
    cluster = make(run, "many-one", max_backends=1)
    yield cluster
    cluster.finish()


@pytest.fixture(scope="module")
def two_backends(run):
    cluster = make(run, "many-two", max_backends=2, force_migration=True)
    start_two_backends(login, cluster)
    yield cluster
    cluster.finish()


def login(cluster) -> Wire:
    return Wire.login("127.0.0.1", cluster.pool_port)


def rows(session: Wire, text: str) -> list[list[str]]:
    return [[value.decode() for value in m.row()] for m in session.ask(query(text)) if m.type == "D"]


def text_of(number: int) -> str:
    return f"SELECT count(*) + {number} FROM numbered WHERE b < $1"


def prepare(session: Wire, names: dict[str, int]) -> None:
    session.ask(b"".join(parse(text_of(number), name) for name, number in names.items()) + sync())


def executed(session: Wire, name: str, parameter: int) -> int:
    answer = session.ask(bind([str(parameter)], name) + execute() + sync())
    (row,) = [m for m in answer if m.type == "D"]
    return int(row.row()[0])


def kept(session: Wire) -> int:
    return int(rows(session, KEPT)[0][0])


def test_a_statement_is_kept_once_for_all_sessions_and_names(one_backend):
    chance = random.Random(7)
    sessions = [login(one_backend) for _ in range(400)]
    before = kept(sessions[0])
    names = []
    for session in sessions:
        own = {f"s{chance.random()}": number for number in chance.sample(range(200), 60)}
        prepare(session, own)
        names.append(own)
    for session, own in zip(sessions, names):
        answer = session.ask(b"".join(bind(["7"], name) + execute() for name in own) + sync())
        assert [int(m.row()[0]) for m in answer if m.type == "D"] == [100 + number for number in own.values()]
    assert kept(sessions[0]) - before == 200
    for session in sessions:
        session.finish()


def test_sessions_that_take_turns_execute_what_was_analysed_once(run):
    """The server looks up the statement of a Bind message before it begins a transaction."""
    cluster = run.cluster("many-analysed", parameters={"pg_baton.max_backends": 1, "log_parser_stats": True}).start()
    cluster.sql("CREATE TABLE numbered AS SELECT a, a % 7 AS b FROM generate_series(1, 100) a")
    sessions = [login(cluster) for _ in range(2)]
    for session in sessions:
        prepare(session, {"s": 1})
        assert executed(session, "s", 7) == 101
    before = cluster.log_file.read_text().count("PARSE ANALYSIS STATISTICS")
    for session in sessions * 10:
        assert executed(session, "s", 7) == 101
    assert cluster.log_file.read_text().count("PARSE ANALYSIS STATISTICS") == before
    for session in sessions:
        session.finish()
    cluster.finish()


def test_backend_caches_are_bounded_and_sessions_keep_statements(run):
    """A backend has more than 1 MB of other data, so it keeps no statement that no session has."""
    cluster = make(run, "many-bound", max_backends=1, backend_cache_memory="1MB")
    sessions = [login(cluster) for _ in range(5)]
    before = kept(sessions[0])
    for index, session in enumerate(sessions):
        prepare(session, {f"s{number}": index * 100 + number for number in range(30)})
    for _ in range(2):
        for index, session in enumerate(sessions):
            for number in range(30):
                assert executed(session, f"s{number}", 7) == 100 + index * 100 + number
        sessions[0].query("SELECT 1")
        wait_until(lambda: kept(sessions[0]) - before <= 30, what="what no session has is dropped")
    for session in sessions:
        session.finish()
    cluster.finish()


def test_a_backend_holds_nothing_of_a_thousand_unused_statements(two_backends):
    with login(two_backends) as session:
        prepare(session, {f"s{number}": number for number in range(1000)})
        places = {}
        for _ in range(6):
            assert executed(session, "s500", 7) == 600
            pid, count = rows(
                session,
                "SELECT harness.its_process(), count(*) FROM pg_backend_memory_contexts"
                " WHERE name = 'CachedPlanSource'",
            )[0]
            places[pid] = int(count)
            session.query("SELECT 1")
        assert len(places) == 2 and min(places.values()) < 20
        assert [name for name, *_ in rows(session, LISTED)] == sorted(f"s{number}" for number in range(1000))
        session.finish()


def test_equal_statements_keep_counters_and_names_per_session(two_backends):
    with login(two_backends) as one, login(two_backends) as other:
        prepare(one, {"mine": 1, "also mine": 1})
        prepare(other, {"yours": 1})
        for turn in range(12):
            assert executed(one, "mine", 7) == 101
            if turn % 3 == 0:
                assert executed(other, "yours", 7) == 101
                assert executed(one, "also mine", 7) == 101
        counted = [[int(generic) + int(custom), int(custom)] for _, _, generic, custom in rows(one, LISTED)]
        assert counted == [[4, 4], [12, 5]]
        ((_, _, generic, custom),) = rows(other, LISTED)
        assert [int(generic), int(custom)] == [0, 4]
        one.finish()
        other.finish()


@pytest.mark.parametrize("how", ["DEALLOCATE s1", "DEALLOCATE ALL", "DISCARD ALL", "Close"])
def test_a_session_that_drops_statements_drops_its_own(two_backends, how):
    with login(two_backends) as one, login(two_backends) as other:
        for session in (one, other):
            prepare(session, {f"s{number}": number for number in range(50)})
        for session in (one, other, one, other):
            assert executed(session, "s1", 7) == 101
        one.ask(close_statement("s1") + sync() if how == "Close" else query(how))
        left = {f"s{number}" for number in range(50) if number != 1} if how in ("Close", "DEALLOCATE s1") else set()
        for _ in range(3):
            assert {name for name, *_ in rows(one, LISTED)} == left
            assert [m.fields()["C"] for m in one.ask(bind(["7"], "s1") + sync()) if m.type == "E"] == ["26000"]
            assert executed(other, "s1", 7) == 101
            assert len(rows(other, LISTED)) == 50
        prepare(one, {"s1": 2})
        assert [executed(session, "s1", 7) for session in (one, other) * 3] == [102, 101] * 3
        one.finish()
        other.finish()


def test_a_name_that_is_taken_is_taken_on_every_backend(two_backends):
    with login(two_backends) as session:
        prepare(session, {"taken": 1})
        for _ in range(3):
            for message in (parse("SELECT 2", "taken") + sync(), query("PREPARE taken AS SELECT 2")):
                assert [m.fields()["C"] for m in session.ask(message) if m.type == "E"] == ["42P05"]
        assert executed(session, "taken", 7) == 101
        session.finish()


def test_names_that_no_session_has_cost_nothing_for_long(one_backend):
    """A client may stay on its backend and try one name after the other."""
    size = "SELECT sum(total_bytes) FROM pg_backend_memory_contexts WHERE name LIKE 'pg_baton%statements'"
    with login(one_backend) as session:
        sizes = []
        for start in range(0, 20_000, 5_000):
            for first in range(start, start + 5_000, 500):
                names = [f"n{number}" for number in range(first, first + 500)]
                session.ask(b"".join(parse("SELECT 1", name) + close_statement(name) for name in names) + sync())
            sizes.append(int(rows(session, size)[0][0]))
        assert max(sizes) <= sizes[0] + 65_536
        session.finish()


def test_wrongly_immutable_functions_read_own_session_parameters(two_backends):
    two_backends.sql(
        "CREATE OR REPLACE FUNCTION tenant() RETURNS text LANGUAGE plpgsql IMMUTABLE"
        " AS $$ BEGIN RETURN current_setting('app.tenant', true); END $$"
    )
    sessions = {}
    for tenant in ("one", "two", None):
        session = sessions[tenant] = login(two_backends)
        if tenant is not None:
            session.query(f"SET app.tenant = '{tenant}'")
        session.ask(parse("SELECT coalesce(tenant(), 'none')", "who") + describe_statement("who") + sync())
    for _ in range(4):
        for tenant, session in sessions.items():
            answer = [m for m in session.ask(bind([], "who") + execute() + sync()) if m.type == "D"]
            assert answer[0].row()[0].decode() == (tenant or "none")
    for session in sessions.values():
        session.finish()


def its_process(session: Wire) -> int:
    return int(rows(session, ITS_PROCESS)[0][0])


def most_memory_mb(process: int) -> int:
    """The most memory that the process has ever had."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())[1]) // 1024


def test_of_a_long_string_a_backend_reads_the_needed_statement(two_backends):
    """The text of a PREPARE is its whole query string, and two backends serve the session
    in turns.  If the backend that has to make only the small statement also read the
    500,000 numbers, it would need 30 MB and more for them, too."""
    numbers = ", ".join(["1"] * 500_000)
    with login(two_backends) as session:
        # under load a transaction may find the same backend again
        both = set()
        wait_until(lambda: len(both) == 2 or both.add(its_process(session)), what="two backends")
        *_, reader = rows(
            session, f"SELECT 1 WHERE 1 IN ({numbers}); PREPARE small(int) AS SELECT $1 + 1; {ITS_PROCESS}"
        )
        (other,) = both - {int(reader[0])}
        had = most_memory_mb(other)

        def executes_there() -> bool:
            answer = rows(session, f"BEGIN; EXECUTE small(41); {ITS_PROCESS}; COMMIT")
            assert answer[0] == ["42"]
            return int(answer[1][0]) == other

        wait_until(executes_there, what="the other makes the small one")
        assert most_memory_mb(other) - had < 15


def test_an_error_in_a_long_string_s_statement_keeps_its_place(two_backends):
    """The position is right however the other statements of the string end, and in any encoding."""
    statements = {
        "plain": "PREPARE {} AS SELECT 1 + no_such_column",
        "after comments": "  -- é; '\n/* é; */ PREPARE {} AS\nSELECT 'é', 1 + no_such_column",
        "escapes": "PREPARE {} AS SELECT E'\\'', 'it''s; é', 1 + no_such_column  ",
        "last": "PREPARE {} AS SELECT $$é;$$, 1 + no_such_column",
    }
    prepared = {name: f"s{n}" for n, name in enumerate(statements)}
    table = "CREATE TABLE columned AS SELECT 1 AS no_such_column"
    text = "; ".join(statements[name].format(prepared[name]) + " FROM columned" for name in statements)
    script = [table, text, *[step for name in prepared.values() for step in (f"EXECUTE {name}",) * 2]]
    script += ["ALTER TABLE columned RENAME no_such_column TO other"]
    script += [f"EXECUTE {name}" for name in prepared.values()]
    script += ["SELECT name, statement FROM pg_prepared_statements ORDER BY name"]
    seen = same_as_direct(two_backends, script, teardown="DROP TABLE columned")
    positions = [line for line in seen if "P=" in line]
    assert len(positions) == len(statements)
