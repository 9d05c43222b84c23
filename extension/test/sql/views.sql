-- The views and their columns, in their order.
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod) AS type
FROM pg_depend d
    JOIN pg_class c ON c.oid = d.objid
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
WHERE d.classid = 'pg_class'::regclass
    AND d.refclassid = 'pg_extension'::regclass
    AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_baton')
    AND d.deptype = 'e' AND c.relkind = 'v'
ORDER BY c.relname COLLATE "C", a.attnum;

-- Functions of the extension.
SELECT d.objid::regprocedure AS function
FROM pg_depend d
WHERE d.classid = 'pg_proc'::regclass
    AND d.refclassid = 'pg_extension'::regclass
    AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_baton')
    AND d.deptype = 'e'
ORDER BY d.objid::regprocedure::text COLLATE "C";

-- Each view and column has a comment.
SELECT c.relname, a.attname
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum >= 0
WHERE c.relkind = 'v' AND c.relname LIKE 'pg\_baton\_%'
    AND col_description(c.oid, a.attnum) IS NULL;

-- Members of pg_monitor may read the views, other roles may not.
SELECT relname, has_table_privilege('pg_monitor', oid, 'SELECT') AS pg_monitor,
    has_table_privilege('pg_read_server_files', oid, 'SELECT') AS any_role
FROM pg_class WHERE relkind = 'v' AND relname LIKE 'pg\_baton\_%' ORDER BY relname COLLATE "C";

-- The dispatcher answers for each view.
SELECT count(*) = 1 AS one_dispatcher FROM pg_baton_dispatchers;
SELECT count(*) >= 0 AS answered FROM pg_baton_backends;
SELECT count(*) >= 0 AS answered FROM pg_baton_pools;
SELECT count(*) >= 0 AS answered FROM pg_baton_pool_settings;
SELECT count(*) >= 0 AS answered FROM pg_baton_pool_users;
SELECT count(*) >= 0 AS answered FROM pg_baton_sessions;
SELECT count(*) AS pauses FROM pg_baton_pauses;
SELECT count(*) >= 0 AS answered FROM pg_baton_stats;
SELECT costs, problem FROM pg_baton_failed_checks;
