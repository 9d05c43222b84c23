"""What superusers run of ours in another's database calls nothing that its owner made.

The owner plants an object for every name and operator that our SQL mentions, found in the SQL itself, with each
combination of argument types, in a schema that the database's search_path has before pg_catalog. Each notes in the
server's log that a superuser has called it.
"""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import psycopg.sql
import pytest
from harness.doctor import doctor

pytestmark = pytest.mark.pool_only

ROOT = Path(__file__).resolve().parents[2]
PLANTED = "planted object called"

# Of these types our SQL's operands are, or nearly.
TYPES = ["oid", "int4", "int8", "text", "name", "bool", '"char"', "timestamptz", "interval", "json", "text[]", "name[]"]

PREPARE = f"""
CREATE SCHEMA planted;
CREATE FUNCTION planted.note(what text) RETURNS bool LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        RAISE LOG '{PLANTED}: %', what;
    END IF;
    RETURN true;
END $$;
"""

# Functions of the name with the same arguments; a table that would be found in a catalog's or a view's place.
FUNCTIONS = """
DO $$
DECLARE f record;
BEGIN
    FOR f IN SELECT p.oid, p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid) AS arguments,
            pg_catalog.format_type(p.prorettype, NULL) AS result, p.proretset
        FROM pg_catalog.pg_proc p WHERE p.pronamespace = 11 AND p.proname = ANY (%(names)s::text[])
    LOOP
        BEGIN
            EXECUTE pg_catalog.format(
                'CREATE FUNCTION planted.%%I(%%s) RETURNS %%s %%s LANGUAGE plpgsql AS '
                '$f$ BEGIN PERFORM planted.note(%%L); RETURN %%s; END $f$',
                f.proname, f.arguments, CASE WHEN f.proretset THEN 'SETOF' ELSE '' END, f.result, f.proname,
                CASE WHEN f.proretset THEN '' ELSE 'NULL' END);
        EXCEPTION WHEN OTHERS THEN
            NULL;  -- a type that functions of users cannot have
        END;
    END LOOP;
    FOR f IN SELECT c.relname FROM pg_catalog.pg_class c
        WHERE c.relnamespace = 11 AND c.relkind IN ('r', 'v') AND c.relname = ANY (%(names)s::text[])
    LOOP
        BEGIN
            EXECUTE pg_catalog.format(
                'CREATE VIEW planted.%%1$I AS SELECT * FROM pg_catalog.%%1$I WHERE planted.note(%%1$L)', f.relname);
        EXCEPTION WHEN OTHERS THEN
            NULL;  -- a column of a type that no view has
        END;
    END LOOP;
    FOR f IN SELECT t.typname FROM pg_catalog.pg_type t
        WHERE t.typnamespace = 11 AND t.typtype = 'b' AND t.typname = ANY (%(names)s::text[])
    LOOP
        EXECUTE pg_catalog.format(
            'CREATE DOMAIN planted.%%1$I AS pg_catalog.%%1$I CHECK (planted.note(%%1$L))', f.typname);
    END LOOP;
END $$
"""

OPERATOR = """
CREATE FUNCTION planted.operate({left}, {right}) RETURNS {result} LANGUAGE plpgsql AS
$f$ BEGIN PERFORM planted.note({name}); RETURN NULL; END $f$;
"""


def sql_texts() -> list[str]:
    """The extension's script, and each source of the program for operators with SQL in it: more than the SQL alone."""
    paths = [*sorted((ROOT / "extension/sql").glob("*.sql")), *sorted((ROOT / "cli/src").rglob("*.rs"))]
    texts = [path.read_text() for path in paths]
    return [text for text in texts if re.search(r"\bSELECT\b", text)]


def names_in(texts: list[str]) -> list[str]:
    return sorted({name.lower() for text in texts for name in re.findall(r"[A-Za-z_][A-Za-z_0-9]*", text)})


def plant(connection: psycopg.Connection, texts: list[str]) -> dict[str, int]:
    """As the database's owner; how many of each kind."""
    connection.execute(PREPARE)
    connection.execute("SET search_path = pg_catalog")
    names = names_in(texts)
    rows = connection.execute("SELECT DISTINCT oprname FROM pg_operator WHERE length(oprname) < 4").fetchall()
    symbols = set(re.findall(r"[-+*/<>=~!@#%^&|?]+", " ".join(texts)))
    # LIKE, IN, CASE x WHEN and NOT IN are operators, too
    operators = sorted({row[0] for row in rows} & (symbols | {"=", "<>", "~~", "!~~"}))
    for left in TYPES:
        for right in TYPES:
            for result in ("bool", "text"):
                function = f"operate_{result}"
                body = OPERATOR.format(left=left, right=right, result=result, name=f"'{left} {right}'")
                connection.execute(body.replace("planted.operate", f"planted.{function}"))
            for operator in operators:
                function = "operate_text" if operator == "||" else "operate_bool"
                connection.execute(
                    f"CREATE OPERATOR planted.{operator} (FUNCTION = planted.{function}, LEFTARG = {left}, RIGHTARG = {right})"
                )
    text = psycopg.sql.Literal(names).as_string(connection)
    connection.execute(FUNCTIONS.replace("%(names)s", text).replace("%%", "%"))
    kinds = {
        "functions": "pg_proc WHERE pronamespace",
        "operators": "pg_operator WHERE oprnamespace",
        "relations": "pg_class WHERE relnamespace",
    }
    return {
        kind: connection.execute(f"SELECT count(*) FROM {of} = 'planted'::regnamespace").fetchone()[0]
        for kind, of in kinds.items()
    }


@pytest.fixture
def theirs(installation):
    """A default installation with a database of `low`, who has planted objects there."""
    cluster = installation()
    cluster.sql("CREATE DATABASE theirs OWNER low")
    with psycopg.connect(cluster.direct(user="low", dbname="theirs"), autocommit=True) as low:
        planted = plant(low, sql_texts())
        low.execute("ALTER DATABASE theirs SET search_path = planted, pg_catalog, public")
    assert planted["functions"] > 50 and planted["operators"] > 500 and planted["relations"] > 10, planted
    return cluster


def calls(cluster) -> list[str]:
    return re.findall(rf"{PLANTED}: (.*)", cluster.log())


def test_a_careless_superuser_calls_the_planted_objects(theirs):
    """Or the others here would show nothing."""
    with psycopg.connect(theirs.direct(dbname="theirs"), autocommit=True) as superuser:
        superuser.execute("SELECT 1 FROM pg_proc LIMIT 1")
        superuser.execute("SELECT '1'::pg_catalog.oid >= 16384")
        superuser.execute("SELECT quote_ident('a'::pg_catalog.text)")
    assert {"pg_proc", "oid int4", "quote_ident"} <= set(calls(theirs))


def test_a_superuser_s_doctor_and_extension_call_nothing_planted(theirs):
    """CREATE EXTENSION into the hostile schema, each view and its function, and `baton doctor`, asked there and elsewhere."""
    for conninfo in (theirs.direct(dbname="theirs"), theirs.direct()):
        assert doctor(theirs, conninfo=conninfo).returncode == 0
    assert calls(theirs) == []
    with psycopg.connect(theirs.direct(dbname="theirs"), autocommit=True) as superuser:
        superuser.execute("CREATE EXTENSION pg_baton SCHEMA planted")
        for view in re.findall(r"CREATE VIEW (\w+)", "".join(sql_texts())):
            superuser.execute(f"SELECT * FROM planted.{view}")
    assert calls(theirs) == []
    assert doctor(theirs, conninfo=theirs.direct(dbname="theirs")).returncode == 0
    assert calls(theirs) == []


def test_views_that_a_database_owner_could_replace_are_not_asked(theirs):
    """Who owns the schema renames it, and puts another in its place with views of its own."""
    with psycopg.connect(theirs.direct(dbname="theirs"), autocommit=True) as superuser:
        superuser.execute("CREATE EXTENSION pg_baton SCHEMA public")
    ran = doctor(theirs, conninfo=theirs.direct(dbname="theirs"))
    assert "its views in this database are not asked: low, no superuser, could replace them" in ran.stdout
    with psycopg.connect(theirs.direct(dbname="theirs"), autocommit=True) as superuser:
        superuser.execute("CREATE SCHEMA ours")
        superuser.execute("ALTER EXTENSION pg_baton SET SCHEMA ours")
    ran = doctor(theirs, conninfo=theirs.direct(dbname="theirs"))
    assert "not asked" not in ran.stdout and ran.returncode == 0, ran.stdout
    assert calls(theirs) == []
