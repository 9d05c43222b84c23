-- Prepared statements outlive the transaction that made them, on any backend.
CREATE TABLE things (id int PRIMARY KEY, name text);
INSERT INTO things VALUES (1, 'a'), (2, 'b');
PREPARE by_id(int) AS SELECT name FROM things WHERE id = $1;
EXECUTE by_id(1);
EXECUTE by_id(2);
SELECT name, statement, parameter_types, from_sql FROM pg_prepared_statements;

-- The statement follows a change of its table.
ALTER TABLE things ALTER COLUMN id TYPE bigint;
EXECUTE by_id(2);
PREPARE by_id AS SELECT 1;
\echo :LAST_ERROR_SQLSTATE

-- A new connection has none of it.
\c -
EXECUTE by_id(1);
\echo :LAST_ERROR_SQLSTATE
DROP TABLE things;
