-- What the workload "functions" calls (bench/load/src/script.rs): PL/pgSQL with
-- records and dynamic SQL, on pgbench's tables.

-- a loop over records
CREATE FUNCTION bench_loop(account integer) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
	r record;
	total bigint := 0;
BEGIN
	FOR r IN SELECT aid, abalance FROM pgbench_accounts WHERE aid BETWEEN account AND account + 9 LOOP
		IF r.abalance >= 0 THEN
			total := total + r.abalance + r.aid;
		END IF;
	END LOOP;
	RETURN total;
END $$;

-- a record that a statement of a relation's name assigns
CREATE FUNCTION bench_dynamic(relation text, key text, col text, value integer) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
	r record;
BEGIN
	EXECUTE format('SELECT %I AS v FROM %I WHERE %I = $1', col, relation, key) INTO r USING value;
	RETURN r.v;
END $$;

-- a row type, in and out
CREATE FUNCTION bench_row(account integer) RETURNS pgbench_accounts LANGUAGE plpgsql STABLE AS $$
DECLARE
	a pgbench_accounts%ROWTYPE;
	branch pgbench_branches;
BEGIN
	SELECT * INTO a FROM pgbench_accounts WHERE aid = account;
	SELECT * INTO branch FROM pgbench_branches WHERE bid = a.bid;
	a.abalance := a.abalance + branch.bbalance;
	RETURN a;
END $$;

-- dynamic SQL that writes, and what it has written
CREATE FUNCTION bench_write(account integer, amount integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
	r record;
BEGIN
	EXECUTE format('UPDATE %I SET abalance = abalance + $1 WHERE aid = $2 RETURNING aid, bid, abalance',
				   'pgbench_accounts') INTO r USING amount, account;
	INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (1, r.bid, r.aid, amount, CURRENT_TIMESTAMP);
	RETURN r.abalance;
END $$;

-- a loop over dynamic SQL, and rows out
CREATE FUNCTION bench_rows(account integer) RETURNS TABLE (id integer, amount integer) LANGUAGE plpgsql STABLE AS $$
DECLARE
	r record;
BEGIN
	FOR r IN EXECUTE 'SELECT aid, abalance FROM pgbench_accounts WHERE aid BETWEEN $1 AND $1 + 4' USING account LOOP
		id := r.aid;
		amount := r.abalance;
		RETURN NEXT;
	END LOOP;
END $$;

-- A record of a type that is the session's own: of the tables of the
-- three kinds of sessions, the column has another type each.
CREATE FUNCTION bench_own_type(kind integer, account integer) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
	r record;
BEGIN
	EXECUTE format('SELECT aid::%s AS v FROM pgbench_accounts WHERE aid = $1', (ARRAY['integer', 'numeric', 'text'])[kind + 1])
		INTO r USING account;
	IF r.v IS NULL THEN
		RETURN 'none';
	END IF;
	RETURN 'is ' || r.v;
END $$;
