"""A prepared statement's plan is its session's own: no session gets what
another one's parameters or role have made of the same text."""

from __future__ import annotations

import pytest
from harness.health import wait_until
from harness.wire import Wire, query

SETUP = [
    "CREATE ROLE allowed",
    "CREATE ROLE plain",
    "CREATE FUNCTION answer() RETURNS int LANGUAGE sql AS 'SELECT 42'",
    "REVOKE EXECUTE ON FUNCTION answer() FROM PUBLIC",
    "GRANT EXECUTE ON FUNCTION answer() TO allowed",
    "CREATE FUNCTION executes() RETURNS void LANGUAGE plpgsql SET extra_float_digits = -10 AS"
    " $$ BEGIN EXECUTE 'EXECUTE p'; END $$",
    # What a foreign key's action does, and fires, is done as the table's owner.
    "CREATE TABLE parent AS SELECT generate_series(1, 100) AS a",
    "ALTER TABLE parent ADD PRIMARY KEY (a)",
    "CREATE TABLE child (a int REFERENCES parent ON DELETE CASCADE)",
    "INSERT INTO child SELECT a FROM parent",
    "CREATE FUNCTION executes_too() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN EXECUTE 'EXECUTE p'; RETURN OLD; END $$",
    "CREATE TRIGGER executes BEFORE DELETE ON child FOR EACH ROW EXECUTE FUNCTION executes_too()",
    "ALTER TABLE child OWNER TO allowed",
    "GRANT SELECT, DELETE ON parent TO plain",
]

DIGITS = "SELECT (1.0::float8 / 3)::text"

# What one session does with a statement in a single stay on a backend, and what
# another one with the same statement must get from it.
DONE_ELSEWHERE: dict[str, tuple[list[str], str, list[str], str]] = {
    "set_and_left_in_a_transaction": (
        [],
        DIGITS,
        ["BEGIN", "SET extra_float_digits = -10", "EXECUTE p"],
        "0.3333333333333333",
    ),
    "set_and_set_back": (
        [],
        DIGITS,
        ["SET extra_float_digits = -10; EXECUTE p; RESET extra_float_digits"],
        "0.3333333333333333",
    ),
    "set_and_rolled_back": (
        [],
        DIGITS,
        ["BEGIN", "SET extra_float_digits = -10", "EXECUTE p", "ROLLBACK"],
        "0.3333333333333333",
    ),
    "set_by_a_function": (
        [],
        DIGITS,
        ["SELECT set_config('extra_float_digits', '-10', false)", "EXECUTE p", "RESET extra_float_digits"],
        "0.3333333333333333",
    ),
    "set_while_a_function_runs": ([], DIGITS, ["SELECT executes()"], "0.3333333333333333"),
    "set_and_kept_until_the_other_has_it_too": (
        [],
        DIGITS,
        ["EXECUTE p", "SET extra_float_digits = -10", "EXECUTE p"],
        "0.3333333333333333",
    ),
    "set_after_it_was_looked_at": (
        [],
        DIGITS,
        [
            "BEGIN",
            "SELECT count(*) FROM pg_prepared_statements",
            "SET extra_float_digits = -10",
            "EXECUTE p",
            "ROLLBACK",
        ],
        "0.3333333333333333",
    ),
    "another_role": (["SET ROLE plain"], "SELECT answer()", ["BEGIN", "SET ROLE allowed", "EXECUTE p"], "42501"),
    "a_foreign_key_s_action": (
        ["SET ROLE plain"],
        "SELECT answer()",
        ["DELETE FROM parent WHERE a = (SELECT min(a) FROM parent)"],
        "42501",
    ),
    "a_foreign_key_s_action_after_it_was_looked_at": (
        ["SET ROLE plain"],
        "SELECT answer()",
        [
            "BEGIN",
            "SELECT count(*) FROM pg_prepared_statements",
            "DELETE FROM parent WHERE a = (SELECT min(a) FROM parent)",
            "COMMIT",
        ],
        "42501",
    ),
}


@pytest.fixture(scope="module")
def two_backends(run):
    cluster = run.cluster(
        "statement-plans", parameters={"pg_baton.max_backends": 2, "pg_baton.force_migration": True}
    ).start()
    for statement in SETUP:
        cluster.sql(statement)
    cluster.sql("CREATE EXTENSION pg_baton")
    yield cluster
    cluster.finish()


def executed(session: Wire) -> str:
    """The one value, or the error's code."""
    seen = [m for m in session.ask(query("EXECUTE p")) if m.type in "DE"]
    assert len(seen) == 1
    return seen[0].row()[0].decode() if seen[0].type == "D" else seen[0].fields()["C"]


@pytest.mark.parametrize("case", DONE_ELSEWHERE)
@pytest.mark.parametrize("turns", [0, 1])
def test_plan_made_under_other_settings_serves_no_other_session(two_backends, case, turns):
    before, text, done, expected = DONE_ELSEWHERE[case]
    # the text is the test's own, so that no other test's table is taken over
    prepare = f"PREPARE p AS {text} /* {case} {turns} */"

    def login(name: str) -> Wire:
        session = Wire.login("127.0.0.1", two_backends.pool_port, application_name=name)
        for statement in [*before, prepare]:
            session.query(statement)
        return session

    with login("keeps") as keeps, login("leaves") as leaves:
        for _ in range(2):
            leaves.query("SELECT 1")
        for statement in done:
            leaves.query(statement)
        leaves.finish()
        ended = "SELECT count(*) = 0 FROM pg_baton_sessions WHERE application_name = 'leaves'"
        wait_until(lambda: two_backends.sql(ended) == [(True,)], 20, "the session has ended")
        with login("comes") as comes:
            for _ in range(turns):
                comes.query("SELECT 1")
            assert [executed(comes) for _ in range(4)] == [expected] * 4
            comes.finish()
        keeps.finish()
