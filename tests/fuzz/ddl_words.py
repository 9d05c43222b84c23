"""Objects that are created, changed and dropped beside sessions, and the sessions' queries of them.

A topic is a thing that changes.  A use is a query of one text value. It is asked
in many ways (ddl.py), also from within functions that the layout makes of it
(`use_N` in PL/pgSQL, `sql_use_N` in SQL).  Names are in full, because the other
vocabulary changes search_path. The exception is a query that tests which of
several objects a name means.
"""

from __future__ import annotations

from dataclasses import dataclass

from .history import COMPILED


@dataclass(frozen=True)
class Change:
    sql: str
    untold: tuple[str, ...] = ()
    """Topics of which sessions hear nothing that makes them look again (history.py)."""
    shuts_out: tuple[str, ...] = ()
    """Roles (role_words.py) that may not log in afterwards, or as somebody else."""


@dataclass(frozen=True)
class Use:
    query: str
    topics: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    """Of its parameter $1, a text, if it has one."""
    writes: bool = False
    wrapped: bool = True
    """Are there functions that ask it?"""


@dataclass(frozen=True)
class Call:
    """A statement that calls a function of the layout. The function keeps something for the session."""

    sql: str
    topics: tuple[str, ...]
    value: str = ""


@dataclass(frozen=True)
class Group:
    """Things that belong together: an episode takes a few groups, so that they meet often."""

    name: str
    setup: str
    changes: tuple[Change, ...] = ()
    uses: tuple[Use, ...] = ()
    calls: tuple[Call, ...] = ()
    own: tuple[Change, ...] = ()
    """Of the session's own alone."""


GROUPS: list[Group] = []


def topic(name: str, setup: str, changes: tuple[Change, ...] = (), uses: tuple[Use, ...] = (), calls: tuple[Call, ...] = (),
          own: tuple[Change, ...] = ()) -> None:
    GROUPS.append(Group(name, setup, changes, uses, calls, own))


def returns(kind: str, name: str, body: str, arguments: str = "", language: str = "plpgsql", marks: str = "") -> str:
    return (f"CREATE OR REPLACE FUNCTION {name}({arguments}) RETURNS {kind} LANGUAGE {language} {marks}"
            f" AS $f${body}$f$")


# -- tenants: schemas told apart by search_path -----------------------------------

TENANTS = ("t1", "t2")
SEARCH_PATHS = ("t1,public", "t2,public", "t1,t2,public", "club,t1,public", "club,public")

SCHEMAS = ("CREATE SCHEMA t1; CREATE SCHEMA t2; CREATE SCHEMA club;"
      "GRANT USAGE ON SCHEMA t1, t2 TO public; GRANT USAGE ON SCHEMA club TO crew;")

topic(
    "sequences of tenants",
    "CREATE SEQUENCE public.ticket; GRANT ALL ON public.ticket TO public;",
    changes=tuple(
        Change(sql, untold)
        for tenant in TENANTS
        for sql, untold in (
            (f"CREATE SEQUENCE {tenant}.ticket START {tenant[1]}000; GRANT ALL ON {tenant}.ticket TO public", ("ticket",)),
            (f"CREATE SEQUENCE {tenant}.ticket START {tenant[1]}500; GRANT ALL ON {tenant}.ticket TO public", ("ticket",)),
            (f"DROP SEQUENCE {tenant}.ticket", ()),
            (f"DROP SEQUENCE {tenant}.ticket", ()),
        )
    ) + (Change("DROP SEQUENCE public.ticket; CREATE SEQUENCE public.ticket START 50; GRANT ALL ON public.ticket TO public"),),
    uses=(
        Use("SELECT nextval('ticket')::text", ("ticket",), writes=True),
        Use("SELECT (nextval('ticket') * $1::int)::text", ("ticket",), ("1", "3"), writes=True),
        Use("SELECT currval('ticket')::text", ("ticket",)),
        Use("SELECT 'ticket'::regclass::text", ("ticket",)),
        Use("SELECT (last_value >= 1)::text FROM ticket", ("ticket",)),
    ),
)

topic(
    "objects of tenants",
    "CREATE TABLE public.item AS SELECT 'public'::text AS v; GRANT ALL ON public.item TO public;"
    + returns("text", "public.rate", "SELECT 'public rate'", language="sql") + ";"
    + "CREATE VIEW public.shown AS SELECT 'public view'::text AS v; GRANT ALL ON public.shown TO public;"
    "CREATE DOMAIN public.code AS text CHECK (length(value) < 9);"
    + returns("text", "public.item_row", "DECLARE r item%ROWTYPE; BEGIN SELECT * INTO r FROM item LIMIT 1; RETURN r.v; END") + ";"
    + returns("text", "public.item_type", "DECLARE v item.v%TYPE; BEGIN SELECT i.v INTO v FROM item i LIMIT 1; RETURN pg_typeof(v); END") + ";"
    + returns("text", "public.item_loop", "DECLARE r record; acc text := ''; BEGIN FOR r IN SELECT * FROM item LOOP"
              " acc := acc || r.v || pg_typeof(r.v); END LOOP; RETURN acc; END") + ";",
    changes=tuple(
        Change(sql, untold)
        for tenant in TENANTS
        for sql, untold in (
            (f"CREATE TABLE {tenant}.item AS SELECT '{tenant}'::text AS v; GRANT ALL ON {tenant}.item TO public", ("item",)),
            (f"CREATE TABLE {tenant}.item AS SELECT {tenant[1]} AS v; GRANT ALL ON {tenant}.item TO public", ("item",)),
            (f"CREATE VIEW {tenant}.item AS SELECT '{tenant} view'::varchar AS v; GRANT ALL ON {tenant}.item TO public", ("item",)),
            (f"DROP TABLE {tenant}.item", ("item",)), (f"DROP TABLE {tenant}.item", ("item",)),
            (f"DROP VIEW {tenant}.item", ("item",)),
            (returns("text", f"{tenant}.rate", f"SELECT '{tenant} rate'", language="sql"), ("rate",)),
            (returns("text", f"{tenant}.rate", f"BEGIN RETURN '{tenant} PL/pgSQL'; END"), ("rate",)),
            (f"DROP FUNCTION {tenant}.rate()", ()),
            (f"CREATE VIEW {tenant}.shown AS SELECT 5.5 AS v; GRANT ALL ON {tenant}.shown TO public", ("shown",)),
            (f"DROP VIEW {tenant}.shown", ()),
            (f"CREATE DOMAIN {tenant}.code AS text CHECK (length(value) < 4)", ("code",)),
            (f"DROP DOMAIN {tenant}.code", ("code",)),
            (f"DROP SCHEMA {tenant} CASCADE; CREATE SCHEMA {tenant}; GRANT USAGE ON SCHEMA {tenant} TO public",
             ("item", "rate", "shown", "code", "ticket")),
        )
    ) + (
        Change("ALTER SCHEMA t1 RENAME TO t3; ALTER SCHEMA t2 RENAME TO t1; ALTER SCHEMA t3 RENAME TO t2",
               ("item", "rate", "shown", "code", "ticket")),
    ),
    uses=(
        Use("SELECT string_agg(v::text, ',') FROM item", ("item",)),
        Use("SELECT pg_typeof(v)::text FROM item LIMIT 1", ("item",)),
        Use("SELECT max(i::text) FROM item i WHERE v::text > $1", ("item",), ("", "t1", "z")),
        Use("SELECT (to_regclass('item')::oid = 'item'::regclass::oid)::text", ("item",)),
        Use("SELECT rate()", ("rate",)),
        Use("SELECT rate() || $1", ("rate",), ("!", "?")),
        Use("SELECT string_agg(v::text, ',') FROM shown", ("shown",)),
        Use("SELECT 'six sx'::code::text", ("code",)),
        Use("SELECT $1::code::text", ("code",), ("ab", "abcdef", "abcdefghijk")),
    ),
    calls=(
        Call("SELECT public.item_row()", ("item", COMPILED)), Call("SELECT public.item_type()", ("item", COMPILED)),
        Call("SELECT public.item_loop()", ("item",)),
    ),
    own=(
        Change("CREATE TEMP TABLE item AS SELECT 'temporary'::text AS v", ("item",)),
        Change("CREATE TEMP TABLE item AS SELECT 99 AS v", ("item",)),
        Change("CREATE TEMP VIEW shown AS SELECT 'temporary view'::text AS v", ("shown",)),
        Change("DROP TABLE pg_temp.item", ("item",)), Change("DROP TABLE pg_temp.item", ("item",)),
        Change("DROP VIEW pg_temp.shown", ("shown",)), Change("DISCARD TEMP", ("item", "shown")),
    ),
)

# USAGE of a schema of search_path, by way of a group.
topic(
    "memberships",
    "CREATE TABLE club.item AS SELECT 'club'::text AS v; GRANT ALL ON club.item TO public;"
    "CREATE SEQUENCE club.ticket START 9000; GRANT ALL ON club.ticket TO public;"
    "CREATE TABLE public.vault AS SELECT 'gold'::text AS v; GRANT SELECT ON public.vault TO crew;",
    changes=(
        # Mostly changes that pg_namespace's own invalidations do not tell.
        Change("GRANT crew TO alice", ("path",)), Change("REVOKE crew FROM alice", ("path",)),
        Change("GRANT crew TO alice", ("path",)), Change("REVOKE crew FROM alice", ("path",)),
        Change("GRANT crew TO bob; REVOKE crew FROM alice", ("path",)),
        Change("REVOKE crew FROM bob; GRANT crew TO alice", ("path",)),
        Change("ALTER ROLE alice NOINHERIT", ("path",)), Change("ALTER ROLE alice INHERIT; GRANT crew TO alice", ("path",)),
        Change("GRANT USAGE ON SCHEMA club TO bob", ("path",)), Change("REVOKE USAGE ON SCHEMA club FROM bob", ("path",)),
    ),
    uses=(
        Use("SELECT current_schemas(false)::text"), Use("SELECT current_schemas(false)::text"),
        Use("SELECT string_agg(v::text, ',') FROM item", ("item",)), Use("SELECT nextval('ticket')::text", ("ticket",), writes=True),
        Use("SELECT max(v) FROM public.vault"),
        Use("SELECT pg_has_role('crew', 'usage')::text || pg_has_role('crew', 'member')::text"),
    ),
)

# -- types ----------------------------------------------------------------------

MOOD = ("CREATE TYPE public.mood AS ENUM ('active', 'off', 'spare'); CREATE TABLE public.by_mood (s public.mood, v text);"
        "INSERT INTO public.by_mood VALUES ('active', 'one'), ('off', 'two'), ('spare', 'three'), ('off', 'four');"
        "GRANT ALL ON public.by_mood TO public;")


def renamed(old: str, new: str) -> str:
    return f"ALTER TYPE public.mood RENAME VALUE '{old}' TO '{new}'"


topic(
    "enums",
    MOOD,
    changes=(
        Change(f"{renamed('active', 'x')}; {renamed('off', 'active')}; {renamed('x', 'off')}", ("mood",)),
        Change(f"{renamed('spare', 'x')}; {renamed('off', 'spare')}; {renamed('x', 'off')}", ("mood",)),
        Change(renamed("spare", "rare"), ("mood",)), Change(renamed("rare", "spare"), ("mood",)),
        Change("ALTER TYPE public.mood ADD VALUE IF NOT EXISTS 'early' BEFORE 'active'", ("mood",)),
        Change("ALTER TYPE public.mood ADD VALUE IF NOT EXISTS 'between' AFTER 'active'", ("mood",)),
        Change(f"DROP TABLE public.by_mood; DROP TYPE public.mood; {MOOD}", ("mood",)),
        Change("UPDATE public.by_mood SET s = 'between' WHERE v = 'four'"),
    ),
    uses=(
        Use("SELECT string_agg(v, ',' ORDER BY v) FROM public.by_mood WHERE s = 'active'", ("mood",)),
        Use("SELECT 'spare'::public.mood::text", ("mood",)),
        Use("SELECT string_agg(s::text || (s > 'off')::text, ',' ORDER BY s, v) FROM public.by_mood", ("mood",)),
        Use("SELECT enum_range(NULL::public.mood)::text", ("mood",)),
        Use("SELECT string_agg(v, ',' ORDER BY v) FROM public.by_mood WHERE s = $1::public.mood", ("mood",),
            ("active", "rare", "between")),
        Use("SELECT string_agg(v, ',' ORDER BY v) FROM public.by_mood WHERE s IN ('active', 'off') AND v <> $1", ("mood",),
            ("one", "")),
    ),
)

topic(
    "casts",
    "CREATE TYPE public.grade AS ENUM ('a', 'b'); CREATE TYPE public.weight AS (grams int);"
    + returns("int", "public.grade_one", "SELECT CASE WHEN $1::text = 'a' THEN 1 ELSE 2 END", "public.grade", "sql", "STABLE") + ";"
    + returns("int", "public.grade_two", "BEGIN RETURN CASE WHEN $1::text = 'a' THEN 100 ELSE 200 END; END", "public.grade", marks="IMMUTABLE") + ";"
    + returns("int", "public.weight_one", "SELECT $1.grams", "public.weight", "sql") + ";"
    + returns("int", "public.weight_two", "SELECT $1.grams * 1000", "public.weight", "sql") + ";"
    + returns("public.weight", "public.text_weight", "SELECT ROW(length($1))::public.weight", "text", "sql") + ";"
    + "CREATE CAST (public.grade AS int) WITH FUNCTION public.grade_one(public.grade);"
    + returns("text", "public.grade_assign", "DECLARE g public.grade := 'b'; n int; BEGIN n := g; RETURN n; END") + ";"
    + returns("text", "public.weight_assign", "DECLARE w public.weight := ROW(7); n int; BEGIN n := w; RETURN n; END") + ";"
    + returns("text", "public.grade_return", "DECLARE g public.grade := 'a'; n numeric; BEGIN n := g; RETURN n; END") + ";",
    changes=tuple(
        Change(sql, ("cast",))
        for kind, source in (("grade", "public.grade"), ("weight", "public.weight"))
        for sql in (
            f"DROP CAST ({source} AS int)", f"CREATE CAST ({source} AS int) WITH FUNCTION public.{kind}_one({source})",
            f"CREATE CAST ({source} AS int) WITH FUNCTION public.{kind}_two({source}) AS ASSIGNMENT",
            f"CREATE CAST ({source} AS int) WITH FUNCTION public.{kind}_two({source}) AS IMPLICIT",
            f"DROP CAST IF EXISTS ({source} AS int); CREATE CAST ({source} AS int) WITH FUNCTION public.{kind}_two({source})",
            f"DROP CAST IF EXISTS ({source} AS int); CREATE CAST ({source} AS int) WITH FUNCTION public.{kind}_one({source}) AS IMPLICIT",
        )
    ) + (
        Change("CREATE CAST (text AS public.weight) WITH FUNCTION public.text_weight(text)", ("cast",)),
        Change("DROP CAST (text AS public.weight)", ("cast",)),
    ),
    uses=(
        Use("SELECT ('b'::public.grade)::int::text", ("cast",)),
        Use("SELECT ('b'::public.grade + 1)::text", ("cast",)),
        Use("SELECT ($1::public.grade::int + 1)::text", ("cast",), ("a", "b")),
        Use("SELECT (ROW(7)::public.weight)::int::text", ("cast",)),
        Use("SELECT ('(9)'::public.weight + $1::int)::text", ("cast",), ("1", "2")),
        Use("SELECT ($1::text::public.weight)::text", ("cast",), ("(3)", "(44)")),
    ),
    calls=(
        Call("SELECT public.grade_assign()", ("cast",)), Call("SELECT public.weight_assign()", ("cast",)),
        Call("SELECT public.grade_return()", ("cast",)),
    ),
)

topic(
    "domains",
    "CREATE DOMAIN public.positive AS int CONSTRAINT low CHECK (value > 0);"
    + returns("text", "public.positive_of", "DECLARE p public.positive := 1; BEGIN p := $1; RETURN p; END", "int") + ";",
    changes=(
        Change("ALTER DOMAIN public.positive DROP CONSTRAINT IF EXISTS low"),
        Change("ALTER DOMAIN public.positive ADD CONSTRAINT low CHECK (value > 0)"),
        Change("ALTER DOMAIN public.positive DROP CONSTRAINT IF EXISTS high"),
        Change("ALTER DOMAIN public.positive ADD CONSTRAINT high CHECK (value < 100)"),
    ),
    uses=(
        Use("SELECT 500::public.positive::text"),
        Use("SELECT $1::int::public.positive::text", values=("5", "500", "-1")),
    ),
    calls=(Call("SELECT public.positive_of(5)", ()), Call("SELECT public.positive_of(500)", ()),
           Call("SELECT public.positive_of(-1)", ())),
)

topic(
    "row types",
    "CREATE TYPE public.pt AS (a int, b text); CREATE TABLE public.thing AS SELECT 1 AS a, 'x'::text AS v;"
    "GRANT ALL ON public.thing TO public;"
    + returns("text", "public.pt_variable", "DECLARE p public.pt; BEGIN p := ROW(1, '2'); RETURN p; END") + ";"
    + returns("text", "public.thing_type", "DECLARE x public.thing.v%TYPE; BEGIN SELECT v INTO x FROM public.thing LIMIT 1;"
              " RETURN pg_typeof(x); END") + ";"
    + returns("text", "public.thing_row", "DECLARE x public.thing%ROWTYPE; BEGIN SELECT * INTO x FROM public.thing LIMIT 1; RETURN x; END") + ";"
    + returns("text", "public.thing_loop", "DECLARE r record; acc text := ''; BEGIN FOR r IN SELECT * FROM public.thing LOOP"
              " acc := acc || r.v; END LOOP; RETURN acc; END") + ";"
    + returns("text", "public.thing_cursor", "DECLARE c CURSOR FOR SELECT * FROM public.thing; r record; BEGIN OPEN c; FETCH c INTO r;"
              " CLOSE c; RETURN r.v || '.'; END") + ";",
    changes=tuple(
        Change(f"DROP TABLE public.thing; CREATE TABLE public.thing AS SELECT 1 AS a, {value} AS v; GRANT ALL ON public.thing TO public",
               ("rowtype",))
        for value in ("'x'::text", "7", "1.5::numeric", "true", "'2 days'::interval", "'y'::varchar(3)")
    ) + (
        Change("ALTER TABLE public.thing ALTER COLUMN v TYPE text", ("rowtype",)),
        Change("ALTER TABLE public.thing ADD COLUMN IF NOT EXISTS w int DEFAULT 3", ("rowtype",)),
        Change("ALTER TABLE public.thing DROP COLUMN IF EXISTS w", ("rowtype",)),
        Change("INSERT INTO public.thing SELECT * FROM public.thing LIMIT 1"),
        Change("DROP TYPE public.pt; CREATE TYPE public.pt AS (a text, b numeric)", ("rowtype",)),
        Change("DROP TYPE public.pt; CREATE TYPE public.pt AS (a int, b text)", ("rowtype",)),
        Change("ALTER TYPE public.pt ADD ATTRIBUTE c int", ("rowtype",)),
        Change("ALTER TYPE public.pt DROP ATTRIBUTE IF EXISTS c", ("rowtype",)),
    ),
    uses=(
        Use("SELECT string_agg(v::text, ',') FROM public.thing"),
        Use("SELECT pg_typeof(v)::text FROM public.thing LIMIT 1"),
        Use("SELECT max(t::text) FROM public.thing t WHERE a < $1::int", values=("0", "5")),
        Use("SELECT * FROM public.thing LIMIT 1", wrapped=False),
        Use("SELECT ROW(1, '2')::public.pt::text", ("rowtype",)),
        Use("SELECT ('(1,2)'::public.pt).b::text", ("rowtype",)),
    ),
    calls=tuple(Call(f"SELECT public.{name}()", ("rowtype",))
                for name in ("pt_variable", "thing_type", "thing_row", "thing_loop", "thing_cursor")),
)

# -- functions ------------------------------------------------------------------

topic(
    "functions",
    "CREATE TABLE public.conf AS SELECT 2025 AS y; GRANT ALL ON public.conf TO public;"
    + returns("text", "public.said", "SELECT 'one'::text", language="sql") + ";"
    + returns("text", "public.inner_text", "SELECT 'inner'::text", language="sql", marks="IMMUTABLE") + ";"
    + returns("text", "public.outer_text", "BEGIN RETURN public.inner_text(); END", marks="IMMUTABLE") + ";"
    + returns("int", "public.year_immutable", "BEGIN RETURN (SELECT y FROM public.conf); END", marks="IMMUTABLE") + ";"
    + returns("int", "public.year_sql", "SELECT y FROM public.conf", language="sql", marks="IMMUTABLE") + ";"
    + returns("int", "public.year_stable", "BEGIN RETURN (SELECT y FROM public.conf); END", marks="STABLE") + ";"
    + returns("text", "public.year_inside", "BEGIN RETURN public.year_immutable() + 1; END") + ";",
    changes=tuple(Change(f"UPDATE public.conf SET y = {year}", ("conf",)) for year in (2026, 2027, 2028))
    + tuple(
        Change(returns("text", "public.said", body, language=language, marks=marks))
        for body, language, marks in (
            ("SELECT 'two'::text", "sql", "IMMUTABLE"), ("SELECT 'three'::text", "sql", "STABLE"),
            ("BEGIN RETURN 'four'; END", "plpgsql", "VOLATILE"), ("BEGIN RETURN 'five'; END", "plpgsql", "IMMUTABLE"),
            ("BEGIN RETURN current_user; END", "plpgsql", "SECURITY DEFINER"),
            ("BEGIN RETURN current_setting('work_mem'); END", "plpgsql", "SET work_mem = '999kB'"),
            ("SELECT current_user::text", "sql", "STABLE SECURITY DEFINER"),
        )
    )
    + (
        Change("DROP FUNCTION public.said(); " + returns("int", "public.said", "SELECT 6", language="sql")),
        Change("DROP FUNCTION public.said(); " + returns("text", "public.said", "SELECT 'seven'::text", language="sql")),
        Change(returns("text", "public.inner_text", "SELECT 'changed'::text", language="sql", marks="IMMUTABLE"), ("conf",)),
        Change(returns("text", "public.inner_text", "BEGIN RETURN 'in PL/pgSQL'; END", marks="IMMUTABLE"), ("conf",)),
        Change("ALTER FUNCTION public.year_stable() IMMUTABLE", ("conf",)),
        Change("ALTER FUNCTION public.year_stable() STABLE", ("conf",)),
    ),
    uses=(
        Use("SELECT public.said()::text"),
        Use("SELECT public.said()::text || $1", values=("!", "?")),
        Use("SELECT public.outer_text()", ("conf",)),
        Use("SELECT public.year_immutable()::text", ("conf",)),
        Use("SELECT (public.year_immutable() + $1::int)::text", ("conf",), ("0", "1")),
        Use("SELECT public.year_sql()::text", ("conf",)),
        Use("SELECT (public.year_stable() + $1::int)::text", ("conf",), ("0", "1")),
        Use("SELECT string_agg(y::text, ',') FROM public.conf WHERE y = public.year_immutable()", ("conf",)),
    ),
    calls=(Call("SELECT public.year_inside()", ("conf",)),),
)

# Settings.  app.tenant is set at login, or changed where history.py permits it; app.region at any time.
topic(
    "settings and policies",
    returns("text", "public.tenant_immutable", "BEGIN RETURN current_setting('app.tenant', true); END", marks="IMMUTABLE") + ";"
    + returns("text", "public.tenant_stable", "SELECT current_setting('app.tenant', true)", language="sql", marks="STABLE") + ";"
    + returns("text", "public.region", "BEGIN RETURN current_setting('app.region', true); END", marks="STABLE") + ";"
    + returns("text", "public.region_volatile", "BEGIN RETURN current_setting('app.region', true); END") + ";"
    + returns("text", "public.tenant_inside", "DECLARE r record; acc text := ''; BEGIN FOR r IN SELECT body FROM public.doc"
              " WHERE tenant = public.tenant_immutable() ORDER BY 1 LOOP acc := acc || r.body; END LOOP; RETURN acc; END") + ";"
    "CREATE TABLE public.doc (owner text, tenant text, region text, body text); GRANT ALL ON public.doc TO public;"
    "INSERT INTO public.doc SELECT o, t, r, o || t || r FROM unnest(ARRAY['alice', 'bob']) o, unnest(ARRAY['t1', 't2']) t,"
    " unnest(ARRAY['north', 'south']) r;"
    "ALTER TABLE public.doc ENABLE ROW LEVEL SECURITY; CREATE POLICY seen ON public.doc USING (owner = current_user);",
    changes=tuple(
        Change(f"DROP POLICY seen ON public.doc; CREATE POLICY seen ON public.doc USING ({condition})")
        for condition in ("owner = current_user", "tenant = current_setting('app.tenant', true)", "tenant = public.tenant_stable()",
                          "tenant = public.tenant_immutable()", "region = public.region()", "region = public.region_volatile()",
                          "owner = current_user AND tenant = public.tenant_immutable()", "true")
    ) + (
        Change("ALTER TABLE public.doc DISABLE ROW LEVEL SECURITY"), Change("ALTER TABLE public.doc ENABLE ROW LEVEL SECURITY"),
        Change("ALTER TABLE public.doc FORCE ROW LEVEL SECURITY"),
        Change("ALTER ROLE alice SET app.tenant = 't2'"), Change("ALTER ROLE bob SET app.region = 'north'"),
        Change("ALTER ROLE alice IN DATABASE :database SET app.region = 'south'"), Change("ALTER ROLE alice RESET app.tenant"),
        Change("ALTER DATABASE :database SET app.tenant = 't1'"), Change("ALTER DATABASE :database SET search_path = t2, public"),
        Change("ALTER DATABASE :database RESET ALL"), Change("ALTER ROLE alice RESET ALL"),
    ),
    uses=(
        Use("SELECT string_agg(body, ',' ORDER BY body) FROM public.doc", ("tenant",)),
        Use("SELECT string_agg(body, ',' ORDER BY body) FROM public.doc WHERE region > $1", ("tenant",), ("", "north")),
        Use("SELECT public.tenant_immutable()", ("tenant",)),
        Use("SELECT public.tenant_immutable() || $1", ("tenant",), ("!", "?")),
        Use("SELECT public.tenant_stable()"), Use("SELECT public.region()"), Use("SELECT public.region_volatile() || $1", values=("!",)),
        Use("SELECT count(*)::text FROM public.doc WHERE tenant = public.tenant_immutable() AND region = public.region()", ("tenant",)),
    ),
    calls=(Call("SELECT public.tenant_inside()", ("tenant",)),),
)

# -- text search, roles, views, constants -----------------------------------------

# No to_tsquery(): its NOTICE about stop words comes again when a plan is made again.
DOCS = "CREATE TEXT SEARCH CONFIGURATION public.docs (COPY = pg_catalog.english)"
topic(
    "text search",
    DOCS + "; CREATE TEXT SEARCH DICTIONARY public.plain (TEMPLATE = simple);",
    changes=(
        Change("ALTER TEXT SEARCH CONFIGURATION public.docs ALTER MAPPING REPLACE english_stem WITH public.plain, english_stem", ("docs",)),
        Change("ALTER TEXT SEARCH DICTIONARY public.plain (ACCEPT = false)", ("docs",)),
        Change("ALTER TEXT SEARCH DICTIONARY public.plain (ACCEPT = true)", ("docs",)),
        Change("ALTER TEXT SEARCH CONFIGURATION public.docs ALTER MAPPING REPLACE english_stem WITH simple", ("docs",)),
        Change("ALTER TEXT SEARCH CONFIGURATION public.docs ALTER MAPPING REPLACE simple WITH english_stem", ("docs",)),
        Change("ALTER TEXT SEARCH CONFIGURATION public.docs DROP MAPPING IF EXISTS FOR asciiword", ("docs",)),
        Change("ALTER TEXT SEARCH CONFIGURATION public.docs DROP MAPPING IF EXISTS FOR asciiword;"
               "ALTER TEXT SEARCH CONFIGURATION public.docs ADD MAPPING FOR asciiword WITH simple", ("docs",)),
        Change(f"DROP TEXT SEARCH CONFIGURATION public.docs; {DOCS}", ("docs",)),
        Change("DROP TEXT SEARCH CONFIGURATION public.docs; CREATE TEXT SEARCH CONFIGURATION public.docs (COPY = pg_catalog.simple)",
               ("docs",)),
    ),
    uses=(
        Use("SELECT to_tsvector('public.docs', 'The running dogs')::text", ("docs",)),
        Use("SELECT to_tsvector('public.docs', $1)::text", ("docs",), ("Cats sleep", "the end")),
        Use("SELECT ts_headline('public.docs', 'Cats run', 'running'::tsquery)", ("docs",)),
    ),
)

topic(
    "views",
    "CREATE VIEW public.seen AS SELECT 'seen'::text AS v; GRANT ALL ON public.seen TO public;",
    changes=(
        Change("CREATE OR REPLACE VIEW public.seen AS SELECT 'replaced'::text AS v"),
        Change("DROP VIEW public.seen; CREATE VIEW public.seen AS SELECT 5 AS v; GRANT ALL ON public.seen TO public"),
        Change("DROP VIEW public.seen; CREATE VIEW public.seen AS SELECT 'again'::text AS v, current_user AS w;"
               "GRANT ALL ON public.seen TO public"),
    ),
    uses=(
        Use("SELECT string_agg(v::text, ',') FROM public.seen"),
        Use("SELECT max(s::text) FROM public.seen s"),
        Use("SELECT * FROM public.seen", wrapped=False),
    ),
)

topic(
    "roles as constants",
    "",
    changes=(
        Change("ALTER ROLE fuzz_one RENAME TO fuzz_x; ALTER ROLE fuzz_two RENAME TO fuzz_one; ALTER ROLE fuzz_x RENAME TO fuzz_two",
               ("role",)),
        Change("DROP ROLE fuzz_one; CREATE ROLE fuzz_one", ("role",)),
        Change("GRANT fuzz_one TO alice", ("role",)), Change("REVOKE fuzz_one FROM alice", ("role",)),
    ),
    uses=(
        Use("SELECT 'fuzz_one'::regrole::text", ("role",)),
        Use("SELECT ('fuzz_one'::regrole::oid = (SELECT oid FROM pg_roles WHERE rolname = 'fuzz_one'))::text", ("role",)),
        Use("SELECT pg_has_role('fuzz_one', 'member')::text", ("role",)),
        Use("SELECT ('now'::timestamptz >= backend_start)::text FROM pg_stat_activity WHERE pid = pg_backend_pid()"),
        Use("SELECT (max(column1) >= (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()))::text"
            " FROM (VALUES ('now'::timestamptz)) v"),
    ),
)

# -- records, dynamic SQL, temporary tables --------------------------------------

RECORD_VALUES = {
    "int": "7", "text": "'x'::text", "numeric": "1.5::numeric", "bool": "true", "interval": "'2 days'::interval",
    "varchar": "'yy'::varchar(5)", "bigint": "8::bigint", "array": "ARRAY[1, 2]::text",
}
RECORD_FUNCTIONS = {
    "record_first": "DECLARE r record; BEGIN EXECUTE $1 INTO r; RETURN r.v || '!'; END",
    "record_loop": "DECLARE r record; acc text := ''; BEGIN FOR r IN EXECUTE $1 LOOP acc := acc || r.v; END LOOP; RETURN acc; END",
    "record_cursor": "DECLARE c refcursor; r record; acc text := ''; BEGIN OPEN c FOR EXECUTE $1; LOOP FETCH c INTO r; EXIT WHEN NOT FOUND;"
                     " acc := acc || r.v; END LOOP; CLOSE c; RETURN acc; END",
    "record_temporary": "DECLARE r record; acc text := ''; BEGIN EXECUTE 'CREATE TEMP TABLE at_work ON COMMIT DROP AS ' || $1;"
                        " FOR r IN SELECT * FROM at_work LOOP acc := acc || r.v; END LOOP;"
                        " INSERT INTO at_work SELECT * FROM at_work; SELECT count(v)::text || max(v::text) INTO acc FROM at_work;"
                        " DROP TABLE at_work; RETURN acc; END",
    "record_compared": "DECLARE r record; s record; BEGIN EXECUTE $1 INTO r; s := r; IF s.v IS NOT DISTINCT FROM r.v THEN"
                       " RETURN s.v || ''; END IF; RETURN r; END",
    "record_passed": "DECLARE r record; BEGIN EXECUTE $1 INTO r; RETURN public.record_shown(r) || public.any_shown(r.v); END",
    "record_kept": "DECLARE r record; n text; BEGIN EXECUTE $1 INTO r; BEGIN n := r.v || 'kept'; PERFORM 1/0;"
                   " EXCEPTION WHEN division_by_zero THEN n := n || r.v; END; RETURN n; END",
    "record_many": "DECLARE r record; acc text := ''; BEGIN FOR i IN 1..3 LOOP EXECUTE $1 INTO r; acc := acc || coalesce(r.v || ',', '');"
                   " END LOOP; RETURN acc; END",
}
topic(
    "records",
    returns("text", "public.record_shown", "BEGIN RETURN $1.v || 'shown'; END", "r record") + ";"
    + returns("text", "public.any_shown", "BEGIN RETURN pg_typeof(x) || (x || ''); END", "x anyelement") + ";"
    + "".join(returns("text", f"public.{name}", body, "q text") + ";" for name, body in RECORD_FUNCTIONS.items()),
    changes=(
        Change(returns("text", "public.record_shown", "BEGIN RETURN $1.v || 'shown otherwise'; END", "r record")),
    ),
    calls=tuple(
        Call(f"SELECT public.{name}($q$SELECT {value} AS v$q$)", (name,), kind)
        for name in RECORD_FUNCTIONS
        for kind, value in RECORD_VALUES.items()
    ),
)

# -- migrations, beside sessions with prepared statements --------------------------

topic(
    "tables altered",
    "CREATE TABLE public.ledger (id int PRIMARY KEY, amount int NOT NULL, note text DEFAULT 'none');"
    "INSERT INTO public.ledger SELECT i, i * 10, 'note ' || i FROM generate_series(1, 9) i; GRANT ALL ON public.ledger TO public;"
    "CREATE SEQUENCE public.ledger_ids START 100; GRANT ALL ON public.ledger_ids TO public;"
    "CREATE MATERIALIZED VIEW public.totals AS SELECT count(*) AS c FROM public.ledger; GRANT ALL ON public.totals TO public;"
    + returns("text", "public.ledger_note", "DECLARE l public.ledger; BEGIN SELECT * INTO l FROM public.ledger WHERE id = 2; RETURN l; END") + ";",
    changes=(
        Change("ALTER TABLE public.ledger ADD COLUMN IF NOT EXISTS state text DEFAULT 'new'", ("ledger",)),
        Change("ALTER TABLE public.ledger ADD COLUMN IF NOT EXISTS state int DEFAULT 3", ("ledger",)),
        Change("ALTER TABLE public.ledger DROP COLUMN IF EXISTS state", ("ledger",)),
        Change("ALTER TABLE public.ledger ALTER COLUMN amount TYPE bigint", ("ledger",)),
        Change("ALTER TABLE public.ledger ALTER COLUMN amount TYPE numeric USING amount + 0.5", ("ledger",)),
        Change("ALTER TABLE public.ledger ALTER COLUMN amount TYPE int", ("ledger",)),
        Change("ALTER TABLE public.ledger RENAME COLUMN note TO remark", ("ledger",)),
        Change("ALTER TABLE public.ledger RENAME COLUMN remark TO note", ("ledger",)),
        Change("ALTER TABLE public.ledger RENAME TO old_ledger;"
               "CREATE TABLE public.ledger (id int, amount text, note text); GRANT ALL ON public.ledger TO public;"
               "INSERT INTO public.ledger SELECT id, amount || '!', 'new' FROM public.old_ledger", ("ledger",)),
        Change("DROP TABLE public.ledger; ALTER TABLE public.old_ledger RENAME TO ledger", ("ledger",)),
        Change("ALTER TABLE public.ledger SET SCHEMA t1; ALTER TABLE t1.ledger SET SCHEMA public"),
        Change("CREATE INDEX IF NOT EXISTS ledger_amount ON public.ledger (amount)"), Change("DROP INDEX IF EXISTS public.ledger_amount"),
        Change("CREATE INDEX CONCURRENTLY IF NOT EXISTS ledger_note ON public.ledger (id, amount)"),
        Change("REINDEX TABLE public.ledger"), Change("REINDEX TABLE CONCURRENTLY public.ledger"),
        Change("ALTER TABLE public.ledger ADD CHECK (amount IS NOT NULL)"), Change("ALTER TABLE public.ledger ALTER COLUMN note SET DEFAULT 'set'"),
        Change("ALTER TABLE public.ledger ALTER COLUMN note DROP DEFAULT"), Change("ANALYZE public.ledger"),
        Change("CLUSTER public.ledger USING ledger_pkey"), Change("VACUUM FULL public.ledger"),
        Change("REVOKE SELECT (note) ON public.ledger FROM public; REVOKE ALL ON public.ledger FROM public"),
        Change("GRANT ALL ON public.ledger TO public"), Change("REFRESH MATERIALIZED VIEW public.totals"),
        Change("CREATE OR REPLACE RULE skipped AS ON DELETE TO public.ledger DO INSTEAD SELECT 'rule'::text"),
        Change("DROP RULE IF EXISTS skipped ON public.ledger"),
    ),
    uses=(
        Use("SELECT * FROM public.ledger WHERE id = 3", wrapped=False),
        Use("SELECT amount::text FROM public.ledger WHERE id = $1::int", values=("1", "2")),
        Use("SELECT amount FROM public.ledger WHERE id = $1::int", values=("1", "2"), wrapped=False),
        Use("SELECT note FROM public.ledger WHERE id = 2"),
        Use("SELECT max(l::text) FROM public.ledger l WHERE id < 4"),
        Use("INSERT INTO public.ledger (id, amount) VALUES (nextval('public.ledger_ids'), 5) RETURNING note", writes=True, wrapped=False),
        Use("UPDATE public.ledger SET amount = 7 WHERE id = 1 RETURNING public.ledger", writes=True, wrapped=False),
        Use("DELETE FROM public.ledger WHERE id = $1::int RETURNING note", values=("8", "900"), writes=True, wrapped=False),
        Use("SELECT c::text FROM public.totals"),
    ),
    calls=(Call("SELECT public.ledger_note()", ("ledger",)),),
)

topic(
    "partitions",
    "CREATE TABLE public.part (k int, v text) PARTITION BY LIST (k); GRANT ALL ON public.part TO public;"
    + "".join(f"CREATE TABLE public.part_{k} PARTITION OF public.part FOR VALUES IN ({k}); INSERT INTO public.part VALUES ({k}, 'v{k}');"
              for k in (1, 2, 3)),
    changes=tuple(
        Change(sql)
        for k in (1, 2, 3)
        for sql in (
            f"ALTER TABLE public.part DETACH PARTITION public.part_{k}",
            f"ALTER TABLE public.part DETACH PARTITION public.part_{k} CONCURRENTLY",
            f"ALTER TABLE public.part ATTACH PARTITION public.part_{k} FOR VALUES IN ({k})",
            f"ALTER TABLE public.part ATTACH PARTITION public.part_{k} FOR VALUES IN ({k}, {k + 10})",
            f"ALTER TABLE public.part ATTACH PARTITION public.part_{k} DEFAULT",
        )
    ) + (
        Change("CREATE INDEX IF NOT EXISTS part_k ON public.part (k)"), Change("DROP INDEX IF EXISTS public.part_k"),
        Change("CREATE TABLE public.part_4 PARTITION OF public.part FOR VALUES IN (4)"), Change("DROP TABLE public.part_4"),
    ),
    uses=(
        Use("SELECT string_agg(tableoid::regclass || v, ',' ORDER BY k, v) FROM public.part WHERE k < 10"),
        Use("SELECT max(v) FROM public.part WHERE k = $1::int", values=("1", "2", "4")),
        Use("SELECT count(*)::text FROM public.part_1"),
        Use("INSERT INTO public.part VALUES ($1::int, 'new') RETURNING tableoid::regclass::text", values=("2", "4", "11"), writes=True,
            wrapped=False),
        Use("UPDATE public.part SET v = v WHERE k = 3 RETURNING v", writes=True, wrapped=False),
    ),
)

topic(
    "triggers",
    "CREATE TABLE public.watched (v text, n int); GRANT ALL ON public.watched TO public;"
    + returns("trigger", "public.watch", "BEGIN NEW.v := NEW.v || ' seen'; RETURN NEW; END") + ";"
    "CREATE TRIGGER watch BEFORE INSERT ON public.watched FOR EACH ROW EXECUTE FUNCTION public.watch();"
    "CREATE PROCEDURE public.work(INOUT t text) LANGUAGE plpgsql AS $f$BEGIN t := t || ' worked'; END$f$;",
    changes=(
        Change(returns("trigger", "public.watch", "BEGIN NEW.v := NEW.v || ' seen'; RETURN NEW; END")),
        Change(returns("trigger", "public.watch", "BEGIN NEW.v := NEW.v || ' replaced'; RETURN NEW; END")),
        Change(returns("trigger", "public.watch", "BEGIN NEW.v := NEW.n || ''; RETURN NEW; END")),
        Change("ALTER TABLE public.watched DISABLE TRIGGER watch"), Change("ALTER TABLE public.watched ENABLE TRIGGER watch"),
        Change("DROP TRIGGER watch ON public.watched"),
        Change("CREATE TRIGGER watch BEFORE INSERT ON public.watched FOR EACH ROW EXECUTE FUNCTION public.watch()"),
        Change("ALTER TABLE public.watched ALTER COLUMN n TYPE text", ("trigger",)),
        Change("ALTER TABLE public.watched ALTER COLUMN n TYPE int USING 5", ("trigger",)),
        Change("ALTER TABLE public.watched ADD COLUMN IF NOT EXISTS w int DEFAULT 3", ("trigger",)),
        Change("ALTER TABLE public.watched DROP COLUMN IF EXISTS w", ("trigger",)),
        Change("CREATE OR REPLACE PROCEDURE public.work(INOUT t text) LANGUAGE plpgsql AS $f$BEGIN t := t || ' again'; END$f$"),
        Change("CREATE OR REPLACE PROCEDURE public.work(INOUT t text) LANGUAGE sql AS $f$SELECT t || ' in SQL'$f$"),
    ),
    uses=(
        Use("INSERT INTO public.watched VALUES ('row', 5) RETURNING v", ("trigger",), writes=True, wrapped=False),
        Use("INSERT INTO public.watched VALUES ($1, 6) RETURNING public.watched", ("trigger",), ("a", "b"), writes=True, wrapped=False),
        Use("SELECT count(*)::text FROM public.watched WHERE v = $1", values=("row seen", "row replaced")),
    ),
    calls=(Call("CALL public.work('x')", ()),),
)

topic(
    "operators and aggregates",
    returns("text", "public.join_one", "SELECT $1 || '+' || $2", "text, text", "sql", "IMMUTABLE") + ";"
    + returns("text", "public.join_two", "SELECT $1 || '*' || $2", "text, text", "sql", "IMMUTABLE") + ";"
    "CREATE OPERATOR public.<+> (LEFTARG = text, RIGHTARG = text, FUNCTION = public.join_one);"
    "CREATE AGGREGATE public.joined (text) (SFUNC = public.join_one, STYPE = text);",
    changes=tuple(
        Change(sql)
        for name in ("one", "two")
        for sql in (
            f"DROP OPERATOR IF EXISTS public.<+> (text, text);"
            f"CREATE OPERATOR public.<+> (LEFTARG = text, RIGHTARG = text, FUNCTION = public.join_{name})",
            f"CREATE OPERATOR t1.<+> (LEFTARG = text, RIGHTARG = text, FUNCTION = public.join_{name})",
            f"CREATE OR REPLACE AGGREGATE public.joined (text) (SFUNC = public.join_{name}, STYPE = text)",
            f"DROP AGGREGATE public.joined (text); CREATE AGGREGATE public.joined (text) (SFUNC = public.join_{name}, STYPE = text)",
        )
    ) + (
        Change("DROP OPERATOR IF EXISTS t1.<+> (text, text)"), Change("DROP OPERATOR IF EXISTS public.<+> (text, text)"),
        Change(returns("text", "public.join_one", "SELECT $1 || '-' || $2", "text, text", "sql", "IMMUTABLE")),
        Change(returns("text", "public.join_one", "BEGIN RETURN $1 || '/' || $2; END", "text, text", marks="IMMUTABLE")),
    ),
    uses=(
        Use("SELECT 'a'::text <+> 'b'::text", ("operator",)),
        Use("SELECT $1 OPERATOR(public.<+>) 'b'::text", ("operator",), ("x", "y")),
        Use("SELECT public.joined(v) FROM (VALUES ('a'), ('b'), ($1)) AS t (v)", ("operator",), ("x", "y")),
    ),
)

topic(
    "collations",
    "CREATE COLLATION public.sorted FROM \"C\";",
    changes=(
        Change("DROP COLLATION public.sorted; CREATE COLLATION public.sorted FROM \"C\"", ("collation",)),
        Change("DROP COLLATION public.sorted; CREATE COLLATION public.sorted FROM \"und-x-icu\"", ("collation",)),
        Change("CREATE COLLATION t1.sorted FROM \"und-x-icu\"", ("collation",)), Change("DROP COLLATION t1.sorted", ("collation",)),
        Change("ALTER COLLATION public.sorted RENAME TO other; CREATE COLLATION public.sorted FROM \"und-x-icu\";"
               "DROP COLLATION public.other", ("collation",)),
    ),
    uses=(
        Use("SELECT ('a' < 'B' COLLATE public.sorted)::text", ("collation",)),
        Use("SELECT ($1 < 'B' COLLATE sorted)::text", ("collation",), ("a", "c")),
        Use("SELECT string_agg(v, ',' ORDER BY v COLLATE public.sorted) FROM (VALUES ('a'), ('B'), ($1)) t (v)", ("collation",), ("c", "D")),
    ),
)

topic(
    "extensions",
    "CREATE EXTENSION hstore SCHEMA public;",
    changes=(
        Change("ALTER EXTENSION hstore SET SCHEMA t1", ("extension",)), Change("ALTER EXTENSION hstore SET SCHEMA t2", ("extension",)),
        Change("ALTER EXTENSION hstore SET SCHEMA public", ("extension",)),
        Change("DROP EXTENSION hstore; CREATE EXTENSION hstore SCHEMA public", ("extension",)),
    ),
    uses=(
        Use("SELECT ('a=>1'::hstore -> 'a')", ("extension",)),
        Use("SELECT hstore('k', $1)::text", ("extension",), ("v", "w")),
        Use("SELECT public.hstore('k', 'v')::text", ("extension",)),
    ),
)

# Roles that own something stay, from episode to episode.
topic(
    "owners",
    "CREATE TABLE public.secret AS SELECT 'secret'::text AS v; GRANT SELECT ON public.secret TO owner_one;"
    "CREATE VIEW public.owned_view AS SELECT v FROM public.secret; GRANT SELECT ON public.owned_view TO public;"
    "ALTER VIEW public.owned_view OWNER TO owner_one;"
    # Never inlined: the role for which a plan inlines a function is among the differences in docs/limits.md.
    + returns("text", "public.owned", "SELECT current_user::text LIMIT 1", language="sql", marks="SECURITY DEFINER") + ";"
    + returns("text", "public.owned_inside", "BEGIN RETURN current_user || (SELECT max(v) FROM public.secret); END", marks="SECURITY DEFINER")
    + "; ALTER FUNCTION public.owned() OWNER TO owner_one; ALTER FUNCTION public.owned_inside() OWNER TO owner_one;",
    changes=(
        Change("REASSIGN OWNED BY owner_one TO owner_two"), Change("REASSIGN OWNED BY owner_two TO owner_one"),
        Change("GRANT SELECT ON public.secret TO owner_two"), Change("REVOKE SELECT ON public.secret FROM owner_two"),
        Change("REVOKE SELECT ON public.secret FROM owner_one"), Change("GRANT SELECT ON public.secret TO owner_one"),
        Change("ALTER FUNCTION public.owned() SECURITY INVOKER"), Change("ALTER FUNCTION public.owned() SECURITY DEFINER"),
        Change("REVOKE EXECUTE ON FUNCTION public.owned() FROM public"), Change("GRANT EXECUTE ON FUNCTION public.owned() TO public"),
        Change("ALTER VIEW public.owned_view SET (security_invoker = true)"), Change("ALTER VIEW public.owned_view RESET (security_invoker)"),
        Change("DROP OWNED BY owner_two"),
    ),
    uses=(
        Use("SELECT public.owned()"), Use("SELECT public.owned() || $1", values=("!", "?")), Use("SELECT public.owned_inside()"),
        Use("SELECT max(v) FROM public.owned_view"),
    ),
)

# -- counters of the transaction ---------------------------------------------------

# Pairs of queries, sent one by one; the first query makes the server report pending statistics.
STATISTICS = (
    ("SELECT pg_stat_force_next_flush()",
     "BEGIN; INSERT INTO public.shared_log VALUES (1), (2);"
     "SELECT coalesce(sum(n_tup_ins), 0) FROM pg_stat_xact_user_tables WHERE relname = 'shared_log'; COMMIT"),
    ("SELECT pg_stat_force_next_flush()",
     "SELECT coalesce(sum(n_tup_ins + seq_scan), 0) FROM pg_stat_xact_user_tables WHERE schemaname = 'public'"),
)


USES = [(group, use) for group in GROUPS for use in group.uses]


def wrappers(uses: list[tuple[Group, Use]], name: str) -> str:
    """Definitions of functions that ask the queries of the uses."""
    made = []
    for number, (_, use) in enumerate(uses):
        if use.wrapped:
            argument = "text" if use.values else ""
            made.append(returns("text", f"public.{name}_{number}", f"BEGIN RETURN ({use.query}); END", argument))
            made.append(returns("text", f"public.sql_{name}_{number}", use.query, argument, "sql"))
    return "; ".join(made)


ROLE_SETUP = "CREATE ROLE crew; CREATE ROLE fuzz_one; CREATE ROLE fuzz_two; CREATE ROLE owner_one; CREATE ROLE owner_two;"
ROLE_RESET = """
REVOKE crew FROM alice; REVOKE crew FROM bob; REVOKE crew FROM carol; ALTER ROLE alice INHERIT; GRANT crew TO alice;
DROP ROLE IF EXISTS fuzz_one, fuzz_two, fuzz_x; CREATE ROLE fuzz_one; CREATE ROLE fuzz_two;
"""
DATABASE_SETUP = f"""
SET check_function_bodies = off;
{SCHEMAS}
{" ".join(group.setup for group in GROUPS)}
{wrappers(USES, "use")};
{returns("text", "public.dynamic", "DECLARE t text; BEGIN EXECUTE $1 INTO t; RETURN t; END", "q text")};
"""
