"""What a backend keeps for several sessions is used by one only if it would have
come to the same result itself, at that moment (docs/design/shared-caches.md).

Each case is a history: one session does something, something changes, another
session does it.  What the other one gets is compared with a server's own port."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from harness.health import start_two_backends
from harness.wire import QueryFailed, Wire, bind, execute, parse, sync

TURNS = 5


@dataclass
class History:
    setup: list[str]
    work: list[str]  # of each session, several times
    prepare: list[str] = field(default_factory=list)  # of each session, once
    between: list[str] = field(default_factory=list)  # by a superuser, elsewhere
    one: list[str] = field(default_factory=list)  # of the first session as it begins
    other: list[str] = field(default_factory=list)
    role: str = "postgres"
    afterwards: list[str] = field(default_factory=list)


TENANT = [
    "CREATE ROLE low LOGIN",
    "GRANT USAGE ON SCHEMA w TO low",
    "CREATE TABLE w.account (tenant text, v text)",
    "INSERT INTO w.account VALUES ('one', 'secret one'), ('two', 'secret two')",
    "GRANT SELECT ON w.account TO low",
    "CREATE FUNCTION w.tenant() RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT current_setting('app.tenant', true)$$",
    "ALTER TABLE w.account ENABLE ROW LEVEL SECURITY",
    "CREATE POLICY p ON w.account USING (tenant = w.tenant())",
]
DROP_LOW = ["DROP OWNED BY low", "DROP ROLE low"]

NESTED = ["CREATE TYPE w.within AS (a int)", "CREATE TYPE w.pair AS (i w.within, x int)"]
PAIR = ["CREATE TYPE w.pair AS (a int, b text)"]
BODY = "CREATE FUNCTION w.body() RETURNS text LANGUAGE sql STABLE AS $$SELECT '(2,y)'::pair::text$$"
CLASS = "CREATE OPERATOR CLASS w.{name} DEFAULT FOR TYPE w.k USING btree AS OPERATOR 1 w.{order}, OPERATOR 3 w.=, OPERATOR 5 w.{other}, FUNCTION 1 w.{name}_cmp"
OPCLASS = [
    "CREATE TYPE w.k AS (v int)", "CREATE TABLE w.keys (a w.k)", "INSERT INTO w.keys SELECT ROW(n)::w.k FROM generate_series(1, 3) n",
    *(f"CREATE FUNCTION w.{name}(w.k, w.k) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$BEGIN RETURN $1.v {order} $2.v; END$$"
      for name, order in (("less", "<"), ("same", "="), ("more", ">"))),
    "CREATE FUNCTION w.up_cmp(w.k, w.k) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$BEGIN RETURN $1.v - $2.v; END$$",
    "CREATE FUNCTION w.down_cmp(w.k, w.k) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$BEGIN RETURN $2.v - $1.v; END$$",
    "CREATE OPERATOR w.< (LEFTARG = w.k, RIGHTARG = w.k, FUNCTION = w.less)",
    "CREATE OPERATOR w.= (LEFTARG = w.k, RIGHTARG = w.k, FUNCTION = w.same)",
    "CREATE OPERATOR w.> (LEFTARG = w.k, RIGHTARG = w.k, FUNCTION = w.more)",
    CLASS.format(name="down", order=">", other="<"),
]
UPSERT = ["CREATE TABLE w.t (a int CONSTRAINT one UNIQUE, b int CONSTRAINT other UNIQUE)", "INSERT INTO w.t VALUES (1, 2)"]
SWAP = ["ALTER INDEX w.one RENAME TO former", "ALTER INDEX w.other RENAME TO one"]

# What it is, what its name is like, the string that means it, and its schema.
TYPES_BY_STRING = [
    ("array", "_kin%", "kind[]", "w"),
    ("padded_type", "kin%", " kind ", "w"),
    ("type_of_a_schema", "kin%", "elsewhere.kind", "elsewhere"),
    ("array_of_a_schema", "_kin%", "elsewhere . kind [ 3 ]", "elsewhere"),
]
SEQUENCES_BY_STRING = {
    "with_blanks": ("seq", " seq "),
    "with_a_hyphen": ('"my-seq"', "my-seq"),
    "with_a_quote": ('"my""seq"', '"my""seq"'),
}

STATEMENTS = {
    "enum_labels_swapped": History(
        ["CREATE TYPE w.st AS ENUM ('active', 'off')", "CREATE TABLE w.j (s w.st, v text)",
         "INSERT INTO w.j VALUES ('active', 'one'), ('off', 'two')"],
        ["EXECUTE s"], ["PREPARE s AS SELECT v FROM j WHERE s = 'active'"],
        ["ALTER TYPE w.st RENAME VALUE 'active' TO 'legacy'", "ALTER TYPE w.st RENAME VALUE 'off' TO 'active'"],
    ),
    "sequence_hidden": History(
        ["CREATE SEQUENCE w.seq"],
        ["EXECUTE s"], ["PREPARE s AS SELECT nextval('seq') >= 1000"],
        ["CREATE SEQUENCE v.seq START 1000"],
    ),
    "sequence_hidden_by_quoted_name": History(
        ['CREATE SEQUENCE w."Seq"'],
        ["EXECUTE s"], ["PREPARE s AS SELECT nextval('\"Seq\"') >= 1000"],
        ['CREATE SEQUENCE v."Seq" START 1000'],
    ),
    "table_named_by_regclass": History(
        ["CREATE TABLE w.named ()"],
        ["EXECUTE s"], ["PREPARE s AS SELECT relnamespace::regnamespace FROM pg_class WHERE oid = 'named'::regclass"],
        ["CREATE TABLE v.named ()"],
    ),
    "type_named_by_regtype": History(
        ["CREATE DOMAIN w.kind AS int"],
        ["EXECUTE s"], ["PREPARE s AS SELECT typnamespace::regnamespace FROM pg_type WHERE oid = 'kind'::regtype"],
        ["CREATE DOMAIN v.kind AS int"],
    ),
    **{f"{kind}_{change}": History(
        ["CREATE SCHEMA IF NOT EXISTS elsewhere", "CREATE DOMAIN w.kind AS int", "CREATE DOMAIN elsewhere.kind AS int"],
        ["EXECUTE s"], [f"PREPARE s AS SELECT typnamespace::regnamespace, oid = (SELECT max(oid) FROM pg_type WHERE typname LIKE '{name}')"
                        f" FROM pg_type WHERE oid = '{text}'::regtype"],
        between, afterwards=["DROP SCHEMA elsewhere CASCADE"],
    ) for kind, name, text, schema in TYPES_BY_STRING for change, between in {
        "made_anew": [f"DROP DOMAIN {schema}.kind", f"CREATE DOMAIN {schema}.kind AS int"],
        "hidden": ["CREATE DOMAIN v.kind AS int"]}.items()},
    **{f"sequence_hidden_by_a_name_{how}": History(
        [f"CREATE SEQUENCE w.{name}"],
        ["EXECUTE s"], [f"PREPARE s AS SELECT nextval('{text}') >= 1000"],
        [f"CREATE SEQUENCE v.{name} START 1000"],
    ) for how, (name, text) in SEQUENCES_BY_STRING.items()},
    "function_named_by_regproc": History(
        ["CREATE FUNCTION w.proc() RETURNS int LANGUAGE sql AS 'SELECT 1'"],
        ["EXECUTE s"], ["PREPARE s AS SELECT pronamespace::regnamespace FROM pg_proc WHERE oid = 'proc'::regproc"],
        ["CREATE FUNCTION v.proc() RETURNS int LANGUAGE sql AS 'SELECT 1'"],
    ),
    "role_renamed": History(
        ["CREATE ROLE chief", "CREATE ROLE deputy"],
        ["EXECUTE s"], ["PREPARE s AS SELECT 'chief'::regrole::oid = (SELECT max(oid) FROM pg_roles)"],
        ["ALTER ROLE chief RENAME TO former", "ALTER ROLE deputy RENAME TO chief"],
        afterwards=["DROP ROLE chief", "DROP ROLE former"],
    ),
    "the_time_as_a_constant": History(
        ["CREATE TABLE w.began (at timestamptz)"],
        ["EXECUTE s"], ["PREPARE s AS SELECT 'now'::timestamptz > (SELECT max(at) FROM began)"],
        ["INSERT INTO w.began SELECT clock_timestamp()"],
    ),
    "the_time_in_an_inlined_function": History(
        ["CREATE TABLE w.began (at timestamptz)",
         "CREATE FUNCTION w.g() RETURNS timestamptz LANGUAGE sql STABLE AS $$SELECT 'now'::timestamptz$$"],
        ["EXECUTE s"], ["PREPARE s AS SELECT g() > (SELECT max(at) FROM began)"],
        ["INSERT INTO w.began SELECT clock_timestamp()"],
    ),
    "cast_replaced": History(
        ["CREATE TYPE w.c AS (v int)",
         "CREATE FUNCTION w.c1(w.c) RETURNS text LANGUAGE plpgsql AS $$BEGIN RETURN 'first'; END$$",
         "CREATE FUNCTION w.c2(w.c) RETURNS text LANGUAGE plpgsql AS $$BEGIN RETURN 'second'; END$$",
         "CREATE CAST (w.c AS text) WITH FUNCTION w.c1(w.c)"],
        ["EXECUTE s"], ["PREPARE s AS SELECT ROW(1)::c::text"],
        ["DROP CAST (w.c AS text)", "CREATE CAST (w.c AS text) WITH FUNCTION w.c2(w.c)"],
    ),
    "cast_added": History(
        ["CREATE TYPE w.c AS (v int)",
         "CREATE FUNCTION w.c2(w.c) RETURNS text LANGUAGE plpgsql AS $$BEGIN RETURN 'second'; END$$"],
        ["EXECUTE s"], ["PREPARE s AS SELECT ROW(1)::c::text"],
        ["CREATE CAST (w.c AS text) WITH FUNCTION w.c2(w.c)"],
    ),
    "immutable_function_reads_a_table": History(
        ["CREATE TABLE w.rate (v int)", "INSERT INTO w.rate VALUES (1)",
         "CREATE FUNCTION w.rate() RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$BEGIN RETURN (SELECT v FROM w.rate); END$$"],
        ["EXECUTE s"], ["PREPARE s AS SELECT rate()"],
        ["UPDATE w.rate SET v = 2"],
    ),
    "immutable_function_reads_a_setting": History(
        TENANT, ["EXECUTE s"], ["PREPARE s AS SELECT v FROM account"],
        one=["SET app.tenant = 'one'"], other=["SET app.tenant = 'two'"], role="low", afterwards=DROP_LOW,
    ),
    "text_search_configuration_changed": History(
        ["CREATE TEXT SEARCH CONFIGURATION w.conf (COPY = simple)"],
        ["EXECUTE s"], ["PREPARE s AS SELECT to_tsvector('conf'::regconfig, 'running')::text"],
        ["ALTER TEXT SEARCH CONFIGURATION w.conf ALTER MAPPING FOR asciiword WITH english_stem"],
    ),
    "text_search_configuration_hidden": History(
        ["CREATE TEXT SEARCH CONFIGURATION w.conf (COPY = simple)"],
        ["EXECUTE s"], ["PREPARE s AS SELECT to_tsvector('conf', 'running')::text"],
        ["CREATE TEXT SEARCH CONFIGURATION v.conf (COPY = english)"],
    ),
    "name_in_an_inlined_function_hidden": History(
        ["CREATE TABLE w.thing AS SELECT 'behind'::text AS v", "CREATE DOMAIN w.kind AS int",
         "CREATE FUNCTION w.look() RETURNS text LANGUAGE sql STABLE AS 'SELECT max(v) FROM thing'",
         "CREATE FUNCTION w.body(int) RETURNS text LANGUAGE sql STABLE AS $$SELECT 'kind'::regtype::text || $1$$"],
        ["EXECUTE s(1)"], ["PREPARE s(int) AS SELECT look(), body($1)"],
        ["CREATE TABLE v.thing AS SELECT 'front'::text AS v", "CREATE DOMAIN v.kind AS int"],
    ),
    "privilege_on_an_inlined_function_lost": History(
        ["CREATE ROLE low LOGIN", "CREATE ROLE team", "GRANT team TO low", "GRANT USAGE ON SCHEMA w TO low",
         "CREATE FUNCTION w.secret(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 + 1'",
         "REVOKE EXECUTE ON FUNCTION w.secret FROM PUBLIC", "GRANT EXECUTE ON FUNCTION w.secret TO team"],
        ["EXECUTE s(1)"], ["PREPARE s(int) AS SELECT secret($1)"],
        ["REVOKE team FROM low"], role="low", afterwards=["DROP OWNED BY low, team", "DROP ROLE low, team"],
    ),
    "policy_for_a_group": History(
        ["CREATE ROLE low LOGIN", "CREATE ROLE team", "GRANT team TO low", "GRANT USAGE ON SCHEMA w TO low",
         "CREATE TABLE w.papers AS SELECT 1 AS v", "GRANT SELECT ON w.papers TO PUBLIC",
         "ALTER TABLE w.papers ENABLE ROW LEVEL SECURITY", "CREATE POLICY p ON w.papers TO team USING (true)"],
        ["EXECUTE s"], ["PREPARE s AS SELECT v FROM papers"],
        ["REVOKE team FROM low"], role="low", afterwards=["DROP OWNED BY low, team", "DROP ROLE low, team"],
    ),
    "attribute_in_an_inlined_function_gets_another_type": History(
        [*PAIR, BODY], ["EXECUTE s"], ["PREPARE s AS SELECT body()"],
        ["ALTER TYPE w.pair ALTER ATTRIBUTE a TYPE numeric"],
    ),
    "a_domain_gets_a_default": History(
        ["CREATE DOMAIN w.kind AS int", "CREATE TABLE w.kinds (v text, k w.kind)"],
        ["EXECUTE s"], ["PREPARE s AS INSERT INTO kinds (v) VALUES ('v') RETURNING k"],
        ["ALTER DOMAIN w.kind SET DEFAULT 7"],
    ),
    "a_domain_behind_a_view_gets_a_default": History(
        ["CREATE DOMAIN w.kind AS int", "CREATE TABLE w.kinds (v text, k w.kind)", "CREATE VIEW w.narrow AS SELECT v FROM w.kinds"],
        ["EXECUTE s", "WITH d AS (DELETE FROM kinds RETURNING k) SELECT max(k) FROM d", "SELECT 'an odd number of commands'"],
        ["PREPARE s AS INSERT INTO narrow VALUES ('v')"],
        ["ALTER DOMAIN w.kind SET DEFAULT 7"],
    ),
    "attribute_of_a_type_within_a_type_replaced": History(
        NESTED, ["EXECUTE s"], ["PREPARE s AS SELECT '(\"(1)\",2)'::pair::text"],
        ["ALTER TYPE w.within DROP ATTRIBUTE a, ADD ATTRIBUTE a text"],
    ),
    "attribute_of_a_type_within_a_row_replaced": History(
        NESTED, ["EXECUTE s"], ["PREPARE s AS SELECT ROW(ROW(1), 2)::pair::text"],
        ["ALTER TYPE w.within DROP ATTRIBUTE a, ADD ATTRIBUTE a text"],
    ),
    "attribute_replaced_in_a_type_within_an_array_and_a_domain": History(
        [*NESTED, "CREATE DOMAIN w.outside AS w.pair[]"], ["EXECUTE s"],
        ["PREPARE s AS SELECT '{\"(\\\"(1)\\\",2)\"}'::outside::text"],
        ["ALTER TYPE w.within DROP ATTRIBUTE a, ADD ATTRIBUTE a text"],
    ),
    "attribute_of_a_type_gets_another_type": History(
        PAIR, ["EXECUTE s"], ["PREPARE s AS SELECT array_agg(q)::text FROM (SELECT '(2,y)'::pair AS q) q"],
        ["ALTER TYPE w.pair ALTER ATTRIBUTE a TYPE numeric"],
    ),
    "operator_class_exchanged": History(
        OPCLASS, ["EXECUTE s"], ["PREPARE s AS SELECT string_agg(k.a::text, ',') FROM (SELECT a FROM keys ORDER BY a) k"],
        ["DROP OPERATOR CLASS w.down USING btree", CLASS.format(name="up", order="<", other=">")],
    ),
    "constraint_of_another_index": History(
        UPSERT, ["EXECUTE s"], ["PREPARE s AS INSERT INTO t VALUES (1, 5) ON CONFLICT ON CONSTRAINT one DO UPDATE SET a = 1 RETURNING *"],
        SWAP,
    ),
    "constraint_of_another_index_in_a_schema": History(
        UPSERT, ["EXECUTE s"], ["PREPARE s AS INSERT INTO w.t VALUES (1, 5) ON CONFLICT ON CONSTRAINT one DO UPDATE SET a = 1 RETURNING *"],
        SWAP,
    ),
    "table_made_anew": History(
        ["CREATE TABLE w.anew AS SELECT 1 AS v"],
        ["EXECUTE s"], ["PREPARE s AS SELECT v, pg_typeof(v) FROM anew"],
        ["DROP TABLE w.anew", "CREATE TABLE w.anew AS SELECT 'text'::text AS v"],
    ),
}


def function(name: str, body: str, declare: str = "", returns: str = "text", arguments: str = "") -> str:
    return (
        f"CREATE FUNCTION w.{name}({arguments}) RETURNS {returns} LANGUAGE plpgsql AS"
        f" $f$ DECLARE {declare} BEGIN {body} END $f$"
    )


CONTEXT = ("CREATE DOMAIN w.kind AS int; CREATE FUNCTION w.f(kind w.kind DEFAULT 1) RETURNS text LANGUAGE plpgsql AS"
           " $$DECLARE said text; BEGIN GET DIAGNOSTICS said = PG_CONTEXT; RETURN said; END$$")
VAGUE = [f"CREATE FUNCTION w.vague({kind}, time) RETURNS text LANGUAGE plpgsql AS $$BEGIN RETURN '{kind}'; END$$"
         for kind in ("time", "int", "timestamptz")]

FUNCTIONS = {
    "record_of_another_type": History(
        [function("f", "EXECUTE q INTO r; RETURN r.v || '!';", "r record;", arguments="q text")],
        ["SELECT f(current_setting('app.q'))"],
        one=["SET app.q = 'SELECT 1 AS v'"], other=["SET app.q = 'SELECT ''x''::text AS v'"],
    ),
    "record_used_everywhere": History(
        [function("f", """
            EXECUTE q INTO r;
            IF r.v IS NULL THEN said := 'none'; ELSIF r.v = r.v THEN said := 'some'; END IF;
            CASE r.v WHEN r.v THEN said := said || ' case'; ELSE said := said || ' else'; END CASE;
            FOR i IN 1..length(r.v::text) LOOP said := said || i; EXIT WHEN r.v IS NOT NULL; END LOOP;
            FOR s IN SELECT r.v AS w, pg_typeof(r.v) AS t LOOP said := said || s.w || s.t; END LOOP;
            FOR s IN EXECUTE 'SELECT $1 AS w' USING r.v LOOP said := said || s.w; END LOOP;
            DECLARE local text := 'local ' || r.v; BEGIN said := said || local; END;
            PERFORM r.v; PERFORM format('%s', r);
            OPEN c FOR SELECT r.v; FETCH c INTO s; CLOSE c; said := said || s.v;
            RAISE NOTICE 'noted %', r.v; ASSERT r.v IS NOT NULL, r.v;
            WHILE r.v IS NULL LOOP NULL; END LOOP;
            FOREACH a IN ARRAY ARRAY[r.v::text] LOOP said := said || a; END LOOP;
            RETURN said || row_to_json(r) || (SELECT r.v || '.');""",
            "r record; s record; said text; c refcursor; a text;", arguments="q text")],
        ["SELECT f(current_setting('app.q'))"],
        one=["SET app.q = 'SELECT 1 AS v'"], other=["SET app.q = 'SELECT ''x''::text AS v'"],
    ),
    "record_of_rows_with_another_type_modifier": History(
        [function("f", "EXECUTE q INTO r; x := r.v; RETURN x;", "r record; x numeric(10,1);", arguments="q text")],
        ["SELECT f(current_setting('app.q'))"],
        one=["SET app.q = 'SELECT 1.25::numeric(10,1) AS v'"], other=["SET app.q = 'SELECT 1.25::numeric(10,2) AS v'"],
    ),
    "record_that_is_not_assigned": History(
        [function("f", "IF q <> '' THEN EXECUTE q INTO r; END IF; RETURN r.v || '!';", "r record;", arguments="q text")],
        ["SELECT f(current_setting('app.q'))"],
        one=["SET app.q = 'SELECT 1 AS v'"], other=["SET app.q = ''"],
    ),
    "record_changes_within_a_session": History(
        [function("f", "EXECUTE q INTO r; RETURN r.v || '!';", "r record;", arguments="q text")],
        ["SELECT f('SELECT 1 AS v')", "SELECT f('SELECT now() - now() AS v')"],
    ),
    "loop_over_a_temporary_table": History(
        [function("f", "FOR r IN SELECT * FROM passing LOOP said := concat(said, r.v + 1); END LOOP; RETURN said;",
                  "r record; said text;"),
         function("g", "EXECUTE format('CREATE TEMP TABLE passing ON COMMIT DROP AS SELECT 1::%s AS v',"
                  " current_setting('app.type')); RETURN NULL;")],
        ["BEGIN", "SELECT g()", "SELECT f()", "COMMIT"],
        one=["SET app.type = int"], other=["SET app.type = 'numeric(10,2)'"],
    ),
    "column_type_changed_below_a_trigger": History(
        ["CREATE TABLE w.fired (v int, said text)",
         function("t", "NEW.said := NEW.v || '/' || pg_typeof(NEW.v) || TG_OP; RETURN NEW;", returns="trigger"),
         "CREATE TRIGGER t BEFORE INSERT ON w.fired FOR EACH ROW EXECUTE FUNCTION w.t()"],
        ["INSERT INTO fired VALUES ('1') RETURNING said"], [],
        ["ALTER TABLE w.fired ALTER v TYPE text"],
    ),
    "column_added_below_a_trigger": History(
        ["CREATE TABLE w.fired (v int)",
         function("t", "RAISE NOTICE '%', ROW(NEW.*)::text; IF ROW(NEW.*)::text LIKE '%7%' THEN NEW.v := 8; END IF;"
                  " RETURN NEW;", returns="trigger"),
         "CREATE TRIGGER t BEFORE INSERT ON w.fired FOR EACH ROW EXECUTE FUNCTION w.t()"],
        ["INSERT INTO fired VALUES (1) RETURNING v"], [],
        ["ALTER TABLE w.fired ADD w int DEFAULT 7"],
    ),
    "signature_hidden_by_another_function": History(
        [CONTEXT], ["SELECT w.f()"], [], ["CREATE FUNCTION v.f(w.kind DEFAULT 1) RETURNS int LANGUAGE sql AS 'SELECT 1'"],
    ),
    "signature_not_hidden_any_more": History(
        [CONTEXT, "CREATE FUNCTION v.f(w.kind DEFAULT 1) RETURNS int LANGUAGE sql AS 'SELECT 1'"],
        ["SELECT w.f()"], [], ["DROP FUNCTION v.f(w.kind)"],
    ),
    "argument_s_type_hidden": History([CONTEXT], ["SELECT w.f()"], [], ["CREATE DOMAIN v.kind AS text"]),
    "argument_s_type_renamed": History([CONTEXT], ["SELECT w.f()"], [], ["ALTER DOMAIN w.kind RENAME TO other"]),
    "schema_of_a_trigger_function_renamed": History(
        ["CREATE SCHEMA IF NOT EXISTS elsewhere", "CREATE TABLE w.fired (said text)",
         function("t", "GET DIAGNOSTICS NEW.said = PG_CONTEXT; RETURN NEW;", returns="trigger").replace("w.t", "elsewhere.t"),
         "CREATE TRIGGER t BEFORE INSERT ON w.fired FOR EACH ROW EXECUTE FUNCTION elsewhere.t()"],
        ["INSERT INTO fired DEFAULT VALUES RETURNING said"], [],
        ["ALTER SCHEMA elsewhere RENAME TO former"],
        afterwards=["DROP SCHEMA former CASCADE"],
    ),
    "type_of_a_case_changes": History(
        ["CREATE TABLE w.kinds AS SELECT 1 AS v",
         function("f", "CASE (SELECT v FROM kinds) WHEN 1 THEN RETURN 'one'; ELSE RETURN 'other'; END CASE;")],
        ["SELECT f()"], [],
        ["ALTER TABLE w.kinds ALTER v TYPE numeric USING 1.0"],
    ),
    "column_type_of_a_variable_changed": History(
        ["CREATE TABLE w.cfg (v int)",
         function("f", "x := '1.5'::numeric; RETURN x;", "x cfg.v%TYPE;")],
        ["SELECT f()"], [],
        ["ALTER TABLE w.cfg ALTER v TYPE numeric"],
    ),
    "row_type_changed": History(
        ["CREATE TABLE w.cfg (v int)",
         function("f", "SELECT 1 INTO x.v; RETURN x;", "x cfg%ROWTYPE;")],
        ["SELECT f()"], [],
        ["ALTER TABLE w.cfg ADD w text DEFAULT 'w'"],
    ),
    "table_and_sequence_hidden": History(
        ["CREATE TABLE w.seen AS SELECT 'behind'::text AS v", "CREATE SEQUENCE w.seq",
         function("f", "RETURN (SELECT v FROM seen) || (nextval('seq') >= 1000);")],
        ["SELECT f()"], [],
        ["CREATE TABLE v.seen AS SELECT 'front'::text AS v", "CREATE SEQUENCE v.seq START 1000"],
    ),
    "table_of_a_variable_s_type_hidden": History(
        ["CREATE TABLE w.cfg (v int)", function("f", "x := '1.5'::numeric; RETURN x;", "x cfg.v%TYPE;")],
        ["SELECT f()"], [],
        ["CREATE TABLE v.cfg (v numeric)"],
    ),
    **{f"sequence_hidden_by_a_name_{how}": History(
        [f"CREATE SEQUENCE w.{name}", function("f", f"RETURN nextval('{text}') >= 1000;")],
        ["SELECT f()"], [],
        [f"CREATE SEQUENCE v.{name} START 1000"],
    ) for how, (name, text) in SEQUENCES_BY_STRING.items()},
    "function_hidden": History(
        [function("g", "RETURN 'behind';"), function("f", "RETURN g();")],
        ["SELECT f()"], [],
        ["CREATE FUNCTION v.g() RETURNS text LANGUAGE sql AS $$SELECT 'front'$$"],
    ),
    "function_that_was_not_meant_goes": History(
        [*VAGUE, function("f", "RETURN vague('2020-01-01 12:00', '12:00'::time);")],
        ["SELECT f()"], [],
        ["DROP FUNCTION w.vague(int, time)"],
    ),
    "function_of_a_constant_goes": History(
        [function("g", "RETURN 'g';"), function("f", "RETURN 'g'::regproc;")],
        ["SELECT f()"], [],
        ["DROP FUNCTION w.g()"],
    ),
    "function_in_an_inlined_function_hidden": History(
        [function("g", "RETURN 'behind';"), "CREATE FUNCTION w.body() RETURNS text LANGUAGE sql AS $$SELECT g()$$",
         "CREATE FUNCTION w.outside() RETURNS text LANGUAGE sql AS $$SELECT body()$$", function("f", "RETURN outside();")],
        ["SELECT f()"], [],
        ["CREATE FUNCTION v.g() RETURNS text LANGUAGE sql AS $$SELECT 'front'$$"],
    ),
    "function_that_an_inlined_function_did_not_mean_goes": History(
        [*VAGUE, "CREATE FUNCTION w.body() RETURNS text LANGUAGE sql AS $$SELECT vague('2020-01-01 12:00', '12:00'::time)$$",
         function("f", "RETURN body();")],
        ["SELECT f()"], [],
        ["ALTER FUNCTION w.vague(int, time) RENAME TO clear"],
    ),
    "type_made_anew": History(
        ["CREATE DOMAIN w.kind AS int", function("f", "RETURN x;", "x kind := 1;")],
        ["SELECT f()"], [],
        ["DROP DOMAIN w.kind", "CREATE DOMAIN w.kind AS numeric CHECK (VALUE < 0)"],
    ),
    "attribute_replaced_in_a_type_within_a_row_variable_s": History(
        [*NESTED, function("f", "RETURN concat(x, '(\"(1)\",2)'::pair, ROW(ROW(3), 4)::pair, (x).i);",
                           "x pair := ROW(ROW(1), 2)::pair;")],
        ["SELECT f()"], [],
        ["ALTER TYPE w.within DROP ATTRIBUTE a, ADD ATTRIBUTE a text"],
    ),
    "attribute_replaced_in_a_type_within_a_row_variable_that_is_filled": History(
        [*NESTED, "CREATE TABLE w.pairs (p w.pair)", "INSERT INTO w.pairs VALUES (ROW(ROW(1), 2))",
         function("f", "SELECT p.* INTO x FROM (SELECT (p).* FROM pairs) p; y := (x).i; RETURN concat(x, y, to_json(x));", "x pair; y record;")],
        ["SELECT f()"], [],
        ["ALTER TYPE w.within DROP ATTRIBUTE a, ADD ATTRIBUTE a text"],
    ),
    "attribute_dropped_from_what_a_function_returns": History(
        [*PAIR, function("g", "RETURN NEXT r;", "r pair;", returns="SETOF w.pair"),
         function("f", "FOR r IN SELECT * FROM g() LOOP said := concat(said, r); END LOOP; RETURN said;", "r record; said text;")],
        ["SELECT f()"], [],
        ["ALTER TYPE w.pair DROP ATTRIBUTE b"],
    ),
    "attribute_of_a_constant_s_type_gets_another_type": History(
        [*PAIR, function("f", "RETURN (SELECT array_agg(q)::text FROM (SELECT '(2,y)'::pair AS q) q);")],
        ["SELECT f()"], [],
        ["ALTER TYPE w.pair ALTER ATTRIBUTE a TYPE numeric"],
    ),
    "attribute_in_an_inlined_function_gets_another_type": History(
        [*PAIR, BODY, function("f", "RETURN body();")], ["SELECT f()"], [],
        ["ALTER TYPE w.pair ALTER ATTRIBUTE a TYPE numeric"],
    ),
    "attribute_of_a_result_in_an_inlined_function_gets_another_type": History(
        [*PAIR, function("g", "r.a := 1; RETURN r;", "r w.pair;", returns="w.pair"),
         "CREATE FUNCTION w.body() RETURNS int LANGUAGE sql AS $$SELECT (g()).a$$",
         function("f", "said := body()::text; RETURN said;", "said text;")],
        ["SELECT f()"], [],
        ["ALTER TYPE w.pair ALTER ATTRIBUTE a TYPE text"],
    ),
    "a_domain_gets_a_default": History(
        ["CREATE DOMAIN w.kind AS int", "CREATE TABLE w.kinds (v text, k w.kind)",
         "CREATE VIEW w.narrow AS SELECT v FROM w.kinds",
         function("f", "INSERT INTO kinds VALUES ('v'); INSERT INTO narrow VALUES ('w');"
                  " MERGE INTO kinds USING (SELECT 1) q ON false WHEN NOT MATCHED THEN INSERT (v) VALUES ('x');"
                  " WITH d AS (DELETE FROM kinds RETURNING v, k) SELECT string_agg(v || k, '') INTO x FROM d; RETURN x;", "x text;")],
        ["SELECT f()"], [],
        ["ALTER DOMAIN w.kind SET DEFAULT 7"],
    ),
    "default_of_a_domain_changed": History(
        ["CREATE DOMAIN w.kind AS int DEFAULT 1", "CREATE TABLE w.kinds (v text, k w.kind)",
         function("f", "INSERT INTO kinds (v) VALUES ('v') RETURNING k INTO x; UPDATE kinds SET k = DEFAULT RETURNING k INTO y;"
                  " WITH i AS (INSERT INTO kinds (v) VALUES ('v') RETURNING k) SELECT k INTO z FROM i;"
                  " DELETE FROM kinds; RETURN concat(x, y, z);", "x int; y int; z int;")],
        ["SELECT f()"], [],
        ["ALTER DOMAIN w.kind SET DEFAULT 7"],
    ),
    "operator_class_exchanged": History(
        [*OPCLASS, function("f", "RETURN (SELECT string_agg(k.a::text, ',') FROM (SELECT a FROM keys ORDER BY a) k);")],
        ["SELECT f()"], [],
        ["DROP OPERATOR CLASS w.down USING btree", CLASS.format(name="up", order="<", other=">")],
    ),
    "cast_of_a_foreign_key_replaced": History(
        ["CREATE TYPE w.c AS (v int)", "CREATE TABLE w.top (id int PRIMARY KEY)", "INSERT INTO w.top VALUES (1)",
         "CREATE FUNCTION w.c1(w.c) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$BEGIN RETURN $1.v; END$$",
         "CREATE FUNCTION w.c2(w.c) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$BEGIN RETURN $1.v + 1; END$$",
         "CREATE CAST (w.c AS int) WITH FUNCTION w.c1(w.c) AS IMPLICIT", "CREATE TABLE w.bottom (id w.c REFERENCES w.top)",
         function("f", "INSERT INTO bottom VALUES (ROW(0)); UPDATE bottom SET id = ROW(1); RETURN 'in';")],
        ["SELECT f()", "INSERT INTO bottom VALUES (ROW(1))", "DELETE FROM bottom"], [],
        ["DROP CAST (w.c AS int) CASCADE", "CREATE CAST (w.c AS int) WITH FUNCTION w.c2(w.c) AS IMPLICIT",
         "ALTER TABLE w.bottom ADD FOREIGN KEY (id) REFERENCES w.top"],
    ),
    "type_of_another_schema_made_anew": History(
        ["CREATE SCHEMA IF NOT EXISTS elsewhere", "CREATE DOMAIN elsewhere.kind AS int", "CREATE TYPE elsewhere.pair AS (a int)",
         function("f", "RETURN concat(x, ROW(1)::elsewhere.pair);", "x elsewhere.kind := 1;")],
        ["SELECT f()"], [],
        ["DROP TYPE elsewhere.pair", "CREATE TYPE elsewhere.pair AS (b text)", "DROP DOMAIN elsewhere.kind",
         "CREATE DOMAIN elsewhere.kind AS numeric CHECK (VALUE < 2)"],
        afterwards=["DROP SCHEMA elsewhere CASCADE"],
    ),
    "schemas_of_a_type_change_names": History(
        ["CREATE SCHEMA IF NOT EXISTS elsewhere", "CREATE SCHEMA IF NOT EXISTS spare", "CREATE DOMAIN elsewhere.kind AS int",
         "CREATE DOMAIN spare.kind AS int CHECK (VALUE < 0)", function("f", "RETURN x;", "x elsewhere.kind := 1;")],
        ["SELECT f()"], [],
        ["ALTER SCHEMA elsewhere RENAME TO former", "ALTER SCHEMA spare RENAME TO elsewhere"],
        afterwards=["DROP SCHEMA elsewhere, former CASCADE"],
    ),
    "name_in_an_inlined_function_hidden": History(
        ["CREATE DOMAIN w.kind AS int",
         "CREATE FUNCTION w.g() RETURNS regtype LANGUAGE sql STABLE AS $$SELECT 'kind'::regtype$$",
         function("f", "RETURN (SELECT typnamespace::regnamespace FROM pg_type WHERE oid = g());")],
        ["SELECT f()"], [],
        ["CREATE DOMAIN v.kind AS int"],
    ),
    "the_time_as_a_constant": History(
        ["CREATE TABLE w.began (at timestamptz)",
         function("f", "INSERT INTO read VALUES ('now'); RETURN (SELECT max(at) > (SELECT max(at) FROM began) FROM read);"),
         "CREATE TABLE w.read (at timestamptz)"],
        ["SELECT f()"], [],
        ["INSERT INTO w.began SELECT clock_timestamp()"],
    ),
    "the_time_in_an_inlined_function": History(
        ["CREATE TABLE w.began (at timestamptz)",
         "CREATE FUNCTION w.g() RETURNS timestamptz LANGUAGE sql STABLE AS $$SELECT 'now'::timestamptz$$",
         function("f", "RETURN (SELECT g() > max(at) FROM began);")],
        ["SELECT f()"], [],
        ["INSERT INTO w.began SELECT clock_timestamp()"],
    ),
    "enum_labels_swapped": History(
        ["CREATE TYPE w.st AS ENUM ('active', 'off')", "CREATE TABLE w.j (s w.st, v text)",
         "INSERT INTO w.j VALUES ('active', 'one'), ('off', 'two')",
         function("f", "RETURN (SELECT v FROM j WHERE s = 'active');")],
        ["SELECT f()"], [],
        ["ALTER TYPE w.st RENAME VALUE 'active' TO 'legacy'", "ALTER TYPE w.st RENAME VALUE 'off' TO 'active'"],
    ),
    "enum_labels_of_a_procedure_s_argument_swapped": History(
        ["CREATE TYPE w.st AS ENUM ('active', 'off')",
         "CREATE PROCEDURE w.p(s w.st, INOUT said text) LANGUAGE plpgsql AS $$BEGIN said := s; END$$",
         function("f", "CALL p('active', said); RETURN said;", "said text;")],
        ["SELECT f()"], [],
        ["ALTER TYPE w.st RENAME VALUE 'active' TO 'legacy'", "ALTER TYPE w.st RENAME VALUE 'off' TO 'active'"],
    ),
    "procedure_that_was_not_meant_goes": History(
        ["CREATE TABLE w.told (v text)",
         *(f"CREATE PROCEDURE w.vague({kind}, time) LANGUAGE plpgsql AS $$BEGIN INSERT INTO w.told VALUES ('{kind}'); END$$"
           for kind in ("time", "int", "timestamptz")),
         function("f", "CALL vague('2020-01-01 12:00', '12:00'::time); DELETE FROM told RETURNING v INTO said; RETURN said;",
                  "said text;")],
        ["SELECT f()"], [],
        ["DROP PROCEDURE w.vague(int, time)"],
    ),
    "function_that_an_explained_query_did_not_mean_goes": History(
        [*VAGUE, function("f", "FOR r IN EXPLAIN (VERBOSE, COSTS OFF) SELECT vague('2020-01-01 12:00', '12:00'::time) LOOP"
                          " said := concat(said, r); END LOOP; RETURN said;", "r record; said text;")],
        ["SELECT f()"], [],
        ["DROP FUNCTION w.vague(int, time)"],
    ),
    "sampling_method_goes": History(
        ["CREATE EXTENSION IF NOT EXISTS tsm_system_rows SCHEMA w",
         function("f", "RETURN (SELECT count(*) FROM pg_class TABLESAMPLE system_rows(1));")],
        ["SELECT f()"], [],
        ["DROP EXTENSION tsm_system_rows"],
    ),
    "cast_added": History(
        ["CREATE TYPE w.c AS (v int)",
         "CREATE FUNCTION w.c2(w.c) RETURNS text LANGUAGE plpgsql AS $$BEGIN RETURN 'second'; END$$",
         function("f", "y := x; RETURN y || x::text;", "x c := ROW(1); y text;")],
        ["SELECT f()"], [],
        ["CREATE CAST (w.c AS text) WITH FUNCTION w.c2(w.c) AS ASSIGNMENT"],
    ),
    "cast_in_a_do_block_added": History(
        ["CREATE TYPE w.c AS (v int)", "CREATE FUNCTION w.c2(w.c) RETURNS text LANGUAGE sql AS $$SELECT 'second'$$"],
        ["DO $$DECLARE y text; BEGIN SELECT ROW(1)::c INTO y; RAISE EXCEPTION '%', y; END$$"], [],
        ["CREATE CAST (w.c AS text) WITH FUNCTION w.c2(w.c) AS ASSIGNMENT"],
    ),
    "cast_in_a_do_block_dropped": History(
        ["CREATE TYPE w.c AS (v int)", "CREATE FUNCTION w.c2(w.c) RETURNS text LANGUAGE sql AS $$SELECT 'second'$$",
         "CREATE CAST (w.c AS text) WITH FUNCTION w.c2(w.c) AS ASSIGNMENT"],
        ["DO $$DECLARE y text; BEGIN SELECT ROW(1)::c INTO y; RAISE EXCEPTION '%', y; END$$"], [],
        ["DROP CAST (w.c AS text)"],
    ),
    "cast_of_a_returned_value_added": History(
        ["CREATE FUNCTION w.c2(timestamptz) RETURNS int LANGUAGE plpgsql AS $$BEGIN RETURN 99; END$$",
         function("f", "RETURN '2020-01-01'::timestamptz;", returns="int")],
        ["SELECT f()"], [],
        ["CREATE CAST (timestamptz AS int) WITH FUNCTION w.c2(timestamptz) AS ASSIGNMENT"],
    ),
    "immutable_function_reads_a_setting": History(
        [*TENANT, function("mine", "RETURN (SELECT string_agg(v, ',') FROM account);"),
         function("told", "RETURN tenant();")],
        ["SELECT mine(), told()"],
        one=["SET app.tenant = 'one'"], other=["SET app.tenant = 'two'"], role="low", afterwards=DROP_LOW,
    ),
    "immutable_function_reads_a_table": History(
        ["CREATE TABLE w.rate (v int)", "INSERT INTO w.rate VALUES (1)",
         "CREATE FUNCTION w.rate() RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$BEGIN RETURN (SELECT v FROM w.rate); END$$",
         function("f", "RETURN rate();")],
        ["SELECT f()"], [],
        ["UPDATE w.rate SET v = 2"],
    ),
    "privilege_on_an_inlined_function_lost": History(
        ["CREATE ROLE low LOGIN", "CREATE ROLE team", "GRANT team TO low", "GRANT USAGE ON SCHEMA w TO low",
         "CREATE FUNCTION w.secret() RETURNS int LANGUAGE sql AS 'SELECT 42'",
         "REVOKE EXECUTE ON FUNCTION w.secret FROM PUBLIC", "GRANT EXECUTE ON FUNCTION w.secret TO team",
         function("f", "RETURN secret();")],
        ["SELECT f()"], [],
        ["REVOKE team FROM low"], role="low", afterwards=["DROP OWNED BY low, team", "DROP ROLE low, team"],
    ),
}


@pytest.fixture(scope="module", params=["normal", "forced", "one_backend"])
def cluster(run, request):
    """With one backend each session finds what the others have left there."""
    backends = 1 if request.param == "one_backend" else 2
    cluster = run.cluster(
        f"shared-caches-{request.param}",
        parameters={"pg_baton.max_backends": backends, "pg_baton.force_migration": request.param == "forced"},
    ).start()
    cluster.is_forced = request.param == "forced"
    cluster.backends = backends
    cluster.sql("CREATE SCHEMA v; CREATE SCHEMA w")
    yield cluster
    cluster.finish()


@pytest.fixture(scope="module")
def apart(run):
    """A backend serves one role for life."""
    parameters = {"pg_baton.max_backends": 1, "pg_baton.break_self_check": "roles"}
    cluster = run.cluster("shared-caches-apart", parameters=parameters).start()
    cluster.backends = 1
    cluster.sql("CREATE SCHEMA v; CREATE SCHEMA w")
    yield cluster
    cluster.finish()


def login(cluster, port: int, role: str) -> Wire:
    session = Wire.login("127.0.0.1", port, user=role)
    session.query("SET search_path = v, w")
    return session


def said(session: Wire, text: str) -> str:
    try:
        return str(session.query(text))
    except QueryFailed as failure:
        return f"{failure.fields['C']} {failure.fields['M']}"


def lived(cluster, port: int, history: History) -> list[list[str]]:
    """What each of three sessions is told; the third comes after the first has gone."""
    cluster.sql("DROP SCHEMA v, w CASCADE; CREATE SCHEMA v; CREATE SCHEMA w; GRANT USAGE ON SCHEMA v TO PUBLIC")
    for text in history.setup:
        cluster.sql("SET search_path = v, w; " + text)
    if port == cluster.pool_port and cluster.backends == 2:
        start_two_backends(lambda c: login(c, port, history.role), cluster)
    answers = []
    with login(cluster, port, history.role) as one:
        answers.append([said(one, text) for text in history.one + history.prepare])
        answers[0] += [said(one, text) for _ in range(TURNS + 4) for text in history.work]
        for text in history.between:
            cluster.sql(text)
        for commands in (history.other, history.one):
            with login(cluster, port, history.role) as other:
                told = [said(other, text) for text in commands + history.prepare]
                answers.append(told + [said(other, text) for _ in range(TURNS) for text in history.work])
                if commands is history.other:
                    for _ in range(2):
                        said(one, "SELECT 1")
                    answers.append([said(other, text) for text in history.work])
                other.finish()
        one.finish()
    cluster.sql("DROP SCHEMA v, w CASCADE; CREATE SCHEMA v; CREATE SCHEMA w")
    for text in history.afterwards:
        cluster.sql(text)
    return answers


@pytest.mark.parametrize("case", STATEMENTS)
def test_a_later_session_prepares_what_its_text_means_then(cluster, case):
    history = STATEMENTS[case]
    assert lived(cluster, cluster.pool_port, history) == lived(cluster, cluster.port, history)


ROWS = "SELECT set_config('bytea_output', v, false) FROM (VALUES ('{one}'), ('{other}')) rows(v)"


@pytest.mark.parametrize("styles", [("escape", "hex"), ("hex", "escape")])
@pytest.mark.parametrize("how", ["cursor", "portal"])
def test_a_setting_changed_by_a_cursor_s_row_is_noticed(cluster, how, styles):
    """set_config() runs for each row, and is looked up once, when the cursor is opened."""
    rows = ROWS.format(one=styles[0], other=styles[1])
    prepare = "PREPARE s AS SELECT '\\x01'::bytea::text"
    with login(cluster, cluster.pool_port, "postgres") as one:
        for number in range(4):
            if number > 0:
                one.query("DEALLOCATE s")
            one.query("BEGIN")
            if how == "cursor":
                one.query(f"DECLARE c CURSOR FOR {rows}")
            else:
                one.ask(parse(rows) + bind(portal="c") + sync())
            for command in (prepare, "EXECUTE s"):
                if how == "cursor":
                    one.query("FETCH c")
                else:
                    one.ask(execute("c", 1) + sync())
                one.query(command)
            one.query("COMMIT")
        for style, right in (("hex", "\\x01"), ("escape", "\\001")):
            with login(cluster, cluster.pool_port, "postgres") as other:
                other.query(f"SET bytea_output = '{style}'")
                other.query(prepare)
                assert [other.query("EXECUTE s") for _ in range(4)] == [[[right]]] * 4
                other.finish()
        one.finish()


TYPE_CHANGES = {
    "made_anew": ["DROP TYPE elsewhere.pair", "CREATE TYPE elsewhere.pair AS (a text, b numeric)"],
    "attribute_added": ["ALTER TYPE elsewhere.pair ADD ATTRIBUTE c int"],
    "renamed": ["ALTER TYPE elsewhere.pair RENAME TO former", "CREATE TYPE elsewhere.pair AS (a text, b numeric)"],
}
TYPE_TEXTS = {
    "row": "SELECT ROW(1, 2)::elsewhere.pair::text",
    "constant": "SELECT pg_typeof(('(1,2)'::elsewhere.pair).b)",
    "columns": "SELECT p.* FROM unnest(ARRAY['(1,2)']::elsewhere.pair[]) p",
    "definition": "SELECT x.a::text FROM json_to_record('{\"a\": {\"a\": 1}}') AS x(a elsewhere.pair)",
}


@pytest.mark.parametrize("change", TYPE_CHANGES)
@pytest.mark.parametrize("text", TYPE_TEXTS)
def test_a_later_parse_means_the_type_of_that_name_then(cluster, text, change):
    """A type by its schema's name, which is not in search_path."""

    def lived_through(port: int) -> list[list[str]]:
        cluster.sql("DROP SCHEMA IF EXISTS elsewhere CASCADE; CREATE SCHEMA elsewhere; CREATE TYPE elsewhere.pair AS (a int, b text)")
        if port == cluster.pool_port and cluster.backends == 2:
            start_two_backends(lambda c: login(c, port, "postgres"), cluster)
        session = login(cluster, port, "postgres")
        answers = []
        for name in ("before", "after"):
            session.ask(parse(TYPE_TEXTS[text], name) + sync())
            for _ in range(TURNS):
                found = session.ask(bind([], name) + execute() + sync())
                answers += [str(m.fields()["M"] if m.type == "E" else m.body) for m in found if m.type in "DE"]
            if name == "before":
                for sql in TYPE_CHANGES[change]:
                    cluster.sql(sql)
        session.finish()
        cluster.sql("DROP SCHEMA elsewhere CASCADE")
        return answers

    assert lived_through(cluster.pool_port) == lived_through(cluster.port)


# low may SET ROLE team, and has none of its rights
SECRET = ["CREATE ROLE low LOGIN", "CREATE ROLE middle NOINHERIT", "CREATE ROLE team", "GRANT team TO middle", "GRANT middle TO low", "GRANT USAGE ON SCHEMA w TO PUBLIC",
          "CREATE FUNCTION w.secret(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 + 1'",
          "CREATE FUNCTION w.least() RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN 0; END'",
          "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA w FROM PUBLIC"]
KEPT_EXPRESSIONS = {
    "inlined_in_a_domain": (["CREATE DOMAIN w.kind AS int CHECK (w.secret(VALUE) > 0)"], "SELECT 1::kind"),
    "folded_in_a_domain": (["CREATE DOMAIN w.kind AS int CHECK (VALUE > w.least())"], "SELECT 1::kind"),
    "expression_of_an_index": (
        ["CREATE TABLE w.t (a int)", "CREATE INDEX ON w.t (w.secret(a))", "GRANT INSERT ON w.t TO PUBLIC"],
        "INSERT INTO t VALUES (1)",
    ),
    "predicate_of_an_index": (
        ["CREATE TABLE w.t (a int)", "CREATE INDEX ON w.t (a) WHERE w.secret(a) > 0", "GRANT INSERT ON w.t TO PUBLIC"],
        "INSERT INTO t VALUES (1)",
    ),
    "copied_into_an_index": (
        ["CREATE TABLE w.t (a int)", "CREATE INDEX ON w.t (w.secret(a))", "GRANT INSERT, SELECT ON w.t TO PUBLIC"],
        "COPY t FROM PROGRAM 'echo 1'",
    ),
    "key_of_a_partitioned_table": (
        ["CREATE TABLE w.t (a int) PARTITION BY LIST (w.secret(a))", "CREATE TABLE w.part PARTITION OF w.t DEFAULT",
         "GRANT INSERT ON w.t, w.part TO PUBLIC"],
        "INSERT INTO t VALUES (1)",
    ),
    "in_a_security_definer": (
        ["CREATE TABLE w.t (a int)", "CREATE INDEX ON w.t (w.secret(a))", "GRANT INSERT ON w.t TO PUBLIC",
         *(f"CREATE FUNCTION w.{name}() RETURNS void LANGUAGE plpgsql {clause} AS 'BEGIN INSERT INTO w.t VALUES (1); END'"
           for name, clause in (("own", ""), ("lent", "SECURITY DEFINER"))),
         "ALTER FUNCTION w.lent OWNER TO team", "GRANT EXECUTE ON FUNCTION w.lent TO low"],
        "SELECT CASE current_setting('app.lent', true) WHEN 'on' THEN lent() ELSE own() END",
    ),
}


def of_rights(case: str, allowed: str) -> History:
    made, work = KEPT_EXPRESSIONS[case]
    member = ["SET app.lent = on" if case == "in_a_security_definer" else "SET ROLE team"]
    grantee = "team" if allowed == "team" else "low"
    return History(
        [*SECRET, *made, f"GRANT EXECUTE ON FUNCTION w.secret, w.least TO {grantee}", "GRANT pg_execute_server_program TO low, team"],
        [work], one=member if allowed == "team" else [], other=member if allowed == "low" else [], role="low",
        between=["REVOKE EXECUTE ON FUNCTION w.secret, w.least FROM low"] if allowed == "low_at_first" else [],
        afterwards=["DROP OWNED BY low, team", "DROP ROLE low, middle, team"],
    )


@pytest.mark.parametrize("allowed", ["team", "low", "low_at_first"])
@pytest.mark.parametrize("case", KEPT_EXPRESSIONS)
def test_rights_of_set_role_are_not_in_kept_expressions(cluster, case, allowed):
    """The planner checks EXECUTE of a function that it copies or computes, and the backend keeps the expression."""
    history = of_rights(case, allowed)
    assert lived(cluster, cluster.pool_port, history) == lived(cluster, cluster.port, history)


@pytest.mark.parametrize("case", ["expression_of_an_index", "key_of_a_partitioned_table", "in_a_security_definer"])
def test_rights_of_set_role_are_not_kept_by_backends_of_one_role(apart, case):
    """Minor releases without SetAuthenticatedUserId() (before 15.9, 16.5 and 17.1) have a pool for each role."""
    history = of_rights(case, "team")
    assert lived(apart, apart.pool_port, history) == lived(apart, apart.port, history)


# What a domain's constraint holds of the settings of the session that used the domain first.
CONSTRAINTS = {
    "literal_of_a_function": History(
        ["CREATE FUNCTION w.month() RETURNS float8 LANGUAGE sql IMMUTABLE AS $$SELECT extract(month FROM '1/2/2020'::date)::float8$$",
         "CREATE DOMAIN w.kind AS int CHECK (VALUE = w.month())"],
        ["SELECT 2::kind"], one=["SET datestyle = 'ISO, DMY'"], other=["SET datestyle = 'ISO, MDY'"],
    ),
    "name_in_a_function": History(
        ["CREATE FUNCTION w.lowest() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'",
         "CREATE FUNCTION v.lowest() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 2'",
         "CREATE FUNCTION w.fits(int) RETURNS bool LANGUAGE sql AS 'SELECT $1 >= lowest()'",
         "CREATE DOMAIN w.kind AS int CHECK (w.fits(VALUE))"],
        ["SELECT 1::w.kind"], one=["SET search_path = w"], other=["SET search_path = v"],
    ),
    "the_time_in_a_function": History(
        ["CREATE TABLE w.began (at timestamptz)",
         "CREATE FUNCTION w.is_past(timestamptz) RETURNS bool LANGUAGE sql STABLE AS $$SELECT $1 <= 'now'::timestamptz$$",
         "CREATE DOMAIN w.kind AS timestamptz CHECK (w.is_past(VALUE))"],
        ["SELECT max(at)::kind IS NULL FROM began"], [],
        ["INSERT INTO w.began SELECT clock_timestamp()"],
    ),
    "setting_that_a_function_reads": History(
        ["CREATE FUNCTION w.least() RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$BEGIN RETURN current_setting('app.least'); END$$",
         "CREATE DOMAIN w.kind AS int CHECK (VALUE >= w.least())"],
        ["SELECT 1::kind"], one=["SET app.least = 1"], other=["SET app.least = 2"],
    ),
}


@pytest.mark.parametrize("case", CONSTRAINTS)
def test_a_domain_s_check_is_planned_for_each_session(cluster, case):
    assert lived(cluster, cluster.pool_port, CONSTRAINTS[case]) == lived(cluster, cluster.port, CONSTRAINTS[case])


ORDERED = [
    "CREATE ROLE low", "CREATE ROLE high", "GRANT USAGE ON SCHEMA w TO PUBLIC", "GRANT CREATE ON SCHEMA w TO low, high",
    "CREATE TYPE w.pair AS (a int)",
    "CREATE FUNCTION w.whose() RETURNS int LANGUAGE plpgsql AS"
    " $$BEGIN RAISE EXCEPTION '% %', current_user, current_setting('datestyle'); END$$",
    "{cmp}",
    "ALTER FUNCTION w.cmp OWNER TO low",
    "CREATE FUNCTION w.less(w.pair, w.pair) RETURNS bool LANGUAGE sql AS 'SELECT w.cmp($1, $2) < 0'",
    "CREATE OPERATOR w.< (LEFTARG = w.pair, RIGHTARG = w.pair, FUNCTION = w.less)",
    "CREATE OPERATOR CLASS w.ordered DEFAULT FOR TYPE w.pair USING btree AS OPERATOR 1 w.<, FUNCTION 1 w.cmp(w.pair, w.pair)",
    "CREATE TYPE w.span AS RANGE (subtype = w.pair)",
    "CREATE TABLE w.t (a w.pair)", "INSERT INTO w.t VALUES (ROW(1))", "CREATE INDEX ON w.t (a)",
]
CMP = {
    "plpgsql": "CREATE FUNCTION w.cmp(w.pair, w.pair) RETURNS int LANGUAGE plpgsql {clauses} AS 'BEGIN RETURN w.whose(); END'",
    "sql": "CREATE FUNCTION w.cmp(w.pair, w.pair) RETURNS int LANGUAGE sql {clauses} AS 'SELECT w.whose()'",
}
CLAUSES = {
    "owner": ("SECURITY DEFINER", "ALTER FUNCTION w.cmp OWNER TO high"),
    "invoker": ("SECURITY DEFINER", "ALTER FUNCTION w.cmp SECURITY INVOKER"),
    "definer": ("", "ALTER FUNCTION w.cmp SECURITY DEFINER"),
    "setting": ("SET datestyle = 'ISO, DMY'", "ALTER FUNCTION w.cmp SET datestyle = 'ISO, YMD'"),
}
COMPARISONS = ["SELECT btarraycmp(ARRAY[ROW(1)]::pair[], ARRAY[ROW(2)]::pair[])", "SELECT span(ROW(1)::pair, ROW(2)::pair)",
               "INSERT INTO t VALUES (ROW(2))"]


@pytest.mark.parametrize("language", CMP)
@pytest.mark.parametrize("changed", CLAUSES)
def test_a_kept_comparison_function_runs_as_it_was_altered(cluster, changed, language):
    """The type cache and index entries keep what a function's owner and clauses were when it was first called."""
    clauses, alter = CLAUSES[changed]
    setup = [text.replace("{cmp}", CMP[language].format(clauses=clauses)) for text in ORDERED]
    history = History(setup, COMPARISONS, between=[alter], afterwards=["DROP OWNED BY low, high", "DROP ROLE low, high"])
    assert lived(cluster, cluster.pool_port, history) == lived(cluster, cluster.port, history)


# What stock refuses because the session itself has planned it for another type.
STOCK_S_ERROR = {"record_changes_within_a_session"}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_a_later_session_calls_what_it_would_have_compiled(cluster, case):
    if case in STOCK_S_ERROR and cluster.is_forced:
        pytest.skip("each backend plans it for one type")
    history = FUNCTIONS[case]
    assert lived(cluster, cluster.pool_port, history) == lived(cluster, cluster.port, history)


@pytest.mark.parametrize("language", ["plpgsql", "sql"])
@pytest.mark.parametrize("discard", ["DISCARD PLANS", "DISCARD ALL"])
def test_discard_reaches_functions_on_every_backend(cluster, discard, language):
    """The session discards on one backend, and calls the function on another."""
    body = {"plpgsql": function("f", "RETURN (SELECT v FROM seen);"),
            "sql": "CREATE FUNCTION w.f() RETURNS text LANGUAGE sql VOLATILE AS 'SELECT max(v) FROM seen'"}[language]
    answers = []
    for port in (cluster.pool_port, cluster.port):
        cluster.sql("DROP SCHEMA v, w CASCADE; CREATE SCHEMA v; CREATE SCHEMA w; CREATE TABLE w.seen AS SELECT 'behind'::text AS v")
        cluster.sql("SET search_path = v, w; " + body)
        if port == cluster.pool_port and cluster.backends == 2:
            start_two_backends(lambda c: login(c, port, "postgres"), cluster)
        with login(cluster, port, "postgres") as session:
            answers.append([session.query("SELECT f()") for _ in range(4)])
            cluster.sql("CREATE TABLE v.seen AS SELECT 'front'::text AS v")
            session.query(discard)
            if discard == "DISCARD ALL":
                session.query("SET search_path = v, w")
            answers[-1] += [session.query("SELECT f()") for _ in range(4)]
            session.finish()
    assert answers[0] == answers[1]


@pytest.mark.pool_only
def test_functions_with_records_are_planned_once_for_all(run):
    """If what they are about has the same types; and tables of other names are nothing to them."""
    cluster = run.cluster("shared-caches-one", parameters={"pg_baton.max_backends": 1}).start()
    cluster.sql("CREATE SCHEMA v; CREATE SCHEMA w")
    for text in FUNCTIONS["record_used_everywhere"].setup + FUNCTIONS["column_added_below_a_trigger"].setup:
        cluster.sql("SET search_path = v, w; " + text.replace("'%', ROW(NEW.*)", "'%', NEW"))
    calls = ["SELECT f('SELECT 1 AS v')", "INSERT INTO fired VALUES (1)"]
    sessions = [login(cluster, cluster.pool_port, "postgres") for _ in range(4)]
    try:
        for text in calls * 2:
            for session in sessions * 2:
                session.query(text)
        for session in sessions:
            cluster.sql("CREATE TABLE passing (a int); DROP TABLE passing")
            # itself, and what EXECUTE runs (two)
            assert [session.analyses(text) for text in calls] == [3, 1]
    finally:
        for session in sessions:
            session.finish()
    cluster.finish()


ELSEWHERE = {
    "pg_temp": "CREATE OR REPLACE FUNCTION pg_temp.passing{n}(int) RETURNS int LANGUAGE sql AS 'SELECT {n}'",
    "another_schema": "CREATE OR REPLACE FUNCTION other.g(int) RETURNS int LANGUAGE sql AS 'SELECT {n}'",
    "the_same_schema": "CREATE OR REPLACE FUNCTION w.passing{n}(int) RETURNS int LANGUAGE sql AS 'SELECT {n}'",
}


@pytest.mark.pool_only
@pytest.mark.parametrize("where", ELSEWHERE)
def test_others_functions_cost_no_session_its_own(run, where):
    """Neither compilations nor analyses; a function that could be meant is seen at once."""
    cluster = run.cluster(f"shared-caches-{where}", parameters={"pg_baton.max_backends": 1}).start()
    cluster.sql("CREATE SCHEMA v; CREATE SCHEMA w; CREATE SCHEMA other")
    cluster.sql("CREATE FUNCTION w.g(int) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN $1; END'")
    cluster.sql("CREATE FUNCTION w.body(int) RETURNS int LANGUAGE sql STABLE AS 'SELECT $1 + 1'")
    cluster.sql("SET search_path = v, w; " + function("f", "x := g(1); RETURN body(x) + (SELECT max(g(v)) FROM generate_series(1, 3) v);", "x int;"))
    sessions = [login(cluster, cluster.pool_port, "postgres") for _ in range(3)]
    other = Wire.login("127.0.0.1", cluster.port)
    calls = ["SELECT f()", "EXECUTE s"]
    try:
        for session in sessions:
            session.query("PREPARE s AS SELECT g(7)")
        for session in sessions * 3:
            for text in calls:
                session.query(text)
        other.query(ELSEWHERE[where].format(n=0))  # makes pg_temp: a new schema makes all plans invalid
        for session in sessions:
            assert [session.analyses(text) for text in calls] >= [1, 1]
        for number in range(100):
            other.query(ELSEWHERE[where].format(n=number))
        for session in sessions * 2:
            assert [session.analyses(text) for text in calls] == [1, 1]
        cluster.sql("CREATE FUNCTION v.g(int) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 100; END'")
        with login(cluster, cluster.pool_port, "postgres") as late:
            assert late.query("SELECT f()") == [["201"]]
            late.query("PREPARE s AS SELECT g(7)")
            late.finish()
        assert sessions[0].query("EXECUTE s") == [["100"]]
    finally:
        for session in (*sessions, other):
            session.finish()
    cluster.finish()


@pytest.mark.pool_only
def test_others_tables_cost_an_insert_no_analysis(run):
    """Into a table with a domain's column, or through views of it; the domain's own change does."""
    cluster = run.cluster("shared-caches-inserts", parameters={"pg_baton.max_backends": 1}).start()
    cluster.sql("CREATE DOMAIN kind AS int; CREATE TABLE kinds (v text, k kind)")
    cluster.sql("CREATE VIEW narrow AS SELECT v FROM kinds; CREATE VIEW narrower AS SELECT v FROM narrow")
    targets = ("kinds", "narrow", "narrower")
    sessions = [Wire.login("127.0.0.1", cluster.pool_port) for _ in range(3)]
    try:
        for session in sessions:
            for target in targets:
                session.query(f"PREPARE {target} AS INSERT INTO {target} (v) VALUES ('v')")
        for session in sessions * 3:
            for target in targets:
                session.query(f"EXECUTE {target}")
        for session in sessions:  # for the settings of those that are counted
            assert [session.analyses(f"EXECUTE {target}") for target in targets] >= [1, 1, 1]
        for session in sessions * 2:
            cluster.sql("CREATE TABLE passing (a int); DROP TABLE passing")
            assert [session.analyses(f"EXECUTE {target}") for target in targets] == [1, 1, 1]
        cluster.sql("ALTER DOMAIN kind SET DEFAULT 7")
        assert [sessions[0].analyses(f"EXECUTE {target}") for target in targets] == [2, 2, 2]
    finally:
        for session in sessions:
            session.finish()
    cluster.finish()


@pytest.mark.pool_only
def test_types_that_come_and_go_leave_nothing_in_a_backend(run):
    """What they are called is forgotten; what statements hold of others is not."""
    cluster = run.cluster("shared-caches-types", parameters={"pg_baton.max_backends": 1}).start()
    cluster.sql("CREATE SCHEMA v; CREATE SCHEMA w; CREATE TYPE w.pair AS (a int, b text)")
    cluster.sql(
        "CREATE PROCEDURE w.converts(number int) LANGUAGE plpgsql AS $$BEGIN FOR n IN 1..number LOOP"
        " CREATE DOMAIN w.passing AS int; EXECUTE 'SELECT 1::w.passing'; DROP DOMAIN w.passing; COMMIT; END LOOP; END$$"
    )
    size = "SELECT sum(total_bytes) FROM pg_backend_memory_contexts WHERE name LIKE 'pg_baton %types'"
    pair = "PREPARE s AS SELECT pg_typeof((ROW(1, 2)::pair).b)"
    with login(cluster, cluster.pool_port, "postgres") as one, login(cluster, cluster.pool_port, "postgres") as other:
        sizes = []
        for number in range(8):
            if number == 3:
                one.query(pair)
            sizes.append(int(one.query(size)[0][0]))
            other.query("CALL converts(500)")
        assert max(sizes[4:]) <= max(sizes[:4]), sizes
        cluster.sql("DROP TYPE w.pair; CREATE TYPE w.pair AS (a int, b numeric)")
        other.query(pair)
        for session in (one, other) * 2:
            assert session.query("EXECUTE s") == [["numeric"]]
        one.finish()
        other.finish()
    cluster.finish()
