"""A statement that is prepared after an object was made means that object, though
the backends have known the same text, with another meaning, for long."""

from __future__ import annotations

import pytest
from harness.health import start_two_backends
from harness.wire import Wire, bind, execute, parse, sync

SETUP = [
    "CREATE SCHEMA front",
    "CREATE TABLE public.thing AS SELECT 'behind'::text AS x, 1 AS a",
    "CREATE FUNCTION public.which(bigint) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN 'behind'; END $$",
    "CREATE DOMAIN public.kind AS text DEFAULT 'behind'",
    "CREATE FUNCTION public.shown(public.thing) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN 'behind'; END $$",
    # of a literal and a time the first is chosen, for the second keeps the third from it
    "CREATE FUNCTION public.vague(time, time) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN 'behind'; END $$",
    "CREATE FUNCTION public.vague(int, time) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN 'neither'; END $$",
    "CREATE FUNCTION public.vague(timestamptz, time) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN 'front'; END $$",
]

# A statement of one value, and what hides what it means.
HIDING = {
    "a table": (
        "SELECT x FROM thing WHERE a = $1",
        ["CREATE TABLE front.thing AS SELECT 'front'::text AS x, 1 AS a"],
        ["DROP TABLE front.thing"],
    ),
    "a view": (
        "SELECT max(x) FROM (SELECT * FROM thing) t WHERE a = $1",
        ["CREATE VIEW front.thing AS SELECT 'front'::text AS x, 1 AS a"],
        ["DROP VIEW front.thing"],
    ),
    "a table renamed": (
        "SELECT min(x) FROM thing WHERE a = $1",
        ["CREATE TABLE front.other AS SELECT 'front'::text AS x, 1 AS a", "ALTER TABLE front.other RENAME TO thing"],
        ["DROP TABLE front.thing"],
    ),
    "a table moved": (
        "SELECT min(x) || '' FROM thing WHERE a = $1",
        [
            "CREATE SCHEMA away",
            "CREATE TABLE away.thing AS SELECT 'front'::text AS x, 1 AS a",
            "ALTER TABLE away.thing SET SCHEMA front",
        ],
        ["DROP TABLE front.thing", "DROP SCHEMA away"],
    ),
    "a function": (
        "SELECT which($1::int)",
        ["CREATE FUNCTION front.which(bigint) RETURNS text LANGUAGE sql AS $$SELECT 'front'$$"],
        ["DROP FUNCTION front.which"],
    ),
    "a function that fits better": (
        "SELECT which($1::int) || ''",
        ["CREATE FUNCTION public.which(int) RETURNS text LANGUAGE sql AS $$SELECT 'front'$$"],
        ["DROP FUNCTION public.which(int)"],
    ),
    "a function that fits better, called by its schema": (
        "SELECT public.which($1::int)",
        ["CREATE FUNCTION public.which(int) RETURNS text LANGUAGE sql AS $$SELECT 'front'$$"],
        ["DROP FUNCTION public.which(int)"],
    ),
    "a function, called like a column": (
        "SELECT thing.shown FROM thing WHERE a = $1",
        ["CREATE FUNCTION front.shown(public.thing) RETURNS text LANGUAGE sql AS $$SELECT 'front'$$"],
        ["DROP FUNCTION front.shown"],
    ),
    "a function renamed": (
        "SELECT which($1::int) || '' || ''",
        [
            "CREATE FUNCTION front.other(bigint) RETURNS text LANGUAGE sql AS $$SELECT 'front'$$",
            "ALTER FUNCTION front.other RENAME TO which",
        ],
        ["ALTER FUNCTION front.which RENAME TO other", "DROP FUNCTION front.other"],
    ),
    "a function that goes, though it was not meant": (
        "SELECT vague('2020-01-01 12:00', make_time($1, 0, 0))",
        ["DROP FUNCTION public.vague(int, time)"],
        ["CREATE FUNCTION public.vague(int, time) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN 'neither'; END $$"],
    ),
    "a function that is called otherwise, though it was not meant": (
        "SELECT vague('2020-01-01 12:00', make_time($1, 0, 0)) || ''",
        ["ALTER FUNCTION public.vague(int, time) RENAME TO clear"],
        ["ALTER FUNCTION public.clear(int, time) RENAME TO vague"],
    ),
    "a type": (
        "SELECT CASE WHEN pg_typeof(''::kind)::oid = to_regtype('public.kind')::oid AND $1 > 0 THEN 'behind'"
        " ELSE 'front' END",
        ["CREATE DOMAIN front.kind AS text"],
        ["DROP DOMAIN front.kind"],
    ),
}


@pytest.fixture(scope="module")
def two_backends(run):
    cluster = run.cluster(
        "hidden-names", parameters={"pg_baton.max_backends": 2, "pg_baton.force_migration": True}
    ).start()
    for statement in SETUP:
        cluster.sql(statement)
    start_two_backends(login, cluster)
    yield cluster
    cluster.finish()


def login(cluster) -> Wire:
    session = Wire.login("127.0.0.1", cluster.pool_port)
    session.query("SET search_path = front, public")
    return session


def prepared(cluster, text: str) -> Wire:
    session = login(cluster)
    session.ask(parse(text, "s", [23]) + sync())
    return session


def executed(session: Wire) -> str:
    answer = session.ask(bind(["1"], "s") + execute() + sync())
    return "".join(m.row()[0].decode() if m.type == "D" else m.fields()["M"] for m in answer if m.type in "DE")


@pytest.mark.parametrize("case", HIDING)
def test_statements_prepared_later_mean_a_new_object_everywhere(two_backends, case):
    text, make, drop = HIDING[case]
    with prepared(two_backends, text) as older:
        for _ in range(9):
            assert executed(older) == "behind"
        for statement in make:
            two_backends.sql(statement)
        with prepared(two_backends, text) as newer:
            for _ in range(9):
                assert executed(newer) == "front"
            newer.finish()
        for statement in drop:
            two_backends.sql(statement)
        with prepared(two_backends, text) as newest:
            for session in (newest, older) * 3:
                assert executed(session) == "behind"
            newest.finish()
        older.finish()


def test_objects_that_hide_nothing_cause_no_new_analysis(two_backends):
    two_backends.sql("CREATE TABLE public.steady AS SELECT 1 AS a")
    with prepared(two_backends, "SELECT a FROM steady WHERE a = $1") as session:
        for _ in range(9):
            assert executed(session) == "1"
        for number in range(40):
            session.query(f"CREATE TEMPORARY TABLE short{number} (a int) ON COMMIT DROP")
            assert executed(session) == "1"
        session.finish()
