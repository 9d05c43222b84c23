"""The vocabulary of the scripts: parameters and their values, statements, objects.

Everything here is deterministic on a direct connection, whichever sessions run
beside it: no clocks, no oids, and nothing that waits for another session
(lock_timeout in the configuration ends such a wait).  A process ID is identified
by the session that it belongs to.
"""

from __future__ import annotations

USERS = ("postgres", "alice", "bob")
ROLES = ("alice", "bob", "carol", "nobody_such", "none")

# name: values, good and bad.  client_min_messages stays above debug, whose
# messages tell of the server's inner life.  temp_buffers is left out: the backend's
# own history decides whether a session may still change it (docs/limits.md).
PARAMETERS: dict[str, tuple[str, ...]] = {
    "application_name": ("app one", "app_two", "", "a'b"),
    "backend_flush_after": ("0", "16"),
    "bytea_output": ("hex", "escape", "no"),
    "check_function_bodies": ("on", "off"),
    "client_encoding": ("UTF8", "LATIN1", "SQL_ASCII", "WIN1252", "nonsense"),
    "client_min_messages": ("notice", "warning", "error"),
    "constraint_exclusion": ("on", "off", "partition"),
    "cursor_tuple_fraction": ("0.1", "0.3333333333333333", "1"),
    "DateStyle": ("ISO, DMY", "SQL, MDY", "Postgres, YMD", "German", "wrong"),
    "default_statistics_target": ("10", "100", "99999999"),
    "default_text_search_config": ("pg_catalog.english", "pg_catalog.simple", "no.such"),
    # Not on: a read-only serializable transaction would then wait for the others to end.
    "default_transaction_deferrable": ("off", "no", "wrong"),
    "default_transaction_isolation": ("read committed", "repeatable read", "serializable"),
    "default_transaction_read_only": ("on", "off", "off"),
    "enable_hashjoin": ("on", "off"),
    "enable_indexscan": ("on", "off"),
    "enable_seqscan": ("on", "off", "maybe"),
    "extra_float_digits": ("0", "3", "-15", "4"),
    "geqo_seed": ("0.1", "0.30000000000000004"),
    "geqo_threshold": ("2", "12", "1"),
    "gin_fuzzy_search_limit": ("0", "1000"),
    "idle_in_transaction_session_timeout": ("0", "1h", "3600001"),
    "IntervalStyle": ("postgres", "iso_8601", "sql_standard"),
    "jit": ("on", "off"),
    "lc_monetary": ("C", "C.UTF-8", "no_SUCH"),
    "lc_time": ("C", "C.UTF-8"),
    "log_statement": ("none", "ddl"),
    "maintenance_work_mem": ("2MB", "64MB", "1kB"),
    "plan_cache_mode": ("auto", "force_generic_plan", "force_custom_plan"),
    "quote_all_identifiers": ("on", "off"),
    "random_page_cost": ("1.1", "4", "0.1000000000000000055", "1e-3"),
    "row_security": ("on", "off"),
    "search_path": ("public", '"$user", public', "other, public", "other", "", "pg_temp, other, public",
                    "nowhere", "pg_catalog"),
    "session_replication_role": ("origin", "replica"),
    "standard_conforming_strings": ("on", "off"),
    "statement_timeout": ("0", "1h", "59min"),
    "synchronous_commit": ("on", "off", "local"),
    "TimeZone": ("UTC", "Europe/Berlin", "America/New_York", "+3", "No/Where"),
    "transform_null_equals": ("on", "off"),
    "vacuum_cost_delay": ("0", "2ms", "1.5"),
    "work_mem": ("64kB", "4MB", "123456kB", "1"),
    "xmlbinary": ("base64", "hex"),
    "xmloption": ("content", "document"),
    # Custom parameters: they exist for the session that set them.
    "my.a": ("1", "zwei", "", "ü"),
    "my.b": ("x", "y"),
    "app.user_id": ("42", ""),
    # These sort before every parameter of the server's own.
    "aa.x": ("1", ""),
    "_a.x": ("2", ""),
    "é.x": ("3", ""),
    # None of these can be set.
    "nonsense_parameter": ("1",),
    "max_connections": ("3",),
    "server_version": ("1",),
}
PARAMETER_NAMES = tuple(PARAMETERS)

# Settings a connection may be opened with: name, value.
STARTUP = (
    ("application_name", "from startup"),
    ("client_encoding", "LATIN1"),
    ("DateStyle", "German"),
    ("TimeZone", "Asia/Tokyo"),
    ("search_path", "other,public"),
    ("work_mem", "1MB"),
    ("extra_float_digits", "2"),
    ("options", "-c work_mem=77kB -c my.a=startup"),
    ("options", "-c search_path=other -c random_page_cost=1.25"),
    ("options", "--enable-seqscan=off -c statement_timeout=1h"),
    ("options", "-c role=carol"),
    ("options", "-c default_transaction_read_only=on"),
    ("options", "-c work_mem=wrong"),
    ("options", "-c log_statement=ddl"),
    ("options", "-c nonsense_parameter=1"),
    ("my.b", "from startup"),
)

# Settings that ALTER ROLE and ALTER DATABASE may make; new sessions see them.
STORED_SETTINGS = (
    "work_mem = '333kB'", "work_mem = '444kB'", "DateStyle = 'SQL, DMY'", "my.a = 'stored'",
    "search_path = other, public", "TimeZone = 'Asia/Kolkata'", "enable_seqscan = off",
    "default_transaction_isolation = 'repeatable read'", "application_name = 'stored name'",
)

# Settings that a superuser writes into the server's configuration, with a reload;
# None takes a setting out again.  No custom parameters: a process that has seen a
# custom parameter in the file keeps it, empty, after its removal (docs/limits.md).
SERVER_SETTINGS = (
    ("work_mem", "5555kB"), ("work_mem", "6666kB"), ("work_mem", None), ("DateStyle", "SQL, DMY"), ("DateStyle", None),
    ("TimeZone", "Asia/Kolkata"), ("TimeZone", None), ("random_page_cost", "2.5"), ("random_page_cost", None),
    ("statement_timeout", "50min"), ("statement_timeout", None),
    ("default_transaction_isolation", "repeatable read"), ("default_transaction_isolation", None),
    ("application_name", "from file"), ("application_name", None), ("enable_seqscan", "off"), ("enable_seqscan", None),
)

# Prepared statements: text, types of the parameters.
# A name that a temporary object may come to hide is in full: a statement that is
# made again goes by the objects that it finds then (docs/limits.md).
STATEMENTS = (
    ("SELECT $1::int + 1", ("int",)),
    ("SELECT count(*), min(b) FROM public.shared WHERE a < $1", ("int",)),
    ("SELECT * FROM public.shared WHERE a = $1", ("int",)),
    ("SELECT s.a, o.a FROM public.shared s JOIN target o USING (a) WHERE s.a = $1 ORDER BY 1", ("int",)),
    ("SELECT current_setting('work_mem'), current_schemas(false), current_user", ()),
    ("SELECT $1::text || $2::text", ("text", "text")),
    ("INSERT INTO shared_log VALUES ($1) RETURNING *", ("int",)),
    ("SELECT nextval('public.seq_cached')", ()),
    ("SELECT '2024-03-04 05:06:07+00'::timestamptz, 0.1::float8, '1 day 2 hours'::interval, '\\x41'::bytea", ()),
    ("SELECT x FROM which", ()),
    ("VALUES (1), (2), (3), (4), (5)", ()),
    ("SELECT length(my_text()), my_text() FROM generate_series(1, $1::int)", ("int",)),
)
# Statements of which sessions have hundreds, each with one number for a parameter.
STOCK = tuple(
    text.replace("N", str(number))
    for number in range(12)
    for text in (
        "SELECT N + $1::int",
        "SELECT count(*) + N, min(b) FROM public.shared WHERE a < $1",
        "SELECT a, b, N FROM public.shared WHERE a = $1",
        "INSERT INTO public.shared_log VALUES ($1 + N) RETURNING *",
        "SELECT '2024-03-04 05:06:0N+00'::timestamptz, $1::int",
        "SELECT * FROM public.shared WHERE a = $1 + N",
        "SELECT s.a FROM public.shared s JOIN public.shared o USING (a) WHERE s.a = $1 + N",
        "SELECT b, N FROM public.keyed WHERE a = $1",
        "SELECT k.b + N, s.b FROM public.keyed k JOIN public.shared s ON s.a = k.b WHERE k.a = $1",
        "SELECT current_setting('work_mem'), current_user, N, $1::int",
    )
)
STATEMENT_NAMES = ("s1", "s2", "s3", "S One")
PORTAL_NAMES = ("c1", "c2", "c3")
CHANNELS = ("news", "weather")
SAVEPOINTS = ("sp1", "sp2")
SEQUENCES = ("seq_cached", "seq_plain", "other.seq_cached", "nowhere.seq")
TEMP_TABLES = ("tmp1", "tmp2", "shared")

# Statements that are complete operations of their own.
SIMPLE = (
    "SELECT 1 AS one, 'zwei' AS two",
    "SELECT x FROM which",
    "SELECT 1/0",
    "SELECT * FROM nowhere_to_be_found",
    "SELEC 1",
    "",
    ";",
    "SELECT now() - '2024-03-04 05:06:07+00'::timestamptz > '0'",
    "SELECT '2024-03-04 05:06:07+00'::timestamptz, '01/02/2024'::date, 1.1::float4, E'\\\\x41'::bytea",
    "SELECT 'aä€'",
    "SELECT string_agg(b, ',' ORDER BY a) FROM shared",
    "SELECT generate_series(1, 5)",
    "SELECT repeat('x', 3000)",
    "DO $$BEGIN RAISE NOTICE 'hello'; RAISE WARNING 'careful'; END$$",
    "DO $$BEGIN PERFORM set_config('work_mem', '5MB', false); RAISE EXCEPTION 'undo it'; END$$",
    "DO $$BEGIN PERFORM set_config('work_mem', '6MB', true); PERFORM set_config('my.a', 'from do', false); END$$",
    "DO $$BEGIN BEGIN SET enable_seqscan = off; RAISE 'inner'; EXCEPTION WHEN OTHERS THEN SET my.b = 'kept'; END; END$$",
    "DO $$BEGIN EXECUTE 'SET search_path = other, public'; END$$",
    "SELECT set_inside()",
    "SELECT set_and_fail()",
    "SELECT with_clause(), current_setting('work_mem')",
    "SELECT with_local_clause(), current_setting('work_mem')",
    "SELECT definer(), current_user",
    "CALL commits()",
    "SELECT set_config('my.a', repeat('long ', 3000), false) IS NULL",
    "SELECT set_config('my.c' || i, i::text, false) FROM generate_series(1, 20) i",
    "SELECT count(current_setting('my.c' || i, true)) FROM generate_series(1, 20) i",
    "RESET ALL", "RESET ALL",
    "DISCARD ALL", "DISCARD PLANS", "DISCARD SEQUENCES", "DISCARD TEMP",
    "DEALLOCATE ALL", "CLOSE ALL", "UNLISTEN *",
    "RESET ROLE", "RESET SESSION AUTHORIZATION", "SET SESSION AUTHORIZATION DEFAULT", "SET ROLE NONE",
    "SELECT pg_cancel_backend(pg_backend_pid())",
    "SET LOCAL statement_timeout = '300ms'; SELECT pg_sleep(60)",
    "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE, ISOLATION LEVEL READ COMMITTED",
    "SET TIME ZONE INTERVAL '+02:30' HOUR TO MINUTE", "SET TIME ZONE LOCAL", "SET NAMES 'LATIN1'",
    "SET SCHEMA 'other'", "SET XML OPTION DOCUMENT",
    "SELECT 1; SELECT 2; SELECT 3",
    "SET my.a = 'multi'; SELECT 1/0; SET my.b = 'never'",
    "SET work_mem = '7MB'; COMMIT; SET work_mem = '8MB'; SELECT 1/0",
    "BEGIN; SET work_mem = '9MB'; COMMIT; SELECT current_setting('work_mem')",
    "SELECT 1; BEGIN; SELECT 2",
    "SELECT lo_from_bytea(0, '\\x0102') > 0",
    "CHECKPOINT",
    "LOCK TABLE shared IN ACCESS SHARE MODE",
    "SHOW transaction_isolation", "SHOW transaction_read_only", "SHOW is_superuser",
    "COPY (SELECT * FROM shared ORDER BY a LIMIT 3) TO STDOUT",
    "COPY nowhere_to_be_found FROM STDIN",
)

# Rarely used: they cost the session its backend, or its life.
RARE = (
    "SELECT pg_terminate_backend(pg_backend_pid())",
    "SELECT setseed(0.25)",
    "SET seed = 0.5",
)

# Queries for process IDs.  The session that an ID belongs to identifies it: the number
# after "pid=", and the numbers of the list after "pids=" (world.py).
PIDS = (
    "SELECT 'pid=' || pg_backend_pid()", "SELECT 'pid=' || pg_backend_pid()",
    "DO $$BEGIN RAISE NOTICE 'pid=%', pg_backend_pid(); END$$",
    "SELECT 'pid=' || pid, state, application_name, usename FROM pg_stat_activity WHERE pid = pg_backend_pid()",
    "SELECT 'pid=' || pid, state FROM pg_stat_get_activity(pg_backend_pid())",
    "SELECT 'pids={' || string_agg(pid || ':' || coalesce(state, '?') || ':' || usename, ',') || '}'"
    " FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'",
    "SELECT 'pids={' || string_agg(pg_stat_get_backend_pid(n) || ':' || coalesce(pg_stat_get_backend_wait_event(n), 'runs'), ',')"
    " || '}' FROM pg_stat_get_backend_idset() n WHERE pg_stat_get_backend_dbid(n)"
    " = (SELECT oid FROM pg_database WHERE datname = current_database())",
    "SELECT 'pids={' || string_agg(pid || ':' || objid || mode, ',') || '}' FROM pg_locks WHERE locktype = 'advisory'",
    "SELECT 'pids={' || string_agg(pid::text, ',') || '}' FROM pg_locks WHERE relation = 'public.shared'::regclass",
    "SELECT 'pids={' || string_agg(pid || ':' || ssl, ',') || '}' FROM pg_stat_ssl",
    "SELECT pg_blocking_pids(pg_backend_pid()), pg_safe_snapshot_blocking_pids(pg_backend_pid())",
)

# Statements that act on another session: its process ID replaces #PIDn#, with as
# many digits.
PIDS_OF_OTHERS = (
    "SELECT pg_cancel_backend(#PIDn#)", "SELECT pg_cancel_backend(#PIDn#)", "SELECT pg_blocking_pids(#PIDn#)",
    "SELECT 'pid=' || pid, state FROM pg_stat_activity WHERE pid = #PIDn#",
    "SELECT 'pid=' || pid, state FROM pg_stat_get_activity(#PIDn#)",
    "SELECT pg_isolation_test_session_is_blocked(#PIDn#, '{}')",
)
END_ANOTHER = "SELECT pg_terminate_backend(#PIDn#, 20000)"

# Only outside transactions: otherwise these statements would make other sessions wait.
DDL = (
    "ALTER TABLE shared ADD COLUMN IF NOT EXISTS extra int",
    "ALTER TABLE shared DROP COLUMN IF EXISTS extra",
    "ALTER TABLE shared ALTER COLUMN b TYPE varchar(20)",
    "ALTER TABLE shared ALTER COLUMN b TYPE text",
    "CREATE INDEX IF NOT EXISTS shared_a ON shared (a)",
    "DROP INDEX IF EXISTS shared_a",
    "ANALYZE shared",
    "CREATE OR REPLACE FUNCTION my_text() RETURNS text LANGUAGE sql AS $$SELECT 'first'$$",
    "CREATE OR REPLACE FUNCTION my_text() RETURNS text LANGUAGE sql AS $$SELECT 'another'$$",
    "DROP VIEW IF EXISTS public.which; CREATE VIEW public.which AS SELECT 'public'::text AS x",
    "DROP VIEW IF EXISTS public.which; CREATE VIEW public.which AS SELECT 77 AS x",
    "GRANT carol TO alice", "REVOKE carol FROM alice", "GRANT carol TO bob", "REVOKE carol FROM bob",
    "ALTER SEQUENCE seq_cached RESTART", "ALTER SEQUENCE seq_cached CACHE 4", "ALTER SEQUENCE seq_plain INCREMENT 3",
    "ALTER ROLE alice RESET ALL", "ALTER ROLE bob RESET ALL", "ALTER DATABASE :database RESET ALL",
)

# Queries of a session for its own state.
PROBES = (
    "SELECT name, setting, unit, source, boot_val, reset_val, pending_restart FROM pg_settings"
    " WHERE source NOT IN ('default', 'configuration file', 'override', 'command line', 'environment variable')"
    " AND name NOT LIKE 'pg_baton.%' ORDER BY name COLLATE \"C\"",
    # Without the statements that may be executed loosely (history.py): their counters may differ.
    "SELECT name, statement, parameter_types, from_sql, generic_plans, custom_plans"
    " FROM pg_prepared_statements WHERE name NOT LIKE 'ddl%' ORDER BY name COLLATE \"C\"",
    "SELECT name, statement, is_holdable, is_binary, is_scrollable FROM pg_cursors ORDER BY name COLLATE \"C\"",
    "SELECT classid, objid, objsubid, mode, granted FROM pg_locks"
    " WHERE locktype = 'advisory' AND pid = pg_backend_pid() ORDER BY 1, 2, 3, 4",
    "SELECT * FROM pg_listening_channels() ORDER BY 1",
    "SELECT current_user, session_user, current_schemas(false), current_database()",
    "SELECT application_name, usename, datname, state, query, backend_type, client_addr,"
    " client_port = inet_client_port(), wait_event FROM pg_stat_activity WHERE pid = pg_backend_pid()",
    "SELECT current_setting('my.a', true), current_setting('my.b', true), current_setting('app.user_id', true)",
    "SELECT current_setting('my.a', true) IS NULL, current_setting('my.c1', true) IS NULL",
    "SELECT currval('seq_cached')", "SELECT currval('seq_plain')", "SELECT lastval()",
    "SELECT current_schemas(true), pg_my_temp_schema() <> 0",
    "SELECT relname, relkind, current_schemas(true) FROM pg_class WHERE relnamespace = pg_my_temp_schema() ORDER BY 1",
    "SELECT pg_is_in_recovery(), txid_current_if_assigned() IS NULL",
    "SHOW role", "SHOW session_authorization", "SHOW search_path", "SHOW client_encoding", "SHOW ALL_NOT",
)

# The layout of each database; roles are made once per cluster.
ROLE_SETUP = """
CREATE ROLE alice LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE carol;
GRANT alice TO bob; GRANT pg_read_all_stats TO alice;
"""
ROLE_RESET = """
ALTER ROLE alice RESET ALL; ALTER ROLE bob RESET ALL; REVOKE carol FROM alice; REVOKE carol FROM bob;
"""
DATABASE_SETUP = """
GRANT ALL ON SCHEMA public TO public;
CREATE SCHEMA other; GRANT ALL ON SCHEMA other TO public;
CREATE SCHEMA alice AUTHORIZATION alice;
CREATE TABLE shared (a int, b text);
INSERT INTO shared SELECT i, 'row ' || i FROM generate_series(1, 40) i;
CREATE TABLE target (a int PRIMARY KEY);
INSERT INTO target SELECT i * 2 FROM generate_series(1, 20) i;
CREATE TABLE keyed (a int PRIMARY KEY, b int);
INSERT INTO keyed SELECT i, i FROM generate_series(1, 20) i;
CREATE TABLE shared_log (a int);
CREATE TABLE other.which (x text); INSERT INTO other.which VALUES ('other');
CREATE VIEW public.which AS SELECT 'public'::text AS x;
CREATE SEQUENCE seq_cached CACHE 10;
CREATE SEQUENCE seq_plain;
CREATE SEQUENCE other.seq_cached START 1000 CACHE 3;
CREATE FUNCTION my_text() RETURNS text LANGUAGE sql AS $$SELECT 'first'$$;
CREATE FUNCTION set_inside() RETURNS text LANGUAGE plpgsql AS
  $$BEGIN SET work_mem = '3MB'; SET my.b = 'inside'; RETURN current_setting('work_mem'); END$$;
CREATE FUNCTION set_and_fail() RETURNS text LANGUAGE plpgsql AS
  $$BEGIN SET work_mem = '2MB'; SET my.b = 'failed'; RETURN 1/0; END$$;
CREATE FUNCTION with_clause() RETURNS text LANGUAGE plpgsql SET work_mem = '11MB' SET my.a = 'clause' AS
  $$BEGIN SET DateStyle = 'German'; RETURN current_setting('work_mem') || current_setting('my.a'); END$$;
CREATE FUNCTION with_local_clause() RETURNS text LANGUAGE plpgsql SET work_mem = '12MB' AS
  $$BEGIN SET work_mem = '13MB'; RETURN current_setting('work_mem'); END$$;
CREATE FUNCTION definer() RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS
  $$BEGIN PERFORM set_config('my.a', current_user, false); RETURN current_user; END$$;
CREATE FUNCTION opens_cursor() RETURNS refcursor LANGUAGE plpgsql AS
  $$DECLARE opened refcursor := 'opened'; BEGIN OPEN opened FOR SELECT 1; RETURN opened; END$$;
CREATE PROCEDURE commits() LANGUAGE plpgsql AS
  $$BEGIN SET work_mem = '14MB'; COMMIT; SET my.a = 'after commit'; ROLLBACK; END$$;
GRANT ALL ON ALL TABLES IN SCHEMA public TO public; GRANT ALL ON ALL TABLES IN SCHEMA other TO public;
GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO public; GRANT ALL ON ALL SEQUENCES IN SCHEMA other TO public;
"""
