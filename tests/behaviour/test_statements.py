"""Prepared statements belong to a session, not to a backend."""

from __future__ import annotations

import psycopg
import pytest
from harness.compare import same_as_direct
from harness.wire import (
    Wire,
    bind,
    close_portal,
    close_statement,
    describe_portal,
    describe_statement,
    execute,
    flush,
    message,
    parse,
    query,
    sync,
)

SETUP = [
    "CREATE TABLE items (id int PRIMARY KEY, name text)",
    "INSERT INTO items SELECT i, 'item ' || i FROM generate_series(1, 100) i",
    "ANALYZE items",
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')",
]

LIST = (
    "SELECT name, statement, parameter_types, from_sql, generic_plans, custom_plans"
    " FROM pg_prepared_statements ORDER BY name"
)
TYPE_INT4, TYPE_TEXT, TYPE_UNKNOWN = 23, 25, 705

MONTH = "SELECT extract(month FROM date '1/2/2020')"

SCRIPTS: dict[str, list[str | bytes]] = {
    "sql_prepare_execute_deallocate": [
        "PREPARE one AS SELECT name FROM items WHERE id = $1",
        "EXECUTE one(1)",
        "EXECUTE one(2)",
        LIST,
        "PREPARE one AS SELECT 1",
        "DEALLOCATE one",
        "EXECUTE one(1)",
        LIST,
        "DEALLOCATE one",
    ],
    "sql_prepare_in_a_list_of_statements": [
        "SELECT 1; PREPARE a AS SELECT 'a'; PREPARE b(int) AS SELECT $1 + 1; SELECT 2",
        "EXECUTE b(4)",
        "EXECUTE a",
        LIST,
        "DEALLOCATE ALL",
        LIST,
    ],
    "sql_prepare_survives_rollback": [
        "BEGIN",
        "PREPARE r AS SELECT 'r'",
        "ROLLBACK",
        "EXECUTE r",
        LIST,
        "BEGIN",
        "DEALLOCATE r",
        "ROLLBACK",
        "EXECUTE r",
        LIST,
    ],
    "sql_prepare_of_utilities_and_writes": [
        "PREPARE w AS INSERT INTO items VALUES ($1, $2) RETURNING *",
        "BEGIN",
        "EXECUTE w(1000, 'new')",
        "ROLLBACK",
        "PREPARE v AS VALUES (1, 'a'), (2, 'b')",
        "EXECUTE v",
        "PREPARE u AS UPDATE items SET name = name WHERE id = 1",
        "EXECUTE u",
        "EXPLAIN (COSTS OFF) EXECUTE w(1, 'x')",
        "CREATE TEMP TABLE t AS EXECUTE v",
        "SELECT * FROM t",
        "DROP TABLE t",
        "EXECUTE v",
        LIST,
    ],
    "types_that_the_server_infers": [
        "PREPARE i AS SELECT id FROM items WHERE id = $1 AND name LIKE $2",
        LIST,
        "PREPARE m(mood) AS SELECT $1::text",
        "EXECUTE m('happy')",
        "EXECUTE m('grumpy')",
        parse("SELECT $1 || 'x', $2::int", "x") + describe_statement("x") + sync(),
        LIST,
        bind(["a", "5"], "x") + describe_portal() + execute() + sync(),
    ],
    "wrong_use_of_statements": [
        "EXECUTE nothing",
        "PREPARE e AS SELECT $1::int",
        "EXECUTE e",
        "EXECUTE e(1, 2)",
        "EXECUTE e('x')",
        bind([], "nothing") + execute() + sync(),
        describe_statement("nothing") + sync(),
        bind([], "e") + execute() + sync(),
        bind(["1"], "e") + execute() + sync(),
        parse("SELECT 1", "e") + sync(),
        close_statement("nothing") + sync(),
        "EXECUTE e(7)",
    ],
    "protocol_statements_stay_until_closed": [
        parse("SELECT $1::int + $2::int", "plus") + sync(),
        bind(["1", "2"], "plus") + execute() + sync(),
        bind(["3", "4"], "plus") + execute() + sync(),
        describe_statement("plus") + sync(),
        LIST,
        "EXECUTE plus(5, 6)",
        close_statement("plus") + sync(),
        bind(["1", "2"], "plus") + execute() + sync(),
        LIST,
    ],
    "binary_formats": [
        parse("SELECT $1::int4, $2::int8, $3::bytea", "b", [TYPE_INT4]) + describe_statement("b") + sync(),
        bind([b"\0\0\0\5", b"\0\0\0\0\0\0\0\7", b"\0\1\2"], "b", formats=[1], result_formats=[1])
        + describe_portal()
        + execute()
        + sync(),
        bind([b"\0\0\0\5", "8", "\\x0001"], "b", formats=[1, 0, 0], result_formats=[0, 1, 0])
        + describe_portal()
        + execute()
        + sync(),
        bind([b"\0\0\5", "8", "x"], "b", formats=[1, 0, 0]) + execute() + sync(),
    ],
    "statements_of_the_empty_query": [
        parse("", "empty") + describe_statement("empty") + sync(),
        bind([], "empty") + execute() + sync(),
        LIST,
        parse("-- only a comment") + sync(),
        bind([]) + execute() + sync(),
        query(""),
    ],
    "plan_counts_are_the_session_s": [
        parse("SELECT name FROM items WHERE id = $1", "p") + sync(),
        *[bind([str(n)], "p") + execute() + sync() for n in range(1, 9)],
        LIST,
    ],
    "forced_generic_and_custom_plans": [
        "SET plan_cache_mode = force_generic_plan",
        "PREPARE g AS SELECT name FROM items WHERE id = $1",
        "EXECUTE g(1)",
        "EXPLAIN (COSTS OFF) EXECUTE g(1)",
        LIST,
        "SET plan_cache_mode = force_custom_plan",
        "EXPLAIN (COSTS OFF) EXECUTE g(1)",
        "EXECUTE g(2)",
        LIST,
    ],
    "plan_follows_a_changed_table": [
        "CREATE TABLE changing (a int)",
        "INSERT INTO changing VALUES (1)",
        "PREPARE c AS SELECT * FROM changing",
        parse("SELECT * FROM changing", "cp") + sync(),
        "EXECUTE c",
        "ALTER TABLE changing ADD b text DEFAULT 'b'",
        "EXECUTE c",
        bind([], "cp") + execute() + sync(),
        describe_statement("cp") + sync(),
        "ALTER TABLE changing DROP b",
        "EXECUTE c",
        bind([], "cp") + describe_portal() + execute() + sync(),
        "ALTER TABLE changing ALTER a TYPE bigint",
        "EXECUTE c",
        bind([], "cp") + execute() + sync(),
        "DROP TABLE changing",
        "EXECUTE c",
        bind([], "cp") + execute() + sync(),
        LIST,
        "CREATE TABLE changing (a int)",
        "EXECUTE c",
        "DROP TABLE changing",
    ],
    "plan_follows_the_search_path": [
        "CREATE SCHEMA s1",
        "CREATE SCHEMA s2",
        "CREATE TABLE s1.t AS SELECT 'one' AS v",
        "CREATE TABLE s2.t AS SELECT 'two' AS v",
        "SET search_path = s1",
        "PREPARE sp AS SELECT v FROM t",
        "EXECUTE sp",
        "SET search_path = s2",
        "EXECUTE sp",
        "SET search_path = public",
        "EXECUTE sp",
        "SET search_path = s1",
        "EXECUTE sp",
        "DROP SCHEMA s1, s2 CASCADE",
    ],
    "statement_made_under_another_role": [
        "PREPARE ro AS SELECT current_user, count(*) FROM items",
        "SET ROLE pg_monitor",
        "EXECUTE ro",
        "RESET ROLE",
        "EXECUTE ro",
    ],
    "discard_plans_keeps_statements": ["PREPARE d AS SELECT 1", "EXECUTE d", "DISCARD PLANS", "EXECUTE d", LIST],
    "deallocate_all_and_discard_all_mean_this_session": [
        "PREPARE a AS SELECT 1",
        parse("SELECT 2", "b") + sync(),
        "DEALLOCATE ALL",
        LIST,
        "EXECUTE a",
        bind([], "b") + execute() + sync(),
        "PREPARE a AS SELECT 3",
        "DISCARD ALL",
        LIST,
    ],
    "unnamed_statement_lives_across_syncs": [
        parse("SELECT $1::int * 2") + describe_statement() + sync(),
        bind(["4"]) + execute() + sync(),
        bind(["5"]) + describe_portal() + execute() + sync(),
        describe_statement() + sync(),
        close_statement() + sync(),
        bind(["6"]) + execute() + sync(),
    ],
    "unnamed_statement_ends_with_a_simple_query": [
        parse("SELECT 'kept'") + sync(),
        bind([]) + execute() + sync(),
        "SELECT 1",
        bind([]) + execute() + sync(),
        describe_statement() + sync(),
    ],
    "unnamed_statement_that_failed_to_parse": [
        parse("SELECT 'old'") + sync(),
        parse("SELECT nonsense here") + sync(),
        bind([]) + execute() + sync(),
        parse("SELECT 'old'") + sync(),
        bind(["1"]) + sync(),
        bind([]) + execute() + sync(),
    ],
    "unnamed_statement_after_named_ones": [
        parse("SELECT 'unnamed'") + sync(),
        parse("SELECT 'named'", "n") + sync(),
        bind([]) + execute() + sync(),
        bind([], "n") + execute() + sync(),
        bind([]) + execute() + sync(),
        close_statement("n") + sync(),
        bind([]) + execute() + sync(),
    ],
    "unnamed_statement_with_declared_types": [
        parse("SELECT $1, $2", types=[TYPE_INT4, TYPE_TEXT]) + sync(),
        describe_statement() + sync(),
        bind(["1", "x"], result_formats=[1, 0]) + describe_portal() + execute() + sync(),
    ],
    "unnamed_statement_across_a_transaction": [
        parse("SELECT 'before'") + sync(),
        bind([]) + execute() + sync(),
        parse("BEGIN") + bind([]) + execute() + sync(),
        parse("SELECT 'inside'") + sync(),
        bind([]) + execute() + sync(),
        parse("COMMIT") + bind([]) + execute() + sync(),
        bind([]) + execute() + sync(),
    ],
    "unnamed_statement_dropped_table": [
        "CREATE TABLE gone (a int)",
        parse("SELECT * FROM gone") + sync(),
        bind([]) + execute() + sync(),
        parse("DROP TABLE gone", "d") + bind([], "d") + execute() + sync(),
        bind([]) + execute() + sync(),
    ],
    "named_portal_ends_with_its_transaction": [
        parse("SELECT generate_series(1, 5)", "g") + bind([], "g", "p") + execute("p", 2) + sync(),
        execute("p", 2) + sync(),
        "BEGIN",
        bind([], "g", "p") + execute("p", 2) + sync(),
        execute("p", 2) + sync(),
        close_portal("p") + sync(),
        execute("p") + sync(),
        "ROLLBACK",
    ],
    "parse_flush_describe_flush": [
        parse("SELECT 1", "f")
        + flush()
        + describe_statement("f")
        + flush()
        + bind([], "f")
        + flush()
        + execute()
        + sync()
    ],
    "many_statements": [
        *[f"PREPARE m{n} AS SELECT {n}, $1::int" for n in range(60)],
        *[f"EXECUTE m{n}({n})" for n in range(60)],
        LIST,
    ],
    "statement_of_large_text": [
        "PREPARE large AS SELECT length('" + "x" * 300000 + "')",
        "EXECUTE large",
        "SELECT length(statement) FROM pg_prepared_statements",
        "EXECUTE large",
    ],
    "names_of_odd_characters": [
        'PREPARE "a b""c" AS SELECT 1',
        'EXECUTE "a b""c"',
        parse("SELECT 2", "ünïcödé") + sync(),
        bind([], "ünïcödé") + execute() + sync(),
        'EXECUTE "ünïcödé"',
        LIST,
    ],
    "extended_errors_skip_to_sync": [
        parse("SELECT 1/0", "z") + bind([], "z") + execute() + bind([], "z") + execute() + sync(),
        parse("SELECT 1", "ok") + bind([], "nothing") + parse("SELECT 2", "never") + sync(),
        LIST,
        bind([], "never") + sync(),
        bind([], "ok") + execute() + sync(),
    ],
    "prepare_with_client_encoding": [
        "SET client_encoding = 'LATIN1'",
        message("Q", b"PREPARE l AS SELECT '\xfc'\0"),
        "EXECUTE l",
        "SET client_encoding = 'UTF8'",
        "EXECUTE l",
    ],
    "prepare_with_other_string_rules": [
        "SET standard_conforming_strings = off",
        "SET escape_string_warning = off",
        r"PREPARE s AS SELECT 'a\\b', 'c\'d'",
        "EXECUTE s",
        "SET standard_conforming_strings = on",
        "EXECUTE s",
        "EXECUTE s",
        LIST,
    ],
    "a_comparison_with_null_is_what_it_was_when_prepared": [
        "SET transform_null_equals = on",
        "PREPARE on_then AS SELECT count(*) FROM (VALUES (NULL::int), (1)) v (a) WHERE a = NULL",
        "SET transform_null_equals = off",
        "PREPARE off_then AS SELECT count(*) FROM (VALUES (NULL::int), (1)) v (a) WHERE null = a",
        "EXECUTE on_then",
        "EXECUTE on_then",
        "EXECUTE off_then",
        "SET transform_null_equals = on",
        "EXECUTE off_then",
        "EXECUTE off_then",
    ],
    "the_unnamed_statement_s_literal_is_what_was_parsed": [
        parse("SET datestyle = 'ISO, MDY'", "mdy") + sync(),
        parse("SELECT set_config('datestyle', 'ISO, MDY', false)", "function") + sync(),
        parse("ROLLBACK", "back") + sync(),
        "SET datestyle = 'ISO, DMY'",
        parse(MONTH) + bind(statement="mdy") + execute() + sync(),
        bind() + execute() + sync(),
        bind() + execute() + sync(),
        "SET datestyle = 'ISO, DMY'",
        parse(MONTH) + bind(statement="function") + execute() + sync(),
        bind() + execute() + sync(),
        bind() + execute() + sync(),
        "SET datestyle = 'ISO, DMY'",
        "BEGIN; SET LOCAL datestyle = 'ISO, MDY'",
        parse(MONTH) + bind(statement="back") + execute() + sync(),
        bind() + execute() + sync(),
        bind() + execute() + sync(),
        # set_config() while a SET clause is in force that does not belong to the statement
        "CREATE FUNCTION sets() RETURNS text LANGUAGE plpgsql SET datestyle = 'ISO, MDY' AS"
        " $$BEGIN RETURN set_config('my.own', '1', false); END$$",
        "SET datestyle = 'ISO, DMY'",
        parse(f"{MONTH}, sets()") + bind() + execute() + sync(),
        bind() + execute() + sync(),
        bind() + execute() + sync(),
        "DROP FUNCTION sets()",
    ],
    "a_literal_is_read_again_after_truncate_vacuum_and_reindex": [
        "CREATE TABLE emptied (a int PRIMARY KEY)",
        *(
            step
            for number, invalidates in enumerate(["TRUNCATE", "VACUUM FULL", "ANALYZE", "REINDEX TABLE"])
            for step in (
                "SET datestyle = 'ISO, DMY'",
                f"PREPARE again{number} AS {MONTH}, (SELECT count(*) FROM emptied)",
                "SET datestyle = 'ISO, MDY'",
                f"{invalidates} emptied",
                f"EXECUTE again{number}",
                f"EXECUTE again{number}",
            )
        ),
        "DROP TABLE emptied",
    ],
    "a_literal_is_read_again_after_a_new_replication_role": [
        "SET datestyle = 'ISO, DMY'",
        f"PREPARE again AS {MONTH}",
        "SET datestyle = 'ISO, MDY'",
        "SET session_replication_role = replica",
        "EXECUTE again",
        "EXECUTE again",
        "SET datestyle = 'ISO, DMY'",
        "EXECUTE again",
        "BEGIN",
        "SELECT set_config('session_replication_role', 'origin', true)",
        "ROLLBACK",
        "EXECUTE again",
        "EXECUTE again",
    ],
    "a_warning_of_analysis_comes_once": [
        "PREPARE literal AS SELECT '2020-01-01'::timestamp(7)",
        "PREPARE computed(time) AS SELECT $1::time(8)",
        *("EXECUTE literal", "SELECT 1", "EXECUTE computed('1:00')") * 2,
        parse("SELECT '1 s'::interval(9)") + sync(),
        *(bind() + execute() + sync(),) * 3,
        # analysed again, as on a direct connection
        "SET search_path = pg_catalog",
        "EXECUTE literal",
        "EXECUTE literal",
        "SET client_min_messages = error",
        "RESET search_path",
        "EXECUTE computed('1:00')",
        "SHOW client_min_messages",
        "RESET client_min_messages",
        "SHOW client_min_messages",
    ],
    "an_error_of_analysis_is_told": [
        "CREATE TABLE passing (a int)",
        "PREPARE late AS SELECT '2020-01-01'::timestamp(7) FROM passing",
        "DROP TABLE passing",
        "EXECUTE late",
        "EXECUTE late",
        "SHOW client_min_messages",
        "SELECT '2020-01-01'::timestamp(7)",
    ],
    "a_parameter_cast_to_unknown": [
        parse("SELECT CAST($1 AS unknown), 'other'::unknown", types=[TYPE_UNKNOWN]) + sync(),
        describe_statement() + sync(),
        bind(["unnamed"]) + execute() + sync(),
        bind(["again"]) + execute() + sync(),
        parse('INSERT INTO items VALUES (2000, $1::"unknown") RETURNING $2::Unknown::int', "named") + sync(),
        "BEGIN",
        bind(["a name", "3"], "named") + execute() + sync(),
        "ROLLBACK",
        "PREPARE by_sql AS SELECT $1::pg_catalog.UNKNOWN",
        "EXECUTE by_sql('a')",
        "EXECUTE by_sql('b')",
        LIST,
    ],
    # Describe alone makes the server analyse the statement again, by DateStyle.
    "a_literal_is_what_the_last_analysis_read": [
        "SET datestyle = 'ISO, MDY'",
        parse("SELECT extract(month FROM date '1/2/2020')", "literal") + sync(),
        "SET search_path = pg_catalog",
        "SET datestyle = 'ISO, DMY'",
        describe_statement("literal") + sync(),
        "SET datestyle = 'ISO, MDY'",
        bind(statement="literal") + execute() + sync(),
        # now on the other of two backends, which did not describe the statement
        bind(statement="literal") + execute() + sync(),
    ],
}


@pytest.mark.parametrize("promise", SCRIPTS)
def test_statements_behave_as_on_a_direct_connection(server, promise):
    same_as_direct(server, SCRIPTS[promise])


def test_prepare_time_stays(server):
    with psycopg.connect(server.pool(), autocommit=True) as session:
        session.execute("PREPARE t AS SELECT 1")
        first = session.execute("SELECT prepare_time FROM pg_prepared_statements WHERE name = 't'").fetchone()
        for _ in range(5):
            session.execute("EXECUTE t")
            assert (
                session.execute("SELECT prepare_time FROM pg_prepared_statements WHERE name = 't'").fetchone() == first
            )


def test_same_name_means_another_statement_in_each_session(server):
    sessions = [psycopg.connect(server.pool(), autocommit=True) for _ in range(10)]
    try:
        for n, session in enumerate(sessions):
            session.execute(f"PREPARE mine AS SELECT {n}")
        for _ in range(4):
            for n, session in enumerate(sessions):
                assert session.execute("EXECUTE mine").fetchone() == (n,)
        sessions[0].execute("DEALLOCATE ALL")
        for n, session in enumerate(sessions[1:], 1):
            assert session.execute("EXECUTE mine").fetchone() == (n,)
            assert session.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (1,)
        assert sessions[0].execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
    finally:
        for session in sessions:
            session.close()


def test_no_session_sees_the_last_session_s_unnamed_statement(server):
    with Wire.login("127.0.0.1", server.pool_port) as one, Wire.login("127.0.0.1", server.pool_port) as two:
        for _ in range(8):
            one.ask(parse("SELECT 'secret'") + sync())
            seen = two.ask(bind([]) + execute() + sync())
            assert [m.fields()["C"] for m in seen if m.type == "E"] == ["26000"]
            seen = one.ask(bind([]) + execute() + sync())
            assert [m.row() for m in seen if m.type == "D"] == [[b"secret"]]


# PostgresMain refuses these messages before it drops the unnamed statement.
REFUSED = {
    "parse_of_bad_bytes": message("P", b"\0SELECT '\xff'\0\0\0") + sync(),
    "parse_that_is_too_short": message("P", b"\0SELECT 1\0\0\1") + sync(),
    "parse_that_is_too_long": message("P", b"\0SELECT 1\0\0\0\0") + sync(),
    "parse_without_end": message("P", b"\0SELECT 1") + sync(),
    "query_of_bad_bytes": message("Q", b"SELECT '\xff'\0"),
    "query_that_is_too_long": message("Q", b"SELECT 1\0\0"),
    "query_without_end": message("Q", b"SELECT 1"),
}


def test_refused_message_leaves_no_foreign_unnamed_statement(make_cluster):
    server = make_cluster(parameters={"pg_baton.max_backends": 1})
    use = bind([]) + execute() + sync()
    for name, refused in REFUSED.items():
        for own in (False, True):
            with Wire.login("127.0.0.1", server.pool_port) as one, Wire.login("127.0.0.1", server.pool_port) as two:
                if own:
                    two.ask(parse("SELECT 'mine'") + sync())
                one.ask(parse("SELECT 'secret'") + sync())
                # in one packet, so that the session has no pause in which it could leave the backend
                two.send(refused, use)
                codes = [m.fields()["C"] for m in two.until_ready() if m.type == "E"]
                assert codes == ["22021" if "bad_bytes" in name else "08P01"], name
                seen = two.until_ready()
                assert [m.row() for m in seen if m.type == "D"] == ([[b"mine"]] if own else []), name
                assert [m.fields()["C"] for m in seen if m.type == "E"] == ([] if own else ["26000"]), name


def test_unnamed_statements_of_many_sessions_stay_apart(server):
    sessions = [Wire.login("127.0.0.1", server.pool_port) for _ in range(10)]
    try:
        for n, session in enumerate(sessions):
            session.ask(parse(f"SELECT {n} + $1::int") + describe_statement() + sync())
        for turn in range(4):
            for n, session in enumerate(sessions):
                seen = session.ask(bind([str(turn)]) + execute() + sync())
                assert [m.row() for m in seen if m.type == "D"] == [[str(n + turn).encode()]]
    finally:
        for session in sessions:
            session.finish()


def test_psycopg_server_side_prepare_works(server):
    with psycopg.connect(server.pool(), autocommit=True, prepare_threshold=0) as session:
        for n in range(1, 50):
            assert session.execute("SELECT name FROM items WHERE id = %s", (n,)).fetchone() == (f"item {n}",)
        with session.transaction():
            for n in range(1, 10):
                assert session.execute("SELECT name FROM items WHERE id = %s", (n,)).fetchone() == (f"item {n}",)


def test_psycopg_pipeline_mode_works(server):
    with psycopg.connect(server.pool(), autocommit=True) as session:
        with session.pipeline() as pipeline:
            cursors = []
            for n in range(1, 100):
                cursors.append(session.execute("SELECT name FROM items WHERE id = %s", (n,)))
                if n % 10 == 0:
                    pipeline.sync()
            names = [cursor.fetchone()[0] for cursor in cursors]
        assert names == [f"item {n}" for n in range(1, 100)]


def test_a_literal_survives_an_analysis_that_found_no_lock(server):
    """On each port: the statement is made anew on a second backend while another
    session holds the table."""
    for port in (server.port, server.pool_port):
        with psycopg.connect(server.direct(), autocommit=True) as holder, Wire.login("127.0.0.1", port) as session:
            session.query("SET datestyle = 'ISO, DMY'")
            session.query(f"PREPARE p AS {MONTH}, (SELECT count(*) FROM items)")
            session.query("SET datestyle = 'ISO, MDY'; SET lock_timeout = '50ms'")
            with holder.transaction():
                holder.execute("LOCK TABLE items")
                for _ in range(3):
                    seen = session.ask(query("EXECUTE p"))
                    assert [m.fields()["C"] for m in seen if m.type == "E"] == ["55P03"]
            for _ in range(4):
                assert session.query("EXECUTE p") == [["2", "100"]]


def test_other_session_s_replication_role_leaves_literals_alone(make_cluster):
    server = make_cluster(parameters={"pg_baton.max_backends": 1})
    with Wire.login("127.0.0.1", server.pool_port) as one, Wire.login("127.0.0.1", server.pool_port) as two:
        one.query("SET datestyle = 'ISO, DMY'")
        one.query(f"PREPARE p AS {MONTH}")
        assert one.query("EXECUTE p") == [["2"]]
        one.query("SET datestyle = 'ISO, MDY'")
        for role in ("replica", "origin", "replica"):
            two.query(f"SET session_replication_role = {role}")
            assert one.query("EXECUTE p") == [["2"]]
            two.query("SELECT 1")
            assert one.query("EXECUTE p") == [["2"]]
        # a session that has the setting from its start
        with Wire.login("127.0.0.1", server.pool_port, options="-c session_replication_role=local") as three:
            three.query("SELECT 1")
            assert one.query("EXECUTE p") == [["2"]]
