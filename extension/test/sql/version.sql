-- The library and the extension have one version.
SELECT pg_baton_version() = default_version AS library_is_default,
    installed_version = default_version AS installed_is_default
FROM pg_available_extensions WHERE name = 'pg_baton';

-- Members of pg_monitor may ask for it, as for the views.
SELECT has_function_privilege('pg_monitor', 'pg_baton_version()', 'EXECUTE') AS pg_monitor,
    has_function_privilege('pg_read_all_data', 'pg_baton_version()', 'EXECUTE') AS any_role;
