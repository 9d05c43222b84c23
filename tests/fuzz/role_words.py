"""The world of roles: changes of roles beside their sessions, and the queries of the sessions.

The roles are made anew for each episode, so any of them may be renamed or dropped in it.
Otherwise this module is like ddl_words.py.  A change of which a session may not be told in
stock is marked untold; PostgreSQL 15 keeps plans of row security when memberships and
BYPASSRLS change (plancache.c), later majors do not.
"""

from __future__ import annotations

from harness.account import server_major

from .ddl_words import Change, Group, Use, returns, wrappers
from .history import PLACE

PASSWORD = "secret"
# With this query a session shows its identity.
IDENTITY = ("SELECT session_user || '/' || current_user || '/' || current_setting('role') || '/'"
            " || current_setting('is_superuser')")

# Each role, with its attributes and its memberships.
ROLES = {
    "r_team": "NOLOGIN",
    "r_staff": "NOLOGIN IN ROLE r_team",
    "r_chief": "LOGIN SUPERUSER",
    "r_boss": "LOGIN SUPERUSER",
    "r_plain": "LOGIN",
    "r_lone": "LOGIN",
    "r_member": "LOGIN IN ROLE r_team",
    "r_outsider": "LOGIN NOINHERIT IN ROLE r_staff",
    "r_guest": "LOGIN",
    "r_few": "LOGIN CONNECTION LIMIT 2",
    "r_pass": f"LOGIN PASSWORD '{PASSWORD}' IN ROLE r_member",
    "r_until": f"LOGIN PASSWORD '{PASSWORD}' VALID UNTIL 'infinity'",
    "r_bypass": "LOGIN BYPASSRLS",
    "r_set": "LOGIN",
    "r_here": "LOGIN",
    "r_as": "LOGIN IN ROLE r_team",
    "r_owner": "LOGIN CREATEROLE",
    "r_name": "LOGIN IN ROLE r_staff",
    "r_gone": "LOGIN IN ROLE r_team",
    "r_signals": "LOGIN IN ROLE pg_signal_backend, pg_read_all_stats",
}
LOGIN_ROLES = tuple(name for name, attributes in ROLES.items() if not attributes.startswith("NOLOGIN"))
WITH_PASSWORD = ("r_pass", "r_until")
# These roles log in with a password, so they have a system_user, which other roles do not have.
HBA = (f"host all {','.join(WITH_PASSWORD)} 127.0.0.1/32 scram-sha-256",)
# Roles that are likely to be allowed to change something.
MIGHTY = ("postgres", "r_chief", "r_boss", "r_owner")
EVERYBODY = "*"
UNTOLD_OF_MEMBERS = (PLACE, "members") if server_major() < 16 else (PLACE,)

# Settings for ALTER ROLE and ALTER DATABASE; a session's own settings are in vocabulary.py.
SETTINGS = (
    "work_mem = '333kB'", "work_mem = '444kB'", "work_mem = 'wrong'", "statement_timeout = '55min'", "DateStyle = 'SQL, DMY'",
    "search_path = other, public", "TimeZone = 'Asia/Kolkata'", "log_statement = 'ddl'", "session_replication_role = 'replica'",
    "app.tenant = 't1'", "app.tenant = 't2'", "my.a = 'stored'", "application_name = 'stored name'", "row_security = off",
    "default_transaction_isolation = 'repeatable read'", "default_transaction_read_only = on", "client_encoding = 'LATIN1'",
    "extra_float_digits = -2", "role = 'r_team'", "role = 'r_lone'", "role = 'none'", "role = 'nobody_such'",
    "session_authorization = 'r_lone'", "default_text_search_config = 'nonsuch'", "transaction_isolation = 'serializable'",
    "temp_file_limit = '1GB'", "log_connections = on",
)
NAMES = ("work_mem", "statement_timeout", "DateStyle", "search_path", "TimeZone", "log_statement", "session_replication_role",
         "app.tenant", "my.a", "application_name", "row_security", "default_transaction_isolation",
         "default_transaction_read_only", "client_encoding", "extra_float_digits", "role", "session_authorization",
         "default_text_search_config", "temp_file_limit", "is_superuser")
SETTING_ROWS = (
    "SELECT name, setting, source, reset_val, context FROM pg_settings WHERE name IN ("
    + ", ".join(f"'{name}'" for name in NAMES) + ") ORDER BY name COLLATE \"C\""
)

GROUPS: list[Group] = []


def topic(name: str, setup: str, changes: tuple[Change, ...] = (), uses: tuple[Use, ...] = ()) -> None:
    GROUPS.append(Group(name, setup, changes, uses))


def told(*statements: str, shuts_out: tuple[str, ...] = ()) -> tuple[Change, ...]:
    return tuple(Change(sql, shuts_out=shuts_out) for sql in statements)


def about_members(*statements: str) -> tuple[Change, ...]:
    return tuple(Change(sql, UNTOLD_OF_MEMBERS) for sql in statements)


topic(
    "memberships",
    "CREATE TABLE public.of_team AS SELECT 'team'::text AS v; GRANT SELECT ON public.of_team TO r_team;"
    "CREATE TABLE public.of_staff AS SELECT 'staff'::text AS v; GRANT SELECT ON public.of_staff TO r_staff;"
    "CREATE SCHEMA team AUTHORIZATION r_team; CREATE TABLE team.inner_table AS SELECT 'in team'::text AS v;"
    "GRANT SELECT ON team.inner_table TO public;",
    changes=about_members(
        "GRANT r_team TO r_guest", "REVOKE r_team FROM r_guest", "GRANT r_staff TO r_guest", "REVOKE r_staff FROM r_guest",
        "GRANT r_team TO r_plain WITH ADMIN OPTION", "REVOKE r_team FROM r_plain", "REVOKE ADMIN OPTION FOR r_team FROM r_plain",
        "GRANT r_team TO r_member", "REVOKE r_team FROM r_member", "GRANT r_member TO r_guest", "REVOKE r_member FROM r_guest",
        "REVOKE r_team FROM r_staff", "GRANT r_team TO r_staff", "GRANT r_team TO r_name", "REVOKE r_team, r_staff FROM r_name",
        "ALTER ROLE r_outsider INHERIT", "ALTER ROLE r_outsider NOINHERIT", "ALTER ROLE r_member NOINHERIT",
        "ALTER ROLE r_member INHERIT", "GRANT r_chief TO r_guest", "REVOKE r_chief FROM r_guest",
        # From 16 on each grant has such options.
        "GRANT r_team TO r_guest WITH INHERIT FALSE", "GRANT r_team TO r_guest WITH SET FALSE",
        "GRANT r_staff TO r_outsider WITH INHERIT TRUE",
        "GRANT pg_read_all_settings TO r_guest", "REVOKE pg_read_all_settings FROM r_guest",
        "GRANT pg_read_all_data TO r_plain", "REVOKE pg_read_all_data FROM r_plain",
        "GRANT pg_signal_backend TO r_guest", "REVOKE pg_signal_backend FROM r_guest, r_signals",
        "GRANT pg_signal_backend TO r_signals", "GRANT r_guest TO r_signals", "REVOKE r_guest FROM r_signals",
    ),
    uses=(
        Use("SELECT max(v) FROM public.of_team"), Use("SELECT max(v) FROM public.of_staff WHERE v > $1", values=("", "z")),
        Use("SELECT max(v) FROM team.inner_table", (PLACE,)),
        Use("SELECT pg_has_role('r_team', 'usage')::text || pg_has_role('r_team', 'member')::text"),
        Use("SELECT pg_has_role($1, 'r_staff', 'member with admin option')::text", values=("r_guest", "r_plain", "r_name")),
        Use("SELECT has_table_privilege('public.of_team', 'select')::text || has_table_privilege('public.of_staff', 'insert')::text"),
        Use("SELECT has_schema_privilege('team', 'usage')::text"),
        Use("SELECT string_agg(r.rolname, ',' ORDER BY r.rolname) FROM pg_roles r WHERE r.rolname LIKE 'r\\_%' AND pg_has_role(r.oid, 'usage')"),
        Use("SELECT string_agg(role_name, ',' ORDER BY role_name) FROM information_schema.enabled_roles WHERE role_name LIKE 'r\\_%'"),
    ),
)

topic(
    "privileges",
    "CREATE TABLE public.ward (a int, b text, owner text DEFAULT current_user); INSERT INTO public.ward VALUES (1, 'one', 'setup');"
    "GRANT SELECT ON public.ward TO r_plain, r_team; CREATE SCHEMA place; GRANT USAGE ON SCHEMA place TO r_lone, r_team;"
    "CREATE TABLE place.here AS SELECT 'here'::text AS v; GRANT SELECT ON place.here TO public;"
    "CREATE SEQUENCE public.numbers; GRANT USAGE ON public.numbers TO r_team;"
    + returns("text", "public.asked", "BEGIN RETURN 'asked by ' || current_user; END") + ";"
    "REVOKE EXECUTE ON FUNCTION public.asked() FROM public; GRANT EXECUTE ON FUNCTION public.asked() TO r_plain, r_staff;",
    changes=tuple(
        Change(f"{verb} {what} {'TO' if verb == 'GRANT' else 'FROM'} {whom}")
        for what in ("SELECT ON public.ward", "INSERT, UPDATE ON public.ward", "SELECT (b) ON public.ward",
                     "EXECUTE ON FUNCTION public.asked()", "USAGE ON SCHEMA place", "SELECT ON place.here", "USAGE ON SEQUENCE public.numbers",
                     "CREATE ON SCHEMA place", "TEMPORARY ON DATABASE :database", "SET ON PARAMETER log_statement")
        for whom in ("r_plain", "r_guest", "r_team", "public", "r_name")
        for verb in ("GRANT", "REVOKE")
    ) + told(
        "ALTER TABLE public.ward OWNER TO r_owner", "ALTER TABLE public.ward OWNER TO r_team", "ALTER TABLE public.ward OWNER TO postgres",
        "ALTER SCHEMA place OWNER TO r_staff", "ALTER SCHEMA place OWNER TO postgres", "REASSIGN OWNED BY r_owner TO r_team",
        "DROP OWNED BY r_guest", "ALTER DEFAULT PRIVILEGES FOR ROLE r_owner GRANT SELECT ON TABLES TO r_guest",
    ),
    uses=(
        Use("SELECT max(b) FROM public.ward"), Use("SELECT max(b) FROM public.ward WHERE b > $1", values=("", "z")),
        Use("SELECT max(a)::text FROM public.ward"), Use("SELECT max(v) FROM place.here", (PLACE,)), Use("SELECT public.asked()"),
        Use("SELECT public.asked() || $1", values=("!", "?")),
        Use("SELECT has_table_privilege('public.ward', $1)::text", values=("select", "insert")),
        Use("SELECT has_any_column_privilege('public.ward', 'select')::text || has_column_privilege('public.ward', 'b', 'select')::text"),
        Use("SELECT has_function_privilege('public.asked()', 'execute')::text || has_schema_privilege('place', 'create')::text"),
        Use("SELECT has_sequence_privilege('public.numbers', 'usage')::text || has_database_privilege(current_database(), 'temporary')::text"),
        Use("SELECT has_parameter_privilege('log_statement', 'set')::text"),
        Use("SELECT tableowner FROM pg_tables WHERE tablename = 'ward'"),
        Use("INSERT INTO public.ward (a, b) VALUES (2, 'two') RETURNING owner", writes=True, wrapped=False),
        Use("SELECT nextval('public.numbers')::text", writes=True),
    ),
)

POLICIES = (
    "owner = current_user", "owner = session_user", "tenant = current_setting('app.tenant', true)", "pg_has_role(owner, 'member')",
    "owner = current_user AND tenant = current_setting('app.tenant', true)", "public.is_ours(owner)", "true",
    "EXISTS (SELECT FROM public.passes WHERE holder = current_user)",
)
topic(
    "row security",
    returns("bool", "public.is_ours", "BEGIN RETURN $1 = current_user OR current_setting('is_superuser') = 'on'; END", "text", marks="STABLE")
    + "; CREATE TABLE public.owned_rows (owner text, tenant text); GRANT ALL ON public.owned_rows TO public;"
    "INSERT INTO public.owned_rows SELECT o, t FROM unnest(ARRAY['r_plain', 'r_team', 'r_guest', 'r_bypass', 'r_chief', 'r_set']) o,"
    " unnest(ARRAY['t1', 't2']) t; CREATE TABLE public.passes AS SELECT 'r_guest'::text AS holder; GRANT SELECT ON public.passes TO public;"
    "ALTER TABLE public.owned_rows ENABLE ROW LEVEL SECURITY; CREATE POLICY seen ON public.owned_rows USING (owner = current_user);",
    changes=tuple(
        Change(f"DROP POLICY seen ON public.owned_rows; CREATE POLICY seen ON public.owned_rows {whom} USING ({condition})")
        for condition in POLICIES for whom in ("", "TO r_team", "TO r_guest, r_bypass")
    ) + about_members("ALTER ROLE r_bypass NOBYPASSRLS", "ALTER ROLE r_bypass BYPASSRLS", "ALTER ROLE r_guest BYPASSRLS",
                      "ALTER ROLE r_guest NOBYPASSRLS", "GRANT r_team TO r_guest", "REVOKE r_team FROM r_guest")
    + told("ALTER TABLE public.owned_rows DISABLE ROW LEVEL SECURITY", "ALTER TABLE public.owned_rows ENABLE ROW LEVEL SECURITY",
           "ALTER TABLE public.owned_rows FORCE ROW LEVEL SECURITY", "ALTER TABLE public.owned_rows OWNER TO r_plain",
           "ALTER TABLE public.owned_rows OWNER TO postgres", "UPDATE public.passes SET holder = 'r_plain'",
           "ALTER ROLE r_plain SET app.tenant = 't2'", "ALTER ROLE r_bypass SET row_security = off", "ALTER ROLE r_bypass RESET ALL"),
    uses=(
        Use("SELECT string_agg(owner || tenant, ',' ORDER BY owner || tenant) FROM public.owned_rows", ("members",)),
        Use("SELECT string_agg(owner || tenant, ',' ORDER BY owner || tenant) FROM public.owned_rows WHERE tenant > $1", ("members",), ("", "t1")),
        Use("SELECT count(*)::text FROM public.owned_rows WHERE public.is_ours(owner)", ("members",)),
        Use("SELECT row_security_active('public.owned_rows')::text"),
        Use("INSERT INTO public.owned_rows VALUES (current_user, 't1') RETURNING owner", ("members",), writes=True, wrapped=False),
        Use("SELECT rolbypassrls::text || rolsuper FROM pg_roles WHERE rolname = current_user"),
    ),
)

DEFINERS = ("def_plpgsql", "def_sql", "def_sets")
topic(
    "definers",
    "CREATE TABLE public.hoard AS SELECT 'gold'::text AS v; GRANT SELECT ON public.hoard TO r_owner;"
    "CREATE VIEW public.pane AS SELECT v, current_user AS w, session_user AS s FROM public.hoard; GRANT SELECT ON public.pane TO public;"
    "ALTER VIEW public.pane OWNER TO r_owner;"
    + returns("text", "public.def_plpgsql", f"BEGIN RETURN ({IDENTITY}) || (SELECT max(v) FROM public.hoard); END", marks="SECURITY DEFINER") + ";"
    + returns("text", "public.def_sql", "SELECT current_user || '/' || session_user || '/' || max(v) FROM public.hoard", language="sql",
              marks="SECURITY DEFINER") + ";"
    + returns("text", "public.def_sets", "BEGIN PERFORM set_config('my.a', current_user, false); PERFORM set_config('work_mem', '2MB', false);"
              " RETURN current_user; END", marks="SECURITY DEFINER SET app.tenant = 't2'") + ";"
    # A security definer function may not set the role.
    + returns("text", "public.def_role", "BEGIN SET ROLE r_team; RETURN current_user; END", marks="SECURITY DEFINER") + ";"
    + returns("text", "public.inv_role", "BEGIN SET ROLE r_team; RETURN current_user; END") + ";"
    + returns("text", "public.inv_local", "BEGIN SET LOCAL ROLE r_team; RETURN current_user; END", marks="SET role = 'none'") + ";"
    + "".join(f"ALTER FUNCTION public.{name}() OWNER TO r_owner;" for name in DEFINERS),
    changes=tuple(
        Change(f"ALTER FUNCTION public.{name}() {what}")
        for name in DEFINERS
        for what in ("SECURITY INVOKER", "SECURITY DEFINER", "OWNER TO r_owner", "OWNER TO r_chief", "OWNER TO r_lone", "SET role = 'r_team'",
                     "RESET role")
    ) + told("GRANT SELECT ON public.hoard TO r_lone", "REVOKE SELECT ON public.hoard FROM r_owner", "GRANT SELECT ON public.hoard TO r_owner",
             "ALTER VIEW public.pane OWNER TO r_lone", "ALTER VIEW public.pane OWNER TO r_owner",
             "ALTER VIEW public.pane SET (security_invoker = true)", "ALTER VIEW public.pane RESET (security_invoker)"),
    uses=tuple(Use(f"SELECT public.{name}()") for name in DEFINERS) + (
        Use("SELECT public.def_plpgsql() || $1", values=("!", "?")), Use("SELECT max(v || w || s) FROM public.pane"),
        Use("SELECT public.inv_role()"), Use("SELECT public.def_role()"), Use("SELECT public.inv_local()"),
        Use(IDENTITY), Use(IDENTITY + " || $1", values=("", "!")),
    ),
)

SET_ROLES = ("r_set", "r_here", "r_as", "r_plain", "r_chief", "r_pass")
topic(
    "settings of roles",
    "ALTER ROLE r_set SET work_mem = '555kB'; ALTER ROLE r_here IN DATABASE :database SET statement_timeout = '44min';"
    "ALTER ROLE r_here SET statement_timeout = '33min'; ALTER ROLE r_as SET role = 'r_team';",
    changes=tuple(
        Change(f"ALTER {whom} SET {setting}")
        for setting in SETTINGS
        for whom in tuple(f"ROLE {role}" for role in SET_ROLES) + ("ROLE r_here IN DATABASE :database",
                                                                 "ROLE r_set IN DATABASE :database", "DATABASE :database", "ROLE ALL")
    ) + told(*[f"ALTER {whom} RESET {what}" for what in ("ALL", "role", "work_mem") * 6
               for whom in (*(f"ROLE {role}" for role in SET_ROLES), "ROLE r_here IN DATABASE :database", "DATABASE :database", "ROLE ALL",
                            "ROLE ALL", "DATABASE :database")]),
    uses=(
        Use(SETTING_ROWS, wrapped=False), Use(SETTING_ROWS, wrapped=False), Use(SETTING_ROWS, wrapped=False),
        Use("SELECT current_setting($1, true)", values=NAMES),
        Use("SELECT string_agg(array_to_string(setconfig, ';'), ',' ORDER BY setrole::regrole::text, setdatabase) FROM pg_db_role_setting"),
        Use("SELECT rolname || coalesce(rolconfig::text, '') FROM pg_roles WHERE rolname = session_user"),
    ),
)

topic(
    "attributes",
    "",
    changes=told("ALTER ROLE r_plain CREATEROLE", "ALTER ROLE r_plain NOCREATEROLE", "ALTER ROLE r_owner NOCREATEROLE", "ALTER ROLE r_owner CREATEROLE",
                 "ALTER ROLE r_lone REPLICATION", "ALTER ROLE r_lone NOREPLICATION", "ALTER ROLE r_guest CREATEDB",
                 "ALTER ROLE r_few CONNECTION LIMIT 3", "ALTER ROLE r_few CONNECTION LIMIT -1",
                 f"ALTER ROLE r_pass PASSWORD '{PASSWORD}'", "ALTER ROLE r_pass PASSWORD 'another'", "ALTER ROLE r_plain PASSWORD 'another'",
                 f"ALTER ROLE r_until PASSWORD '{PASSWORD}' VALID UNTIL 'infinity'", "ALTER ROLE r_until VALID UNTIL '2000-01-01'",
                 "ALTER ROLE r_until VALID UNTIL '2100-01-01'", "ALTER ROLE r_pass PASSWORD NULL",
                 "ALTER ROLE r_plain VALID UNTIL '2000-01-01'")
    + tuple(
        change
        for role in ("r_plain", "r_guest", "r_set", "r_few", "r_signals")
        for change in told(f"ALTER ROLE {role} NOLOGIN", f"ALTER ROLE {role} LOGIN", f"ALTER ROLE {role} LOGIN CONNECTION LIMIT -1",
                           f"ALTER ROLE {role} CONNECTION LIMIT 0", f"ALTER ROLE {role} CONNECTION LIMIT 1", f"ALTER ROLE {role} CONNECTION LIMIT -1",
                           shuts_out=(role,))
    ) + tuple(
        change
        for role in ("r_chief", "r_guest", "r_lone")
        for change in told(f"ALTER ROLE {role} SUPERUSER", f"ALTER ROLE {role} NOSUPERUSER", shuts_out=(role,))
    )
    + told("REVOKE CONNECT ON DATABASE :database FROM public", "ALTER DATABASE :database CONNECTION LIMIT 3", shuts_out=(EVERYBODY,))
    + told("GRANT CONNECT ON DATABASE :database TO public", "GRANT CONNECT ON DATABASE :database TO public",
           "ALTER DATABASE :database CONNECTION LIMIT -1", "ALTER DATABASE :database CONNECTION LIMIT -1",
           "GRANT CONNECT ON DATABASE :database TO r_guest, r_team, r_set")
    + told("ALTER ROLE r_name RENAME TO r_renamed", "ALTER ROLE r_renamed RENAME TO r_name", shuts_out=("r_name", "r_renamed"))
    + told("DROP OWNED BY r_gone; DROP ROLE r_gone", "CREATE ROLE r_gone LOGIN IN ROLE r_team", "CREATE ROLE r_gone LOGIN SUPERUSER",
           "DROP OWNED BY r_gone; DROP ROLE r_gone; CREATE ROLE r_gone LOGIN", shuts_out=("r_gone",)),
    uses=(
        Use(IDENTITY), Use(IDENTITY + " || $1", values=("", "!")), Use("SELECT system_user"),
        Use("SELECT usename FROM pg_stat_activity WHERE pid = pg_backend_pid()"),
        Use("SELECT pg_stat_get_backend_userid(n)::regrole::text FROM pg_stat_get_backend_idset() n"
            " WHERE pg_stat_get_backend_pid(n) = pg_backend_pid()"),
        Use("SELECT (count(*) > 0)::text FROM pg_authid"), Use("SELECT rolname || rolsuper || rolcanlogin || rolconnlimit FROM pg_roles"
                                                               " WHERE rolname = session_user"),
        Use("SELECT string_agg(rolname, ',' ORDER BY rolname) FROM pg_roles WHERE rolname LIKE 'r\\_%'"),
        Use("SELECT has_database_privilege(current_database(), 'connect')::text"),
        Use("SELECT current_user::regrole::text || (session_user = current_user)"),
    ),
)

USES = [(group, use) for group in GROUPS for use in group.uses]

# Statements of sessions; several sessions may execute the same statement.
OWN = (
    "CREATE TABLE public.made AS SELECT current_user::text AS v", "DROP TABLE public.made", "SELECT tableowner FROM pg_tables WHERE tablename = 'made'",
    "SELECT v FROM public.made", "GRANT SELECT ON public.made TO public", "ALTER ROLE CURRENT_USER SET work_mem = '666kB'",
    "ALTER ROLE SESSION_USER RESET ALL", "ALTER ROLE CURRENT_USER SET app.tenant = 't1'", "ALTER ROLE SESSION_USER SET statement_timeout = '22min'",
    "ALTER ROLE r_plain RESET ALL", "ALTER ROLE CURRENT_USER IN DATABASE :database SET my.a = 'here'",
    f"ALTER ROLE CURRENT_USER PASSWORD '{PASSWORD}'", "CREATE ROLE r_child IN ROLE r_team", "DROP ROLE r_child", "GRANT r_child TO r_guest",
    "SET log_statement = 'ddl'", "RESET log_statement", "SET session_replication_role = 'replica'", "RESET session_replication_role",
    "SELECT set_config('log_statement', 'none', false)", "GRANT r_team TO r_guest", "REVOKE r_team FROM r_guest GRANTED BY CURRENT_USER",
    "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO r_guest", "SELECT count(*) > 0 FROM pg_authid", "SELECT pg_read_file('PG_VERSION') > ''",
    "COPY (SELECT 1) TO PROGRAM 'cat >/dev/null'", "SELECT has_table_privilege('public.made', 'select')",
)

EVERYBODY_RESET = "ALTER ROLE ALL RESET ALL;"
# The dropped roles include those that the script of the last episode has made or renamed.
ROLE_RESET = r"""
DO $$
DECLARE r name;
BEGIN
  FOR r IN SELECT rolname FROM pg_roles WHERE rolname LIKE 'r\_%' LOOP
    EXECUTE format('DROP OWNED BY %I', r);
  END LOOP;
  FOR r IN SELECT rolname FROM pg_roles WHERE rolname LIKE 'r\_%' LOOP
    EXECUTE format('DROP ROLE %I', r);
  END LOOP;
END$$;
""" + EVERYBODY_RESET + "".join(f"CREATE ROLE {name} {attributes};" for name, attributes in ROLES.items())

DATABASE_SETUP = f"""
SET check_function_bodies = off;
GRANT r_team, r_lone TO r_owner;
{" ".join(group.setup for group in GROUPS)}
{wrappers(USES, "role_use")};
"""
