"""Where every custom plan would be the generic one, a new session's first executions
are not planned again; what it is shown, and what it gets, is as on a connection of
its own.  Where a value may matter, it is planned for."""

from __future__ import annotations

import pytest
from harness.health import start_two_backends
from harness.wire import Wire, bind, execute, parse, query, sync

SETUP = [
    "CREATE ROLE plain",
    "CREATE SCHEMA front",
    "CREATE TABLE keyed (a int PRIMARY KEY, b int, t varchar(10))",
    "CREATE UNIQUE INDEX ON keyed (t)",
    "INSERT INTO keyed SELECT n, CASE WHEN n > 990 THEN n ELSE 0 END, n::text FROM generate_series(1, 1000) n",
    "CREATE INDEX ON keyed (b)",
    "CREATE TABLE line (a int, number int, PRIMARY KEY (a, number))",
    "INSERT INTO line SELECT n % 100, n FROM generate_series(1, 1000) n",
    "CREATE TABLE log (a int, b text)",
    "CREATE TABLE partly (a int PRIMARY KEY, b int)",
    "INSERT INTO partly SELECT n, n FROM generate_series(1, 1000) n",
    "CREATE INDEX ON partly (b) WHERE a > 900",
    "CREATE TABLE described (LIKE keyed INCLUDING ALL)",
    "CREATE STATISTICS about (mcv) ON a, b FROM described",
    "CREATE TABLE parent (a int PRIMARY KEY)",
    "CREATE TABLE child () INHERITS (parent)",
    "CREATE TABLE split (a int PRIMARY KEY) PARTITION BY RANGE (a)",
    "CREATE TABLE split_1 PARTITION OF split FOR VALUES FROM (0) TO (1000)",
    "CREATE TABLE guarded (a int PRIMARY KEY)",
    "ALTER TABLE guarded ENABLE ROW LEVEL SECURITY",
    "CREATE VIEW seen AS SELECT * FROM keyed",
    "CREATE FUNCTION twice(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1 * 2; END'",
    "ANALYZE",
]

# The value of $1 has no part in the plan.
ALIKE = [
    "SELECT b FROM keyed WHERE a = $1",
    "SELECT b FROM keyed WHERE $1 = a AND b < 50",
    "SELECT b FROM keyed WHERE t = $1",
    "SELECT k.b, l.number FROM keyed k JOIN line l ON l.number = k.b WHERE k.a = $1",
    "UPDATE keyed SET b = b + $1 WHERE a = $1",
    "DELETE FROM keyed WHERE a = $1",
    "INSERT INTO log VALUES ($1, 'text') RETURNING a",
    "SELECT b FROM keyed WHERE a = $1 FOR UPDATE",
    "SELECT $1::smallint::bigint + b FROM keyed WHERE a = $1",
]
# It has, or may have.
DIFFERENT = [
    "SELECT a FROM keyed WHERE b = $1",
    "SELECT b FROM keyed WHERE a < $1",
    "SELECT b FROM keyed WHERE a = $1 + 1",
    "SELECT b FROM keyed WHERE a = $1 OR a = 7",
    "SELECT b FROM keyed WHERE a IN ($1, 7)",
    "SELECT b FROM keyed WHERE a = $1 AND b = $1",
    "SELECT b FROM keyed WHERE a = $1 AND a > 5",
    "SELECT number FROM line WHERE a = $1",
    "SELECT number FROM line WHERE a = 1 AND number = $1",
    "SELECT l.number FROM keyed k JOIN line l ON l.a = k.a WHERE k.a = $1",
    "SELECT l.number FROM keyed k JOIN line l USING (a) WHERE a = $1",
    "SELECT EXISTS (SELECT FROM keyed WHERE b = $1)",
    "SELECT b FROM keyed WHERE a = 7 LIMIT $1",
    "SELECT b, $1::int FROM keyed WHERE a = 7 ORDER BY 2",
    "SELECT generate_series(1, $1)",
    "SELECT twice($1)",
    "SELECT CASE WHEN $1 > 5 THEN twice(b) END FROM keyed WHERE a = 7",
    "SELECT b FROM keyed WHERE a = $1 AND b < twice(3000)",
    "SELECT b FROM partly WHERE a = $1",
    "SELECT b FROM described WHERE a = $1",
    "SELECT a FROM parent WHERE a = $1",
    "SELECT a FROM split WHERE a = $1",
    "SELECT a FROM guarded WHERE a = $1",
    "SELECT b FROM seen WHERE a = $1",
    "WITH one AS (SELECT $1::int AS a) SELECT * FROM one",
    "VALUES ($1), ('7')",
]

# None has a row; a value for which planning fails.
FAILING = {
    "UPDATE keyed SET t = $1 WHERE a = 0": "longer than ten",
    "UPDATE keyed SET b = $1::bigint WHERE a = 0": "3000000000",
    "UPDATE keyed SET b = b + $1::bigint::int WHERE a = 0": "3000000000",
    "SELECT 1 / $1::smallint::int FROM keyed WHERE a = 0": "0",
    "SELECT substring(t, 'x', $1) FROM keyed WHERE a = 0": "two",
    "DELETE FROM keyed WHERE a = 0 RETURNING 1 / $1": "0",
}

COUNTERS = "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE name = 's'"


@pytest.fixture(scope="module")
def two_backends(run):
    cluster = run.cluster(
        "spared-plans",
        parameters={
            "pg_baton.max_backends": 2,
            "pg_baton.force_migration": True,
            "session_preload_libraries": "auto_explain",
            "auto_explain.log_min_duration": 0,
            "auto_explain.log_level": "notice",
        },
    ).start()
    for statement in SETUP:
        cluster.sql(statement)
    start_two_backends(login, cluster)
    yield cluster
    cluster.finish()


def login(cluster) -> Wire:
    return Wire.login("127.0.0.1", cluster.pool_port)


def plan(session: Wire, value: str) -> str:
    """The plan that the statement was executed with."""
    session.query("BEGIN")
    answer = session.ask(bind([value], "s") + execute() + sync())
    assert not [m.fields() for m in answer if m.type == "E"]
    answer += session.ask(query("COMMIT"))  # which ends it, and shows a query's
    (notice,) = [m.fields()["M"] for m in answer if m.type == "N"]
    # its first two lines are the query; from 16 on its parameters follow
    return "\n".join(line for line in notice.split("\n")[2:] if not line.startswith("Query Parameters: "))


def prepare(session: Wire, text: str) -> None:
    session.ask(parse(text, "s") + sync())


def prepared(cluster, text: str) -> Wire:
    session = login(cluster)
    prepare(session, text)
    return session


def teach(cluster, text: str) -> None:
    """A session executes the statement on both backends until it has a generic plan."""
    with prepared(cluster, text) as session:
        for _ in range(9):
            plan(session, "7")
        session.finish()


def counted(session: Wire) -> list[int]:
    ((*row,),) = [m.row() for m in session.ask(query(COUNTERS)) if m.type == "D"]
    return [int(value) for value in row]


def explained(session: Wire, value: str) -> str:
    return "\n".join(
        m.row()[0].decode() for m in session.ask(query(f"EXPLAIN (COSTS OFF) EXECUTE s({value})")) if m.type == "D"
    )


@pytest.mark.parametrize("text", ALIKE)
@pytest.mark.parametrize("prepared_here", [True, False])
def test_first_executions_get_no_planning_if_no_value_matters(two_backends, text, prepared_here):
    teach(two_backends, text)
    with prepared(two_backends, text) as session:
        if not prepared_here:
            session.query("SELECT 1")
        generic = plan(session, "7")
        for turn in range(8):
            assert plan(session, str(turn)) == generic
        assert counted(session) == [4, 5]
        session.finish()


@pytest.mark.parametrize("text", DIFFERENT)
def test_first_executions_get_planned_for_values_that_matter(two_backends, text):
    teach(two_backends, text)
    with prepared(two_backends, text) as session:
        for turn in range(5):
            assert "$1" not in plan(session, str(turn))
        assert counted(session) == [0, 5]
        session.finish()


@pytest.mark.parametrize("port", ["port", "pool_port"])
@pytest.mark.parametrize("text", FAILING)
def test_values_that_planning_refuses_fail_without_a_row(two_backends, text, port):
    with Wire.login("127.0.0.1", getattr(two_backends, port)) as session:
        prepare(session, text)
        for _ in range(9):
            plan(session, "7" if FAILING[text].isdigit() else "#")
        session.finish()
    with Wire.login("127.0.0.1", getattr(two_backends, port)) as session:
        prepare(session, text)
        for _ in range(4):
            answer = session.ask(bind([FAILING[text]], "s") + execute() + sync())
            assert [m.type for m in answer if m.type in "2CE"] == ["E"]
        session.finish()


def test_session_sees_plans_and_counters_as_a_direct_one_does(two_backends):
    teach(two_backends, ALIKE[0])
    with prepared(two_backends, ALIKE[0]) as session:
        for turn in range(8):
            assert counted(session) == [max(0, turn - 5), min(turn, 5)]
            assert plan(session, str(turn))
        session.finish()
    for executions in range(7):
        with prepared(two_backends, ALIKE[0]) as session:
            for turn in range(executions):
                plan(session, "7")
            assert ("$1" in explained(session, "9")) == (executions >= 5)
            session.finish()


def test_what_a_session_has_set_about_plans_counts_from_then_on(two_backends):
    teach(two_backends, ALIKE[0])
    with prepared(two_backends, ALIKE[0]) as session:
        plan(session, "7")
        session.query("SET plan_cache_mode = force_generic_plan")
        plan(session, "7")
        assert counted(session) == [1, 1]
        session.query("SET plan_cache_mode = force_custom_plan")
        assert "$1" not in plan(session, "7")
        assert counted(session) == [1, 2]
        session.query("RESET plan_cache_mode")
        plan(session, "7")
        session.query("BEGIN; SET LOCAL plan_cache_mode = force_generic_plan")
        session.ask(bind(["7"], "s") + execute() + sync())
        session.query("COMMIT")
        plan(session, "7")
        assert counted(session) == [2, 4]
        session.finish()


def test_statement_prepared_after_hiding_uses_the_table_in_front(two_backends):
    with login(two_backends) as session:
        session.query("SET search_path = front, public")
        prepare(session, "SELECT b + 1 FROM keyed WHERE a = $1")
        for _ in range(9):
            plan(session, "7")
        two_backends.sql("CREATE TABLE front.keyed (LIKE keyed INCLUDING ALL)")
        two_backends.sql("INSERT INTO front.keyed VALUES (7, 41)")
        try:
            with login(two_backends) as newer:
                newer.query("SET search_path = front, public")
                newer.query("BEGIN")
                prepare(newer, "SELECT b + 1 FROM keyed WHERE a = $1")
                for _ in range(6):
                    answer = newer.ask(bind(["7"], "s") + execute() + sync())
                    assert [m.row() for m in answer if m.type == "D"] == [[b"42"]]
                newer.query("COMMIT")
                newer.finish()
        finally:
            two_backends.sql("DROP TABLE front.keyed")
        session.finish()


@pytest.mark.parametrize("port", ["port", "pool_port"])
def test_each_custom_plan_has_what_a_function_returns_then(two_backends, port):
    """Of a function that is wrongly called immutable; a generic plan keeps it."""
    two_backends.sql("CREATE TABLE rate AS SELECT 0 AS v")
    two_backends.sql(
        "CREATE FUNCTION rate() RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT v FROM rate); END'"
    )
    try:
        for _ in range(4):
            with Wire.login("127.0.0.1", getattr(two_backends, port)) as session:
                prepare(session, "SELECT rate() FROM keyed WHERE a = $1")
                for turn in range(5):
                    two_backends.sql(f"UPDATE rate SET v = {turn}")
                    answer = session.ask(bind(["700"], "s") + execute() + sync())
                    assert [m.row() for m in answer if m.type == "D"] == [[str(turn).encode()]]
                for _ in range(4):
                    session.ask(bind(["700"], "s") + execute() + sync())
                session.finish()
    finally:
        two_backends.sql("DROP TABLE rate; DROP FUNCTION rate()")


def test_index_that_values_matter_for_counts_once_created(two_backends):
    two_backends.sql("CREATE TABLE later (a int PRIMARY KEY, b int)")
    text = "SELECT b FROM later WHERE a = $1"
    teach(two_backends, text)
    two_backends.sql("CREATE INDEX ON later (b) WHERE a > 900")
    teach(two_backends, text)
    with prepared(two_backends, text) as session:
        assert "$1" not in plan(session, "7")
        session.finish()
