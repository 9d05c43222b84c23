"""Roles, databases and functions that the tests of parameters share."""

SETUP = [
    "CREATE ROLE alice LOGIN",
    "CREATE ROLE bob LOGIN",
    "CREATE ROLE team NOLOGIN",
    "GRANT team TO alice",
    "CREATE ROLE preset LOGIN",
    "ALTER ROLE preset SET work_mem = '5MB'",
    "ALTER ROLE preset SET my.role_setting = 'from role'",
    "ALTER ROLE preset SET search_path = 'pg_catalog'",
    "CREATE DATABASE tuned",
    "ALTER DATABASE tuned SET statement_timeout = '77s'",
    "ALTER DATABASE tuned SET DateStyle = 'German'",
    "ALTER ROLE preset IN DATABASE tuned SET lock_timeout = '66s'",
    """CREATE FUNCTION public.set_inside(n text, v text) RETURNS text LANGUAGE plpgsql AS
       $$BEGIN PERFORM set_config(n, v, false); RETURN current_setting(n); END$$""",
    """CREATE FUNCTION public.attached() RETURNS text LANGUAGE sql SET work_mem = '3MB' AS
       $$SELECT current_setting('work_mem')$$""",
]

SHOW = (
    "SELECT name, setting, source, reset_val, boot_val FROM pg_settings WHERE source NOT IN"
    " ('default', 'configuration file', 'override', 'environment variable') AND name NOT LIKE 'pg_baton%'"
    " ORDER BY name"
)
