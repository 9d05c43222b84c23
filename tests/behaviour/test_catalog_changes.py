"""A new session sees catalogs as they are, whatever its backend has kept of them.

Each case changes something that PostgreSQL's caches do not follow, because a
connection of stock does not outlive many such changes; the sessions before and
after it are served by the same backends, and compared with direct connections.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from harness.wire import QueryFailed, Wire

SETUP = [
    "CREATE ROLE member LOGIN",
    "CREATE ROLE team",
    "CREATE SCHEMA app AUTHORIZATION postgres",
    "CREATE TABLE app.thing AS SELECT 'app' AS v",
    "CREATE TABLE public.thing AS SELECT 'public' AS v",
    "GRANT SELECT ON app.thing, public.thing TO PUBLIC",
    "GRANT USAGE ON SCHEMA app TO team",
    "ALTER ROLE member SET search_path = app, public",
    "CREATE TABLE guarded AS SELECT 'secret' AS v",
    "ALTER TABLE guarded ENABLE ROW LEVEL SECURITY",
    "CREATE POLICY of_team ON guarded TO team USING (true)",
    "GRANT SELECT ON guarded TO PUBLIC",
    "CREATE FUNCTION of_team() RETURNS text LANGUAGE sql STABLE AS $$SELECT 'inlined'$$",
    "REVOKE EXECUTE ON FUNCTION of_team() FROM PUBLIC",
    "CREATE ROLE crew",
    "GRANT EXECUTE ON FUNCTION of_team() TO crew",
    "GRANT crew TO member",
    "CREATE FUNCTION most() RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN 10; END'",
    "CREATE DOMAIN small AS int CHECK (VALUE < most())",
    "CREATE FUNCTION low(int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT $1 < 10'",
    "CREATE DOMAIN narrow AS int CHECK (low(VALUE))",
    "CREATE SCHEMA of_english",
    "CREATE SCHEMA of_simple",
    "CREATE TEXT SEARCH CONFIGURATION of_english.tenant (COPY = pg_catalog.english)",
    "CREATE TEXT SEARCH CONFIGURATION of_simple.tenant (COPY = pg_catalog.simple)",
]

# What is asked, and the changes between which new sessions ask it.
CHANGES = {
    "usage_of_a_schema_by_membership": ("SELECT v FROM thing", ["GRANT team TO member", "REVOKE team FROM member"]),
    "usage_of_a_schema_as_superuser": (
        "SELECT v || '' FROM thing",
        ["ALTER ROLE member SUPERUSER", "ALTER ROLE member NOSUPERUSER"],
    ),
    "usage_of_a_schema_as_owner_of_the_database": (
        "SELECT v || '.' FROM thing",
        [
            "GRANT USAGE ON SCHEMA app TO pg_database_owner",
            "ALTER DATABASE postgres OWNER TO member",
            "ALTER DATABASE postgres OWNER TO postgres",
            "REVOKE USAGE ON SCHEMA app FROM pg_database_owner",
        ],
    ),
    "a_domain_whose_check_calls_a_function": (
        "SELECT (10 + 10)::small",
        [
            f"CREATE OR REPLACE FUNCTION most() RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN {most}; END'"
            for most in (30, 10)
        ],
    ),
    "a_domain_whose_check_copies_a_function": (
        "SELECT (10 + 10)::narrow",
        [
            f"CREATE OR REPLACE FUNCTION low(int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT $1 < {most}'"
            for most in (30, 10)
        ],
    ),
    "execution_of_a_function_that_is_inlined": (
        "SELECT of_team()",
        ["REVOKE crew FROM member", "GRANT crew TO member"],
    ),
    "a_policy_for_a_group": ("SELECT v FROM guarded", ["GRANT team TO member", "REVOKE team FROM member"]),
}


@pytest.fixture(scope="module", params=["normal", "forced"])
def few(run, request):
    """As few backends as there can be, all of which have served every session."""
    forced = request.param == "forced"
    cluster = run.cluster(
        f"catalog-changes-{request.param}",
        parameters={
            "pg_baton.max_backends": 2 if forced else 1,
            "pg_baton.force_migration": forced,
            "default_text_search_config": "tenant",
        },
    )
    try:
        cluster.start()
        for statement in SETUP:
            cluster.sql(statement)
        yield cluster
    finally:
        cluster.finish()


def asked(port: int, question: str) -> list[str]:
    """What new sessions are told, by each way to ask; they take turns on all backends."""
    answers = []
    with ExitStack() as stack:
        sessions = [stack.enter_context(Wire.login("127.0.0.1", port, user="member")) for _ in range(3)]
        for way in (question, f"PREPARE s AS {question}", "EXECUTE s", "EXECUTE s"):
            for session in sessions:
                try:
                    rows = session.query(way)
                    answers += [row[0] for row in rows] or [f"{len(rows)} rows"]
                except QueryFailed as failure:
                    answers.append(failure.fields["M"])
        for session in sessions:
            session.finish()
    return answers


@pytest.mark.parametrize("case", CHANGES)
def test_a_new_session_sees_catalogs_as_they_are(few, case):
    question, changes = CHANGES[case]
    seen = []
    for port in (few.port, few.pool_port):
        answers = [asked(port, question)]
        for change in changes:
            few.sql(change)
            answers.append(asked(port, question))
        seen.append(answers)
    assert len(set(map(str, seen[0]))) > 1, "the changes change nothing"
    assert seen[1] == seen[0]


def test_each_session_resolves_the_file_s_text_search_config(few):
    """Its name is looked up by the search path of the session that uses it."""
    seen = []
    for port in (few.port, few.pool_port):
        answers = []
        for schema in ("of_english", "of_simple", "of_english"):
            with Wire.login("127.0.0.1", port) as session:
                session.query(f"SET search_path = {schema}")
                answers += [session.query("SELECT to_tsvector('The running')") for _ in range(3)]
                session.finish()
        seen.append(answers)
    assert len(set(map(str, seen[0]))) == 2
    assert seen[1] == seen[0]
