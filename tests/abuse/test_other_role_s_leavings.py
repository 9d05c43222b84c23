"""A superuser and an ordinary role take turns on one backend: whatever the superuser leaves, the other gets
what it gets on a direct connection, to the row and the SQLSTATE, and reads nothing of the superuser's.

Steps are drawn from fixed seeds and counted, so what failed once fails again."""

from __future__ import annotations

import random

import pytest
from harness.cluster import HOST
from harness.health import assert_healthy
from harness.wire import Closed, QueryFailed, Wire, bind, execute, flush, function_call, message, parse, query, sync

pytestmark = pytest.mark.pool_only

ROUNDS = 130
# In all that the superuser says, and in nothing that the other may read.
MARK = "topsecret"

SETUP = [
    "CREATE ROLE low LOGIN",
    "CREATE ROLE low_too LOGIN IN ROLE low",
    "CREATE ROLE chief LOGIN SUPERUSER",
    f"CREATE TABLE secret AS SELECT '{MARK}'::text AS word",
    "CREATE SCHEMA hidden",
    f"CREATE TABLE hidden.table_of_all AS SELECT '{MARK}'::text AS word",
    "GRANT SELECT ON hidden.table_of_all TO PUBLIC",
    "CREATE SCHEMA low AUTHORIZATION low",
    "CREATE SCHEMA chief AUTHORIZATION chief",
    "CREATE TABLE low.own AS SELECT 'of low'::text AS whose",
    "ALTER TABLE low.own OWNER TO low",
    f"CREATE TABLE chief.own AS SELECT '{MARK}'::text AS whose",
    f"CREATE TABLE rows AS SELECT 'low' AS owner, 1 AS n UNION SELECT 'chief', 2 UNION SELECT '{MARK}', 3",
    "ALTER TABLE rows ENABLE ROW LEVEL SECURITY",
    "CREATE POLICY mine ON rows USING (owner = current_user)",
    "GRANT SELECT ON rows TO PUBLIC",
    f"CREATE FUNCTION answer() RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT '{MARK}'::text$$",
    f"CREATE FUNCTION answers() RETURNS SETOF text LANGUAGE sql STABLE AS $$SELECT '{MARK}'::text UNION ALL SELECT 'x'$$",
    "CREATE FUNCTION good(text) RETURNS bool LANGUAGE sql IMMUTABLE AS $$SELECT $1 <> 'bad'$$",
    "CREATE FUNCTION ranked(text) RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT $1 || ''$$",
    "CREATE DOMAIN checked AS text CHECK (good(VALUE))",
    "CREATE TABLE bound (word text, CHECK (good(word)))",
    "CREATE TABLE indexed (word text)",
    "CREATE INDEX ON indexed (ranked(word))",
    "CREATE TABLE partial (word text)",
    "CREATE INDEX ON partial (word) WHERE good(word)",
    "CREATE TABLE parted (word text) PARTITION BY RANGE (ranked(word))",
    "CREATE TABLE part PARTITION OF parted FOR VALUES FROM ('a') TO ('z')",
    "CREATE TABLE generated (word text, more text GENERATED ALWAYS AS (ranked(word)) STORED)",
    "GRANT SELECT, INSERT ON bound, indexed, partial, parted, generated TO PUBLIC",
    "CREATE TYPE mood AS ENUM ('good', 'bad')",
    "CREATE FUNCTION mood(int) RETURNS mood LANGUAGE sql STABLE AS $$SELECT CASE $1 WHEN 1 THEN 'good' ELSE 'bad' END::mood$$",
    "CREATE CAST (int AS mood) WITH FUNCTION mood(int) AS ASSIGNMENT",
    "CREATE FUNCTION casts() RETURNS mood LANGUAGE plpgsql AS $$ DECLARE m mood; BEGIN m := 1 + 1; RETURN m; END $$",
    "CREATE FUNCTION looks() RETURNS SETOF text LANGUAGE plpgsql AS"
    " $$ DECLARE r record; BEGIN FOR r IN SELECT word FROM secret LOOP RETURN NEXT r.word; END LOOP; END $$",
    "CREATE FUNCTION computes() RETURNS text LANGUAGE plpgsql AS"
    " $$ DECLARE t text; BEGIN t := answer(); RETURN t; END $$",
    "CREATE FUNCTION definer() RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS"
    " $$ BEGIN PERFORM word FROM secret; RETURN current_user || '/' || session_user; END $$",
    "CREATE FUNCTION who() RETURNS text LANGUAGE sql STABLE AS $$SELECT current_user || '/' || session_user$$",
    "CREATE TABLE late (a int PRIMARY KEY, b int REFERENCES late DEFERRABLE INITIALLY DEFERRED)",
    "CREATE FUNCTION noisy() RETURNS trigger LANGUAGE plpgsql AS"
    f" $$ BEGIN RAISE WARNING '{MARK}'; SET LOCAL ROLE low; RAISE EXCEPTION '{MARK}'; END $$",
    "CREATE TABLE noise (a int)",
    "CREATE CONSTRAINT TRIGGER noisy AFTER INSERT ON noise DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW EXECUTE FUNCTION noisy()",
    "REVOKE EXECUTE ON FUNCTION answer(), answers(), good(text), ranked(text), mood(int) FROM PUBLIC",
    "SELECT lo_from_bytea(4711, 'topsecret')",
    f"ALTER ROLE chief SET chief.note = '{MARK}'",
    "ALTER ROLE chief SET log_min_duration_statement = '10min'",
    "ALTER ROLE chief SET search_path = 'chief', 'hidden', 'public'",
    "ALTER ROLE chief SET row_security = off",
    "ALTER ROLE low SET work_mem = '5MB'",
]

KEPT = "SELECT word FROM secret"
KEPT_TOO = "SELECT answer(), n FROM rows WHERE n > $1"
SAID = f" /* {MARK} */"
# What leaves functions and a domain's check behind.
CALLS = (
    "SELECT answer()",
    "SELECT * FROM answers()",
    "SELECT looks()",
    "SELECT computes()",
    "SELECT definer()",
    "SELECT who()",
    "SELECT 'x'::checked",
)

# ---- what the superuser does; what waits for its going is marked by GOES ---------


class Unanswered(bytes):
    """Sent without waiting for ReadyForQuery."""


GOES = Unanswered()
BY_FAST_PATH = "functions by the fast path"

SET_ALL = (
    "SET log_statement = 'all'; SET session_replication_role = replica; SET row_security = off;"
    " SET log_min_messages = debug1; SET client_min_messages = debug1; SET search_path = hidden, chief, public;"
    f" SET lo_compat_privileges = on; SET chief.more = '{MARK}'; SET application_name = '{MARK}';"
    " SET default_transaction_read_only = on; SET zero_damaged_pages = on; SET ignore_system_indexes = off;"
    " SET allow_system_table_mods = on; SET exit_on_error = on; SET work_mem = '3MB'; SET statement_timeout = '70s'"
)


def extended(text: str, name: str = "", *values: bytes) -> bytes:
    return parse(text, name) + bind(values, name) + execute()


def said(*texts: str) -> list[bytes]:
    return [query(text + SAID) for text in texts]


LEAVINGS: dict[str, list[bytes]] = {
    "settings": said(SET_ALL),
    "settings of a transaction": said("BEGIN", SET_ALL, "SET LOCAL ROLE low", "SAVEPOINT s", SET_ALL, "COMMIT"),
    "settings of a function": said(
        f"DO $$ BEGIN SET LOCAL ROLE low; SET chief.x = '{MARK}'; RAISE EXCEPTION 'x'; END $$"
    ),
    "set role": said("SET ROLE low", "SELECT who()"),
    "set role, and back": said("SET ROLE low_too", "SELECT who()", "RESET ROLE", "SELECT who()"),
    "set session": said("SET SESSION AUTHORIZATION low", "SELECT who()", "SET ROLE low"),
    "set session in a transaction": said("BEGIN", "SET LOCAL SESSION AUTHORIZATION low", "SELECT 1/0", "COMMIT"),
    "set role in what fails as it commits": said("BEGIN", "INSERT INTO late VALUES (1, 2)", "SET ROLE low", "COMMIT"),
    "a trigger of commit": said("BEGIN", "INSERT INTO noise VALUES (1)", "SET ROLE low_too", "COMMIT", "SELECT who()"),
    "statements": said(
        f"PREPARE kept AS {KEPT}", f"PREPARE kept_too(int) AS {KEPT_TOO}", *["EXECUTE kept", "EXECUTE kept_too(0)"] * 6
    ),
    "statements of the protocol": [
        *[extended(KEPT, f"kept{n}") + extended(KEPT_TOO, f"more{n}", b"0") + sync() for n in range(4)],
        extended(KEPT) + sync(),
    ],
    "functions": said(
        *CALLS,
        "INSERT INTO bound VALUES ('x')",
        "INSERT INTO indexed VALUES ('x')",
        "INSERT INTO partial VALUES ('x')",
        "INSERT INTO parted VALUES ('x')",
        "INSERT INTO generated VALUES ('x')",
        "SELECT count(*) FROM partial WHERE good(word)",
        "SELECT casts()",
        "SELECT * FROM own",
    ),
    "functions as another": said(
        "SET ROLE low", "SELECT looks()", "SELECT computes()", "RESET ROLE", "SELECT computes()"
    ),
    "what low asks, by low's name": [
        query("SET ROLE low"),
        query("SELECT * FROM secret"),
        query("RESET ROLE"),
        *[query(text) for text in (KEPT, "SELECT answer()", "SELECT * FROM rows")],
    ],
    "a transaction left": [*said("BEGIN", SET_ALL, "DECLARE c CURSOR FOR SELECT * FROM secret", "FETCH c"), GOES],
    "a transaction that failed": [*said("BEGIN", "SET SESSION AUTHORIZATION low", "SELECT 1/0"), GOES],
    "a cursor kept": [*said("BEGIN", "DECLARE c CURSOR WITH HOLD FOR SELECT * FROM secret", "COMMIT", "FETCH c"), GOES],
    "temporary objects": [
        *said(
            "CREATE TEMP TABLE own AS SELECT * FROM secret",
            "SELECT * FROM own",
            "CREATE TEMP TABLE secret_too (a checked)",
        ),
        GOES,
    ],
    "locks and listening": [*said("SELECT pg_advisory_lock(1)", "LISTEN x", f"NOTIFY x, '{MARK}'"), GOES],
    "a library": [*said("LOAD 'auto_explain'", "SET auto_explain.log_min_duration = 0"), GOES],
    "half a batch": [Unanswered(extended(KEPT, "half") + flush()), GOES],
    "half a message": [Unanswered(query(f"SELECT '{MARK}'")[:-4]), GOES],
    "half a copy": [Unanswered(query("COPY secret FROM STDIN") + message("d", b"topsecret\n")), GOES],
    "an error of memory": said("SELECT repeat(repeat('topsecret', 1000000), 1000)", "SELECT answer()"),
    BY_FAST_PATH: [],
    "discard": said(SET_ALL, "DISCARD ALL"),
    "all reset": said("SET ROLE low", "RESET ALL", "SELECT who()"),
    "numbers": said(
        "CREATE SEQUENCE IF NOT EXISTS s", "SELECT nextval('s')", "SELECT lo_get(4711)", "SELECT setseed(0.1)"
    ),
    "a prepared transaction": said("BEGIN", "SET ROLE low", "CREATE TABLE pg_temp.x()", "PREPARE TRANSACTION 'x'"),
    "roles change": said(
        "ALTER ROLE low SET work_mem = '6MB'",
        "ALTER ROLE low SET work_mem = '5MB'",
        "ALTER ROLE low SUPERUSER",
        "SET ROLE low",
        "SELECT * FROM secret",
        "RESET ROLE",
        "ALTER ROLE low NOSUPERUSER",
    ),
}

# ---- what the other tries -----------------------------------------------------------

PROBES = [
    "SELECT current_user, session_user, current_setting('is_superuser'), current_setting('session_authorization')",
    "SELECT name, setting, source, reset_val FROM pg_settings WHERE source NOT IN ('default', 'configuration file',"
    " 'command line', 'override') ORDER BY name",
    "SELECT name, setting FROM pg_settings WHERE source = 'session' OR setting <> reset_val"
    " AND name NOT IN ('transaction_isolation', 'application_name')",
    KEPT,
    "SELECT * FROM secret",
    "TABLE hidden.table_of_all",
    "SELECT * FROM own",
    "SELECT current_schemas(true)",
    "SELECT * FROM rows ORDER BY n",
    "SET row_security = off; SELECT * FROM rows ORDER BY n",
    "RESET row_security; SELECT * FROM rows ORDER BY n",
    *CALLS,
    *[f"INSERT INTO {table} VALUES ('y')" for table in ("bound", "indexed", "partial", "parted", "generated")],
    "SELECT casts()",
    "SELECT count(*) FROM indexed WHERE ranked(word) = 'x'",
    "SELECT count(*) FROM pg_authid",
    "SELECT pg_read_file('PG_VERSION')",
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "COPY secret TO STDOUT",
    "SELECT lo_get(4711)",
    "SET log_statement = 'all'",
    "SET session_replication_role = replica",
    "SELECT set_config('log_min_duration_statement', '0', false)",
    "ALTER ROLE low SUPERUSER",
    "GRANT SELECT ON secret TO low",
    "CREATE TABLE public.mine ()",
    "SET ROLE postgres",
    "SET ROLE chief",
    "SET SESSION AUTHORIZATION postgres",
    "SET SESSION AUTHORIZATION chief",
    "RESET SESSION AUTHORIZATION; RESET ROLE; SELECT current_user, session_user, current_setting('is_superuser')",
    "SET SESSION AUTHORIZATION DEFAULT; SELECT count(*) FROM pg_authid",
    "SELECT has_table_privilege('secret', 'SELECT'), pg_has_role('chief', 'USAGE')",
    "EXECUTE kept",
    "EXECUTE kept_too(0)",
    f"PREPARE kept AS {KEPT}",
    f"PREPARE kept_too(int) AS {KEPT_TOO}",
    "EXECUTE kept",
    "EXECUTE kept_too(0)",
    "DEALLOCATE ALL",
    "SELECT name, statement FROM pg_prepared_statements",
    "SELECT name, statement FROM pg_cursors",
    "FETCH ALL FROM c",
    "SELECT lastval()",
    "SELECT pg_my_temp_schema()",
    "SELECT pg_listening_channels()",
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
    "SELECT current_setting('chief.note', true), current_setting('chief.more', true), current_setting('chief.x', true)",
    "SELECT current_setting('auto_explain.log_min_duration', true)",
    "SHOW is_superuser",
    "DO $$ BEGIN PERFORM * FROM secret; END $$",
    "DO $$ BEGIN PERFORM set_config('role', 'chief', true); END $$",
    "SELECT * FROM pg_backend_memory_contexts",
    "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%top' || 'secret%'",
    "EXPLAIN (COSTS OFF) SELECT * FROM rows",
]

BY_PROTOCOL = [
    extended(KEPT, "kept0") + sync(),
    extended(KEPT_TOO, "more0", b"0") + sync(),
    bind([], "kept1") + execute() + sync(),
    bind() + execute() + sync(),
    extended("SELECT answer()") + sync(),
    message("C", b"Skept0\0") + message("C", b"Smore0\0") + sync(),
]

# Fields that say what happened; others say where in the server's source, and at what place of the text.
FIELDS = "SCMDH"


def told(wire: Wire, *parts: bytes) -> list:
    """All that is answered up to ReadyForQuery, but for what differs from connection to connection."""
    wire.send(*parts)
    found = []
    for answer in wire.read_until("Z"):
        assert MARK.encode() not in answer.body, answer
        if answer.type in "EN":
            fields = answer.fields()
            found.append((answer.type, *[fields.get(name) for name in FIELDS]))
        else:
            found.append((answer.type, answer.body))
    return found


class Turns:
    """Who takes turns on one backend."""

    def __init__(self, cluster, port: int) -> None:
        self.cluster, self.port = cluster, port
        self.fast = [
            int(cluster.sql(f"SELECT '{name}'::regprocedure::oid::int")[0][0])
            for name in ("answer()", "looks()", "pg_read_file(text)", "definer()", "pg_sleep(double precision)")
        ]
        self.chief: Wire | None = None

    def login(self, role: str) -> Wire:
        return Wire.login(HOST, self.port, user=role)

    def say(self, wire: Wire, role: str, what: bytes) -> Wire:
        """Of who has been ended meanwhile a new session says it."""
        try:
            wire.send(what)
        except OSError:
            wire.close()
            wire = self.login(role)
            wire.send(what)
        return wire

    def calls(self) -> list[bytes]:
        answer, looks, reads, definer, _ = self.fast
        return [function_call(answer, []), function_call(reads, [b"PG_VERSION"]), function_call(definer, [])]

    def probes(self) -> list[bytes]:
        return [query(text) for text in PROBES] + BY_PROTOCOL + self.calls()

    def leave(self, what: str, how: str) -> None:
        """The superuser does it, and stays, or goes as is said."""
        if self.chief is None:
            self.chief = self.login("chief")
        wire, steps = self.chief, LEAVINGS[what]
        goes = GOES in steps
        try:
            for step in self.calls() if what == BY_FAST_PATH else steps:
                if isinstance(step, Unanswered):
                    wire.send(step)
                else:
                    wire.ask(step)
        except Closed:
            # exit_on_error
            goes = True
        if goes or how != "stays":
            {"resets": wire.reset, "closes": wire.close}.get(how, wire.finish)()
            self.chief = None


@pytest.fixture
def prepared(make_cluster):
    def make(**parameters):
        cluster = make_cluster(parameters={f"pg_baton.{name}": value for name, value in parameters.items()})
        cluster.sql("CREATE EXTENSION pg_baton")
        with Wire.login(HOST, cluster.port) as wire:
            for statement in SETUP:
                wire.query(statement)
        return cluster

    return make


def as_directly(cluster) -> tuple[list, dict]:
    direct = Turns(cluster, cluster.port)
    with direct.login("low") as low:
        parameters = dict(low.parameters)
        return [told(low, probe) for probe in direct.probes()], parameters


def try_all(turns: Turns, low: Wire, expected: list, what: str) -> None:
    differ = [
        (probe, found, direct)
        for probe, direct in zip(turns.probes(), expected)
        if (found := told(low, probe)) != direct
    ]
    shown = "\n".join(f"{probe!r}: {found}, and directly {direct}" for probe, found, direct in differ)
    assert not differ, f"after {what}:\n{shown}"


def processes_of(cluster) -> set:
    return {pid for (pid,) in cluster.sql("SELECT pid FROM pg_baton_backends WHERE state <> 'starting'")}


# What one that is ended, or whose backend is, is told.
ENDED = {"57P01", "57014"}


def test_a_cancelled_or_ended_superuser_session_leaves_nothing(prepared):
    """Both ask at once; the superuser's statement is cancelled, or the process ended, as the roles change."""
    cluster = prepared(max_backends=1, min_backends=0)
    expected, _ = as_directly(cluster)
    chance = random.Random(3)
    turns = Turns(cluster, cluster.pool_port)
    # those that do not depend on one before
    alone = (b"SELECT", b"TABLE", b"COPY", b"INSERT", b"DO", b"EXPLAIN")
    direct = [(probe, answer) for probe, answer in zip(turns.probes(), expected) if probe[5:].startswith(alone)]
    chief, low = turns.login("chief"), turns.login("low")
    as_direct = 0
    with Wire.login(HOST, cluster.port) as beside:
        for number in range(ROUNDS):
            chief = turns.say(
                chief,
                "chief",
                query(f"BEGIN; {SET_ALL}; SET LOCAL ROLE low; SET SESSION AUTHORIZATION low; COMMIT{SAID}"),
            )
            probe, answer = chance.choice(direct)
            low = turns.say(low, "low", probe)
            if number % 3 == 0:
                chief.cancel_request()
            elif number % 5 == 0:
                beside.query(f"SELECT pg_terminate_backend(pid) FROM pg_baton_backends {SAID}")
            try:
                chief.until_ready()
                # a cancel has left the transaction
                chief.query(f"ROLLBACK{SAID}")
                chief.query(f"RESET SESSION AUTHORIZATION; RESET ALL{SAID}")
            except (Closed, OSError, QueryFailed):
                chief.close()
                chief = turns.login("chief")
            try:
                found = told(low)
                assert found == answer or {part[2] for part in found if part[0] == "E"} <= ENDED, (probe, found)
                as_direct += found == answer
            except (Closed, OSError):
                low.close()
                low = turns.login("low")
    chief.close()
    low.close()
    assert as_direct > ROUNDS // 2, as_direct
    assert_healthy(cluster)


@pytest.mark.parametrize("seed", [1, 2])
def test_what_a_superuser_leaves_is_no_use_to_another(prepared, seed):
    """Sessions that stay and sessions that come for one turn."""
    cluster = prepared(max_backends=1, min_backends=0)
    expected, parameters = as_directly(cluster)
    chance = random.Random(seed)
    turns = Turns(cluster, cluster.pool_port)
    kept = turns.login("low")
    # in a process that has cached nothing yet
    order = ["functions"]
    became = 0
    last = processes_of(cluster)
    for _ in range(ROUNDS):
        if not order:
            order = chance.sample(sorted(LEAVINGS), len(LEAVINGS))
        what = order.pop()
        turns.leave(what, chance.choice(["stays", "stays", "finishes", "resets", "closes"]))
        if chance.random() < 0.5:
            try_all(turns, kept, expected, what)
        else:
            with turns.login("low") as low:
                assert low.parameters == parameters, what
                try_all(turns, low, expected, what)
        now = processes_of(cluster)
        became += now == last
        last = now
    kept.close()
    # else processes were started, and this has shown nothing
    assert became > ROUNDS // 2, became
    assert_healthy(cluster)
