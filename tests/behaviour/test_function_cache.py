"""PL/pgSQL keeps functions as compiled and planned for their caller's settings.

plpgsql keeps compiled functions and their plans for the life of a process. A
session gets the result that it would get on a connection of its own, whichever
session has called the function on that backend before, and under any settings.
"""

from __future__ import annotations

import pytest
from harness.health import wait_until
from harness.wire import QueryFailed, Wire

SETUP = """
CREATE SCHEMA t1; CREATE TABLE t1.cfg AS SELECT 7 AS v;
CREATE SCHEMA t2; CREATE TABLE t2.cfg AS SELECT 'abc'::text AS v;
CREATE ROLE adm; CREATE ROLE plain; GRANT USAGE ON SCHEMA t1, t2 TO PUBLIC;
CREATE TABLE fired (said text);
SET check_function_bodies = off;

CREATE FUNCTION noon() RETURNS timestamptz LANGUAGE plpgsql AS
  $$BEGIN RETURN timestamptz '2024-06-01 12:00'; END$$;
CREATE FUNCTION month() RETURNS int LANGUAGE plpgsql AS
  $$BEGIN RETURN extract(month FROM '1/2/2020'::date); END$$;
CREATE FUNCTION of_tenant() RETURNS text LANGUAGE plpgsql AS
  $$DECLARE x cfg.v%TYPE; BEGIN SELECT v INTO x FROM cfg; RETURN x; END$$;
CREATE FUNCTION secret() RETURNS int LANGUAGE sql AS 'SELECT 42';
REVOKE EXECUTE ON FUNCTION secret() FROM PUBLIC; GRANT EXECUTE ON FUNCTION secret() TO adm;
CREATE FUNCTION uses_secret() RETURNS int LANGUAGE plpgsql AS $$BEGIN RETURN secret(); END$$;
CREATE FUNCTION conflict(a int) RETURNS int LANGUAGE plpgsql AS
  $$DECLARE r int; BEGIN SELECT a INTO r FROM (VALUES (7)) v(a); RETURN r; END$$;
CREATE FUNCTION strict() RETURNS int LANGUAGE plpgsql AS
  $$DECLARE r int; i int := 3; BEGIN SELECT 1 INTO STRICT r WHERE i = 4; RETURN r; END$$;
CREATE FUNCTION is_null(a int) RETURNS bool LANGUAGE plpgsql AS $$BEGIN RETURN a = NULL; END$$;
CREATE FUNCTION third() RETURNS text LANGUAGE plpgsql AS $$BEGIN RETURN (1.0::float8 / 3)::text; END$$;
CREATE FUNCTION bytes() RETURNS text LANGUAGE plpgsql AS $$BEGIN RETURN '\\001'::bytea::text; END$$;
CREATE FUNCTION quoted() RETURNS text LANGUAGE plpgsql AS $$BEGIN RETURN 'a\\\\b'; END$$;
CREATE FUNCTION says_month() RETURNS trigger LANGUAGE plpgsql AS
  $$BEGIN NEW.said := extract(month FROM '1/2/2020'::date); RETURN NEW; END$$;
CREATE TRIGGER says BEFORE INSERT ON fired FOR EACH ROW EXECUTE FUNCTION says_month();

CREATE FUNCTION month_as(style text) RETURNS int LANGUAGE plpgsql AS
  $$BEGIN PERFORM set_config('datestyle', style, true);
          RETURN extract(month FROM '1/2/2020'::date); END$$;
CREATE FUNCTION month_fixed() RETURNS int LANGUAGE plpgsql SET datestyle = 'ISO, DMY' AS
  $$BEGIN RETURN month(); END$$;
CREATE FUNCTION secret_for_all() RETURNS int LANGUAGE plpgsql SECURITY DEFINER AS
  $$BEGIN RETURN uses_secret(); END$$;
CREATE FUNCTION created() RETURNS text LANGUAGE plpgsql AS
  $$DECLARE x cfg.v%TYPE; BEGIN SELECT v INTO x FROM cfg; RETURN x; END$$;

CREATE FUNCTION quotes() RETURNS text LANGUAGE plpgsql AS $$BEGIN RETURN quote_ident('abc'); END$$;
CREATE VIEW seen AS SELECT 1 AS v;
CREATE FUNCTION sees() RETURNS int LANGUAGE plpgsql AS $$BEGIN RETURN (SELECT v FROM seen); END$$;

CREATE TYPE pair AS (a int);
CREATE FUNCTION pair_cmp(x pair, y pair) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
  $$BEGIN RETURN CASE extract(month FROM '1/2/2020'::date) WHEN 2 THEN 1 ELSE -1 END; END$$;
CREATE FUNCTION pair_lt(x pair, y pair) RETURNS bool LANGUAGE sql AS 'SELECT pair_cmp(x, y) < 0';
CREATE OPERATOR <<< (LEFTARG = pair, RIGHTARG = pair, FUNCTION = pair_lt);
CREATE OPERATOR CLASS pair_ops DEFAULT FOR TYPE pair USING btree AS
  OPERATOR 1 <<<, FUNCTION 1 pair_cmp(pair, pair);

CREATE TYPE duo AS (a int);
CREATE FUNCTION duo_cmp(x duo, y duo) RETURNS int LANGUAGE sql IMMUTABLE AS
  $$SELECT CASE extract(month FROM '1/2/2020'::date) WHEN 2 THEN 1 ELSE -1 END$$;
CREATE FUNCTION duo_lt(x duo, y duo) RETURNS bool LANGUAGE sql AS 'SELECT duo_cmp(x, y) < 0';
CREATE OPERATOR <<< (LEFTARG = duo, RIGHTARG = duo, FUNCTION = duo_lt);
CREATE OPERATOR CLASS duo_ops DEFAULT FOR TYPE duo USING btree AS
  OPERATOR 1 <<<, FUNCTION 1 duo_cmp(duo, duo);
"""

# Statements of the first session; statements of the second; the query whose answer the second gets.
CROSSINGS = {
    "time_zone": (["SET timezone = 'Asia/Tokyo'"], ["SET timezone = 'UTC'"], "SELECT noon()"),
    "date_style": (["SET datestyle = 'ISO, DMY'"], [], "SELECT month()"),
    "date_style_of_a_transaction": (["BEGIN", "SET LOCAL datestyle = 'ISO, DMY'"], [], "SELECT month()"),
    "search_path": (["SET search_path = t1, public"], ["SET search_path = t2, public"], "SELECT of_tenant()"),
    "temporary_table": (
        ["BEGIN", "SET LOCAL search_path = t2, public", "CREATE TEMP TABLE cfg AS SELECT 7 AS v"],
        ["SET search_path = t2, public"],
        "SELECT of_tenant()",
    ),
    "role": (["SET ROLE adm"], ["SET ROLE plain"], "SELECT uses_secret()"),
    "variable_conflict": (["SET plpgsql.variable_conflict = use_column"], [], "SELECT conflict(1)"),
    "print_strict_params": (["SET plpgsql.print_strict_params = on"], [], "SELECT strict()"),
    "transform_null_equals": (["SET transform_null_equals = on"], [], "SELECT is_null(NULL)"),
    "extra_float_digits": (["SET extra_float_digits = -10"], [], "SELECT third()"),
    "bytea_output": (["SET bytea_output = escape"], [], "SELECT bytes()"),
    "standard_conforming_strings": (["SET standard_conforming_strings = off"], [], "SELECT quoted()"),
    "quote_all_identifiers": (
        ["SET quote_all_identifiers = off"],
        ["SET quote_all_identifiers = on"],
        "SELECT quotes()",
    ),
    "restrict_nonsystem_relation_kind": (
        ["SET restrict_nonsystem_relation_kind = ''"],
        ["SET restrict_nonsystem_relation_kind = 'view'"],
        "SELECT sees()",
    ),
    "trigger": (["SET datestyle = 'ISO, DMY'"], [], "INSERT INTO fired VALUES ('') RETURNING said"),
    "do_block": (["SET datestyle = 'ISO, DMY'"], [], "DO $$BEGIN RAISE EXCEPTION '%', month(); END$$"),
    "comparison_kept_by_the_type_cache": (
        ["SET datestyle = 'ISO, DMY'"],
        [],
        "SELECT btarraycmp(ARRAY[ROW(1)]::pair[], ARRAY[ROW(2)]::pair[])",
    ),
    "comparison_in_sql_kept_by_the_type_cache": (
        ["SET datestyle = 'ISO, DMY'"],
        [],
        "SELECT btarraycmp(ARRAY[ROW(1)]::duo[], ARRAY[ROW(2)]::duo[])",
    ),
    "settings_changed_inside": (["SELECT month_as('ISO, DMY')"], [], "SELECT month_as('ISO, MDY')"),
    "helper_of_a_function_with_a_set_clause": (["SELECT month_fixed()"], [], "SELECT month()"),
    "helper_of_a_security_definer": (["SELECT secret_for_all()"], ["SET ROLE plain"], "SELECT uses_secret()"),
    "created_under_other_settings": (
        [
            "SET datestyle = 'ISO, DMY'",
            "SET search_path = t1, public",
            "CREATE OR REPLACE FUNCTION public.created() RETURNS text LANGUAGE plpgsql AS"
            " $$DECLARE x cfg.v%TYPE; BEGIN SELECT v INTO x FROM cfg; RETURN x; END$$",
        ],
        ["SET search_path = t2, public"],
        "SELECT public.created()",
    ),
}


@pytest.fixture(scope="module", params=["normal", "forced"])
def cluster(run, request):
    """One backend for all sessions, or two between which each session must alternate."""
    forced = request.param == "forced"
    cluster = run.cluster(
        f"functions-{request.param}",
        parameters={"pg_baton.max_backends": 2 if forced else 1, "pg_baton.force_migration": forced},
    )
    try:
        cluster.start()
        cluster.sql(SETUP)
        yield cluster
    finally:
        cluster.finish()


def answer(session: Wire, sql: str) -> str:
    try:
        return str(session.query(sql))
    except QueryFailed as failure:
        return str({key: failure.fields.get(key) for key in "CMD"})


def prepare(session: Wire, steps: list[str]) -> None:
    for step in steps:
        session.query(step)


@pytest.mark.parametrize("name", CROSSINGS)
def test_a_function_is_compiled_and_planned_for_its_own_caller(cluster, name):
    first_does, second_does, question = CROSSINGS[name]
    if name == "restrict_nonsystem_relation_kind":
        if not cluster.sql(f"SELECT name FROM pg_settings WHERE name = '{name}'"):
            pytest.skip("came with a minor release")

    with Wire.login("127.0.0.1", cluster.port) as alone:
        prepare(alone, second_does)
        right = answer(alone, question)

    with Wire.login("127.0.0.1", cluster.pool_port) as first, Wire.login("127.0.0.1", cluster.pool_port) as second:
        for _ in range(2):
            prepare(first, first_does)
            theirs = answer(first, question)
            if first_does[0] == "BEGIN":
                first.query("ROLLBACK")
            prepare(second, second_does)
            for _ in range(3):
                assert answer(second, question) == right
            # a transaction's setting is over; and the answer of a function that changes
            # settings itself depends on the session's own earlier calls
            if first_does[0] != "BEGIN" and name != "settings_changed_inside":
                assert answer(first, question) == theirs
                assert answer(second, question) == right


ENDS = """
DROP TABLE IF EXISTS months;
CREATE TABLE months (place serial, month int);
CREATE OR REPLACE PROCEDURE month_after_end() LANGUAGE plpgsql AS
  $$DECLARE m int; BEGIN {how}; m := extract(month FROM '1/2/2020'::date); INSERT INTO months (month) VALUES (m); END$$;
CREATE OR REPLACE PROCEDURE sets_and_calls() LANGUAGE plpgsql AS
  $$BEGIN {sets}; CALL month_after_end(); END$$;
"""


@pytest.mark.parametrize(
    "sets", ["SET LOCAL datestyle = 'ISO, DMY'", "PERFORM set_config('datestyle', 'ISO, DMY', true)"]
)
@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK"])
def test_transaction_end_in_a_procedure_undoes_caller_settings(cluster, how, sets):
    """The procedure then makes its plans under other settings than it was called with."""
    found = []
    for port in (cluster.port, cluster.pool_port):
        cluster.sql(ENDS.format(how=how, sets=sets))
        for style, call in (("MDY", "sets_and_calls"), ("DMY", "month_after_end"), ("DMY", "month_after_end")):
            with Wire.login("127.0.0.1", port, datestyle=f"ISO, {style}") as session:
                session.query(f"CALL {call}()")
        found.append(cluster.sql("SELECT month FROM months ORDER BY place"))
    assert found[0] == found[1]


MARK = """
CREATE TABLE kind (v int);
CREATE FUNCTION kind() RETURNS text LANGUAGE plpgsql AS
  $$DECLARE x kind.v%TYPE; BEGIN RETURN pg_typeof(x); END$$;
CREATE FUNCTION kind_fixed() RETURNS text LANGUAGE plpgsql SET search_path = public SECURITY DEFINER AS
  $$DECLARE x kind.v%TYPE; BEGIN RETURN pg_typeof(x) || ' ' || kind(); END$$;
"""


@pytest.mark.pool_only
def test_functions_compile_once_for_sessions_with_equal_settings(cluster):
    cluster.sql(MARK)
    sessions = [Wire.login("127.0.0.1", cluster.pool_port) for _ in range(4)]
    both = "SELECT kind(), kind_fixed()"
    try:
        for _ in range(3):
            for session in sessions:
                session.query("SET application_name = 'other'")
                for _ in range(2):  # on both backends, if there are two
                    assert session.query(both) == [["integer", "integer integer"]]
        for turn in range(3):
            for number, session in enumerate(sessions):
                if turn == 1 and number == 0:
                    # another environment needs functions compiled for it alone
                    session.query("BEGIN; SET LOCAL datestyle = 'ISO, DMY'")
                    assert session.analyses("SELECT kind()") > 1
                    session.query("ROLLBACK")
                assert session.analyses(both) == 1
    finally:
        for session in sessions:
            session.finish()
        cluster.sql("DROP FUNCTION kind(), kind_fixed(); DROP TABLE kind")


@pytest.mark.pool_only
def test_what_is_kept_for_many_environments_is_bounded(cluster):
    count = "SELECT count(*) FROM pg_backend_memory_contexts WHERE name = 'PL/pgSQL function' AND ident LIKE 'own%'"
    cluster.sql("".join(f"CREATE SCHEMA many{n}; CREATE TABLE many{n}.own AS SELECT {n} AS v;" for n in range(40)))
    cluster.sql(
        "SET check_function_bodies = off; CREATE FUNCTION own() RETURNS int LANGUAGE plpgsql AS"
        " $$DECLARE x own.v%TYPE; BEGIN SELECT v INTO x FROM own; RETURN x; END$$"
    )
    with Wire.login("127.0.0.1", cluster.pool_port) as one, Wire.login("127.0.0.1", cluster.pool_port) as two:
        pair = "SELECT btarraycmp(ARRAY[ROW(1)]::pair[], ARRAY[ROW(2)]::pair[])"
        for _ in range(3):
            for n in range(40):
                for session, which in ((one, n), (two, 39 - n)):
                    session.query(f"SET search_path = many{which}, public")
                    assert session.query("SELECT own()") == [[str(which)]]
                    assert session.query(pair) == [["-1"]]
        assert max(int(session.query(count)[0][0]) for session in (one, two)) >= 20
        cluster.set_parameters({"pg_baton.backend_cache_memory": "1MB"})
        cluster.reload()
        wait_until(lambda: max(int(s.query(count)[0][0]) for s in (one, two)) <= 2, what="they are freed")
        for n in range(40):
            one.query(f"SET search_path = many{n}, public")
            assert one.query("SELECT own()") == [[str(n)]]
        cluster.set_parameters({"pg_baton.backend_cache_memory": "64MB"})
        cluster.reload()
    cluster.sql("".join(f"DROP SCHEMA many{n} CASCADE;" for n in range(40)) + "DROP FUNCTION own()")


def test_replaced_and_dropped_functions_are_new_for_everybody(cluster):
    make = "CREATE OR REPLACE FUNCTION version() RETURNS int LANGUAGE plpgsql AS $$BEGIN RETURN %d; END$$"
    styles = ["ISO, DMY", "ISO, MDY", "ISO, YMD"]
    sessions = [Wire.login("127.0.0.1", cluster.pool_port) for _ in styles]
    try:
        for session, style in zip(sessions, styles):
            session.query(f"SET datestyle = '{style}'")
        for number in range(1, 5):
            sessions[number % 3].query((make % number).replace("version", "public.version"))
            for _ in range(2):
                for session in sessions:
                    messages = session.query("SELECT public.version()")
                    assert messages == [[str(number)]]
        sessions[0].query("DROP FUNCTION public.version()")
        for session in sessions:
            with pytest.raises(QueryFailed):
                session.query("SELECT public.version()")
    finally:
        for session in sessions:
            session.finish()


@pytest.mark.pool_only
def test_functions_may_nest_across_settings_and_fail_there(cluster):
    """Functions recurse and raise exceptions, and procedures COMMIT, while tables
    change. (A direct connection keeps the literal of month()'s first call.)"""
    cluster.sql(
        """
        CREATE FUNCTION deep(n int) RETURNS text LANGUAGE plpgsql AS $$
        BEGIN
          IF n = 0 THEN RETURN 1 / n; END IF;
          EXECUTE format('SET LOCAL datestyle = %L', CASE n % 2 WHEN 0 THEN 'ISO, DMY' ELSE 'ISO, MDY' END);
          EXECUTE format('SET LOCAL extra_float_digits = %s', n % 18 - 15);
          RETURN month() || ' ' || deep(n - 1);
        EXCEPTION WHEN division_by_zero THEN RETURN 'end';
        END$$;
        CREATE PROCEDURE steps() LANGUAGE plpgsql AS $$
        BEGIN
          FOR i IN 1..3 LOOP
            SET LOCAL datestyle = 'ISO, DMY';
            INSERT INTO fired VALUES (''); COMMIT;
            INSERT INTO fired VALUES (''); ROLLBACK;
            PERFORM month();
          END LOOP;
        END$$;
        """
    )
    with Wire.login("127.0.0.1", cluster.pool_port) as one, Wire.login("127.0.0.1", cluster.pool_port) as two:
        for _ in range(3):
            assert one.query("SELECT deep(40)") == [
                [" ".join(["1", "2"][n % 2 == 0] for n in range(40, 0, -1)) + " end"]
            ]
            assert two.query("SELECT month()") == [["1"]]
            one.query("CALL steps()")
            assert two.query("SELECT month(), month_fixed()") == [["1", "2"]]
            with pytest.raises(QueryFailed):
                one.query("SELECT month_fixed(), 1 / (month() - 1)")
    cluster.sql("DROP FUNCTION deep(int); DROP PROCEDURE steps()")


def test_a_backend_s_first_function_may_be_a_security_definer_s(cluster):
    """PostgreSQL does not ask a hook whether to watch such a function."""
    cluster.sql("CREATE DATABASE fresh")
    cluster.sql(
        "CREATE FUNCTION month() RETURNS int LANGUAGE plpgsql AS"
        " $$BEGIN RETURN extract(month FROM '1/2/2020'::date); END$$;"
        "CREATE FUNCTION definer() RETURNS int LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN RETURN month(); END$$",
        dbname="fresh",
    )
    sessions = [Wire.login("127.0.0.1", cluster.pool_port, database="fresh") for _ in range(2)]
    try:
        sessions[0].query("SET datestyle = 'ISO, DMY'")
        for _ in range(3):
            for session, right in zip(sessions, "21"):
                assert session.query("SELECT definer()") == [[right]]
                assert session.query("SELECT month()") == [[right]]
    finally:
        for session in sessions:
            session.finish()
    cluster.sql("DROP DATABASE fresh")


@pytest.mark.parametrize("before", ["SELECT 1", "SELECT setseed(0.5)"])
def test_functions_compile_for_the_session_s_own_temporary_table(cluster, before):
    """They compile for that table whichever statement dedicates the session."""
    for value in ("7", "'abc'::text", "true"):
        with Wire.login("127.0.0.1", cluster.pool_port) as session:
            session.query("SET search_path = t2, public")
            session.query(before)
            session.query(f"CREATE TEMP TABLE cfg AS SELECT {value} AS v")
            assert session.query("SELECT of_tenant() = v::text FROM cfg") == [["t"]]
