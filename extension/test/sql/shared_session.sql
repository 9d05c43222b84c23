-- A session keeps its state from transaction to transaction, whichever backend
-- serves it.  Through the server's own port no session is in pg_baton_sessions:
-- the answers are the same, as "pooled" is 0 there.
SELECT (:'PORT' = current_setting('pg_baton.port'))::int AS pooled \gset

SELECT count(*) = :pooled AS listed FROM pg_baton_sessions WHERE pid = pg_backend_pid();
SELECT count(*) = :pooled AS shared FROM pg_baton_sessions
WHERE pid = pg_backend_pid() AND mode = 'shared' AND dedicated_cause IS NULL;
SELECT count(*) = :pooled AS served FROM pg_baton_backends
WHERE session_pid = pg_backend_pid() AND state = 'busy';

-- Parameters, the last value of a sequence, and the process ID.
SELECT pg_backend_pid() AS pid \gset
SET extra_float_digits = 0;
SET app.tenant = 'seven';
BEGIN;
SET LOCAL app.tenant = 'eight';
COMMIT;
SHOW app.tenant;
SHOW extra_float_digits;
CREATE SEQUENCE numbers;
SELECT nextval('numbers');
SELECT currval('numbers'), lastval();
SELECT pg_backend_pid() = :pid AS same_pid;

-- A temporary table keeps the session on its backend until it is dropped.
CREATE TEMPORARY TABLE mine (n int);
INSERT INTO mine VALUES (1);
SELECT count(*) = :pooled AS dedicated FROM pg_baton_sessions
WHERE pid = pg_backend_pid() AND mode = 'dedicated' AND dedicated_cause = 'temporary object';
SELECT n FROM mine;
DROP TABLE mine;

-- An advisory lock, too.
SELECT pg_advisory_lock(28);
SELECT count(*) = :pooled AS dedicated FROM pg_baton_sessions
WHERE pid = pg_backend_pid() AND mode = 'dedicated' AND dedicated_cause = 'advisory lock';
SELECT pg_advisory_unlock(28);

-- DISCARD ALL leaves a session that is shared.
DISCARD ALL;
SELECT count(*) = :pooled AS shared FROM pg_baton_sessions
WHERE pid = pg_backend_pid() AND mode = 'shared' AND dedicated_cause IS NULL;
SELECT current_setting('app.tenant', true) = '' AS reset;
SELECT lastval();
DROP SEQUENCE numbers;
