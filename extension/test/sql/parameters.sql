-- Which parameters a session may set, and the errors of those that it may not.
SET pg_baton.port = 6544;
\echo :LAST_ERROR_SQLSTATE
SET pg_baton.max_backends = 10;
\echo :LAST_ERROR_SQLSTATE
ALTER SYSTEM SET pg_baton.port = 0;
\echo :LAST_ERROR_SQLSTATE
ALTER SYSTEM SET pg_baton.dispatcher_log = 'verbose';
\echo :LAST_ERROR_SQLSTATE
SET pg_baton.nonsense = 1;
\echo :LAST_ERROR_SQLSTATE

-- A superuser may set transaction_timeout and turn it off again; another role may not.
SET pg_baton.transaction_timeout = '10min';
SHOW pg_baton.transaction_timeout;
RESET pg_baton.transaction_timeout;
SHOW pg_baton.transaction_timeout;
CREATE ROLE regress_baton_plain;
SET ROLE regress_baton_plain;
SET pg_baton.transaction_timeout = '10min';
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;

-- A role cannot lift the limits that a superuser has set for it.
ALTER ROLE regress_baton_plain IN DATABASE contrib_regression SET pg_baton.pool_max_sessions = 7;
SET ROLE regress_baton_plain;
ALTER ROLE regress_baton_plain SET pg_baton.pool_max_sessions = 70;
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
DROP ROLE regress_baton_plain;
