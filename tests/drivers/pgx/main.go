// What applications do with pgx.  One line a case; see drivers.py.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

type oneCase struct {
	name string
	run  func(context.Context) error
}

var cases = []oneCase{
	{"pool_runs_many_queries", poolRunsManyQueries},
	{"transactions_commit_and_roll_back", withConn(transactions)},
	{"nested_transactions_are_savepoints", withConn(nestedTransactions)},
	{"types_go_there_and_back", withConn(types)},
	{"batch_is_one_round_trip", withConn(batch)},
	{"batch_error_leaves_connection_usable", withConn(batchError)},
	{"copy_in_binary", withConn(copyIn)},
	{"copy_out_text", withConn(copyOut)},
	{"listen_and_notify", withConn(listen)},
	{"error_has_its_fields", withConn(errorFields)},
	{"cancel_request_ends_a_query", withConn(cancelRequest)},
	{"settings_stay_with_the_session", settings},
	{"every_query_mode", withConn(queryModes)},
	{"prepared_statement_lives_across_transactions", withConn(prepared)},
	{"result_type_change_is_noticed", withConn(resultTypeChange)},
	{"pipeline_with_many_syncs", withConn(pipeline)},
	{"cursor_in_a_transaction", withConn(cursor)},
	{"large_object", withConn(largeObject)},
	{"advisory_lock_is_the_sessions", advisoryLock},
	{"temporary_table", withConn(temporaryTable)},
	{"notice_reaches_its_handler", notice},
}

func main() {
	for _, one := range cases {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err := one.run(ctx)
		cancel()
		if err != nil {
			fmt.Printf("not ok %s: %s\n", one.name, strings.ReplaceAll(err.Error(), "\n", " / "))
		} else {
			fmt.Printf("ok %s\n", one.name)
		}
	}
}

// connect finds the server by the PG* variables.
func connect(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, "") }

func withConn(run func(context.Context, *pgx.Conn) error) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := connect(ctx)
		if err != nil {
			return err
		}
		defer conn.Close(context.Background())
		return run(ctx, conn)
	}
}

func expect(what string, got, want any) error {
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("%s is %v, not %v", what, got, want)
	}
	return nil
}

func expectCode(err error, code string) error {
	var pgError *pgconn.PgError
	if !errors.As(err, &pgError) {
		return fmt.Errorf("expected SQLSTATE %s, got %v", code, err)
	}
	return expect("SQLSTATE", pgError.Code, code)
}

func first(found ...error) error {
	for _, err := range found {
		if err != nil {
			return err
		}
	}
	return nil
}

func one[T any](ctx context.Context, conn *pgx.Conn, sql string, arguments ...any) (T, error) {
	var value T
	err := conn.QueryRow(ctx, sql, arguments...).Scan(&value)
	return value, err
}

func poolRunsManyQueries(ctx context.Context) error {
	config, err := pgxpool.ParseConfig("")
	if err != nil {
		return err
	}
	config.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	failures := make(chan error, 40)
	var group sync.WaitGroup
	for worker := 0; worker < 40; worker++ {
		group.Add(1)
		go func(worker int) {
			defer group.Done()
			for i := 0; i < 25; i++ {
				var sum int
				var text string
				err := pool.QueryRow(ctx, "SELECT $1::int + $2::int, $3::text", worker, i, fmt.Sprint(worker)).Scan(&sum, &text)
				if err == nil && (sum != worker+i || text != fmt.Sprint(worker)) {
					err = fmt.Errorf("%d+%d gave %d, %s", worker, i, sum, text)
				}
				if err != nil {
					failures <- err
					return
				}
			}
		}(worker)
	}
	group.Wait()
	select {
	case err := <-failures:
		return err
	default:
		return nil
	}
}

func transactions(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, "DROP TABLE IF EXISTS pgx_tx; CREATE TABLE pgx_tx (a int)"); err != nil {
		return err
	}
	for i, end := range []func(pgx.Tx) error{
		func(tx pgx.Tx) error { return tx.Commit(ctx) },
		func(tx pgx.Tx) error { return tx.Rollback(ctx) },
	} {
		tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.Serializable})
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "INSERT INTO pgx_tx VALUES ($1)", i); err != nil {
			return err
		}
		if err := end(tx); err != nil {
			return err
		}
	}
	count, err := one[int](ctx, conn, "SELECT count(*) FROM pgx_tx")
	_, dropped := conn.Exec(ctx, "DROP TABLE pgx_tx")
	return first(err, dropped, expect("count", count, 1))
}

func nestedTransactions(ctx context.Context, conn *pgx.Conn) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, "SET LOCAL my.level = 'outer'"); err != nil {
		return err
	}
	inner, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := inner.Exec(ctx, "SET LOCAL my.level = 'inner'"); err != nil {
		return err
	}
	if _, err := inner.Exec(ctx, "SELECT 1/0"); expectCode(err, "22012") != nil {
		return err
	}
	if err := inner.Rollback(ctx); err != nil {
		return err
	}
	var level string
	if err := tx.QueryRow(ctx, "SHOW my.level").Scan(&level); err != nil {
		return err
	}
	return first(expect("level", level, "outer"), tx.Commit(ctx))
}

func types(ctx context.Context, conn *pgx.Conn) error {
	moment := time.Date(2024, 3, 4, 5, 6, 7, 89000, time.UTC)
	var (
		number  int64
		text    string
		flag    bool
		object  map[string]any
		array   []int32
		raw     []byte
		when    time.Time
		nothing *string
		float   float64
		uuid    [16]byte
		span    time.Duration
	)
	err := conn.QueryRow(ctx,
		"SELECT $1::bigint, $2::text, $3::bool, $4::jsonb, $5::int[], $6::bytea, $7::timestamptz, $8::text,"+
			" $9::float8, $10::uuid, $11::interval",
		int64(1)<<60, "ä€", true, map[string]any{"a": "b"}, []int32{1, 2}, []byte{0, 255}, moment, nil,
		0.1, [16]byte{1, 2, 3}, 90*time.Minute,
	).Scan(&number, &text, &flag, &object, &array, &raw, &when, &nothing, &float, &uuid, &span)
	return first(err, expect("bigint", number, int64(1)<<60), expect("text", text, "ä€"), expect("bool", flag, true),
		expect("jsonb", object, map[string]any{"a": "b"}), expect("array", array, []int32{1, 2}),
		expect("bytea", raw, []byte{0, 255}), expect("timestamptz", when.UTC(), moment), expect("null", nothing, (*string)(nil)),
		expect("float8", float, 0.1), expect("uuid", uuid, [16]byte{1, 2, 3}), expect("interval", span, 90*time.Minute))
}

func batch(ctx context.Context, conn *pgx.Conn) error {
	var all pgx.Batch
	for i := 0; i < 50; i++ {
		all.Queue("SELECT $1::int * 2", i)
	}
	results := conn.SendBatch(ctx, &all)
	defer results.Close()
	for i := 0; i < 50; i++ {
		var twice int
		if err := results.QueryRow().Scan(&twice); err != nil {
			return err
		}
		if err := expect("twice", twice, i*2); err != nil {
			return err
		}
	}
	return results.Close()
}

func batchError(ctx context.Context, conn *pgx.Conn) error {
	var all pgx.Batch
	all.Queue("SELECT 1")
	all.Queue("SELECT 1/$1::int", 0)
	all.Queue("SELECT 3")
	err := conn.SendBatch(ctx, &all).Close()
	if wrong := expectCode(err, "22012"); wrong != nil {
		return wrong
	}
	value, err := one[int](ctx, conn, "SELECT 4")
	return first(err, expect("value", value, 4))
}

func copyIn(ctx context.Context, conn *pgx.Conn) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, "CREATE TABLE pgx_copy (a int, b text)"); err != nil {
		return err
	}
	count, err := tx.CopyFrom(ctx, pgx.Identifier{"pgx_copy"}, []string{"a", "b"},
		pgx.CopyFromSlice(50000, func(i int) ([]any, error) { return []any{i, fmt.Sprintf("row %d", i)}, nil }))
	if err := first(err, expect("count", count, int64(50000))); err != nil {
		return err
	}
	var sum int64
	err = tx.QueryRow(ctx, "SELECT sum(a) FROM pgx_copy").Scan(&sum)
	return first(err, expect("sum", sum, int64(50000)*49999/2))
}

func copyOut(ctx context.Context, conn *pgx.Conn) error {
	var out bytes.Buffer
	tag, err := conn.PgConn().CopyTo(ctx, &out, "COPY (SELECT generate_series(1, 100000)) TO STDOUT")
	return first(err, expect("rows", tag.RowsAffected(), int64(100000)), expect("lines", bytes.Count(out.Bytes(), []byte("\n")), 100000))
}

func listen(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, "LISTEN pgx_news"); err != nil {
		return err
	}
	other, err := connect(ctx)
	if err != nil {
		return err
	}
	defer other.Close(ctx)
	for _, payload := range []string{"one", "two"} {
		if _, err := other.Exec(ctx, "SELECT pg_notify('pgx_news', $1)", payload); err != nil {
			return err
		}
		heard, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		if err := expect("payload", heard.Payload, payload); err != nil {
			return err
		}
	}
	_, err = conn.Exec(ctx, "UNLISTEN *")
	return err
}

func errorFields(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "SELECT * FROM nowhere_to_be_found")
	var pgError *pgconn.PgError
	if !errors.As(err, &pgError) {
		return fmt.Errorf("no PgError but %v", err)
	}
	value, err := one[int](ctx, conn, "SELECT 1")
	return first(expect("code", pgError.Code, "42P01"), expect("position", pgError.Position, int32(15)),
		expect("routine", pgError.Routine, "parserOpenTable"), err, expect("value", value, 1))
}

func cancelRequest(ctx context.Context, conn *pgx.Conn) error {
	other, err := connect(ctx)
	if err != nil {
		return err
	}
	defer other.Close(context.Background())
	for i := 0; i < 3; i++ {
		requested := make(chan error, 1)
		go func() { requested <- cancelSleeper(ctx, conn, other) }()
		_, err := conn.Exec(ctx, "SELECT pg_sleep(60)")
		if err := first(<-requested, expectCode(err, "57014")); err != nil {
			return err
		}
		value, err := one[int](ctx, conn, "SELECT 1")
		if err := first(err, expect("value", value, 1)); err != nil {
			return err
		}
	}
	return nil
}

// cancelSleeper waits until the query runs: a request that comes before it cancels nothing.
func cancelSleeper(ctx context.Context, conn, other *pgx.Conn) error {
	for {
		running, err := one[bool](ctx, other, "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
		if err != nil {
			return err
		}
		if running {
			return conn.PgConn().CancelRequest(ctx)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func settings(ctx context.Context) error {
	var conns []*pgx.Conn
	for i := 0; i < 12; i++ {
		conn, err := connect(ctx)
		if err != nil {
			return err
		}
		defer conn.Close(context.Background())
		conns = append(conns, conn)
		if _, err := conn.Exec(ctx, fmt.Sprintf("SET my.number = '%d'; SET search_path = s%d, public", i, i)); err != nil {
			return err
		}
	}
	for round := 0; round < 5; round++ {
		for i, conn := range conns {
			got, err := one[string](ctx, conn, "SELECT current_setting('my.number') || current_setting('search_path')")
			if err := first(err, expect("settings", got, fmt.Sprintf("%ds%d, public", i, i))); err != nil {
				return err
			}
		}
	}
	return nil
}

func queryModes(ctx context.Context, conn *pgx.Conn) error {
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		for i := 0; i < 4; i++ {
			sum, err := one[int](ctx, conn, "SELECT $1::int + $2::int", mode, i, 5)
			if err := first(err, expect(mode.String(), sum, i+5)); err != nil {
				return err
			}
		}
	}
	return nil
}

func prepared(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Prepare(ctx, "doubled", "SELECT $1::int * 2"); err != nil {
		return err
	}
	for i := 0; i < 10; i++ {
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		var twice int
		err = tx.QueryRow(ctx, "doubled", i).Scan(&twice)
		if err := first(err, tx.Rollback(ctx), expect("twice", twice, i*2)); err != nil {
			return err
		}
	}
	count, err := one[int](ctx, conn, "SELECT count(*) FROM pg_prepared_statements WHERE name = 'doubled'")
	if err := first(err, expect("count", count, 1), conn.Deallocate(ctx, "doubled")); err != nil {
		return err
	}
	return nil
}

func resultTypeChange(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, "DROP TABLE IF EXISTS pgx_types; CREATE TABLE pgx_types AS SELECT 1 AS a"); err != nil {
		return err
	}
	defer conn.Exec(ctx, "DROP TABLE pgx_types")
	if _, err := conn.Prepare(ctx, "typed", "SELECT * FROM pgx_types"); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "typed"); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "ALTER TABLE pgx_types ADD COLUMN b text"); err != nil {
		return err
	}
	_, err := conn.Exec(ctx, "typed")
	return expectCode(err, "0A000")
}

func pipeline(ctx context.Context, conn *pgx.Conn) error {
	line := conn.PgConn().StartPipeline(ctx)
	const rounds = 20
	for i := 0; i < rounds; i++ {
		line.SendQueryParams("SELECT $1::int", [][]byte{[]byte(fmt.Sprint(i))}, nil, nil, nil)
		if i%5 == 4 {
			line.SendQueryParams("SELECT 1/0", nil, nil, nil, nil)
		}
		if err := line.Sync(); err != nil {
			return err
		}
	}
	syncs, rows, failures := 0, 0, 0
	for syncs < rounds {
		result, err := line.GetResults()
		if err != nil {
			if wrong := expectCode(err, "22012"); wrong != nil {
				return wrong
			}
			failures++
			continue
		}
		switch result := result.(type) {
		case *pgconn.ResultReader:
			read := result.Read()
			if read.Err != nil {
				if wrong := expectCode(read.Err, "22012"); wrong != nil {
					return wrong
				}
				failures++
				continue
			}
			if err := expect("row", string(read.Rows[0][0]), fmt.Sprint(rows)); err != nil {
				return err
			}
			rows++
		case *pgconn.PipelineSync:
			syncs++
		}
	}
	return first(line.Close(), expect("rows", rows, rounds), expect("failures", failures, rounds/5))
}

func cursor(ctx context.Context, conn *pgx.Conn) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, "DECLARE c CURSOR FOR SELECT generate_series(1, 1000)"); err != nil {
		return err
	}
	count := 0
	for {
		rows, err := tx.Query(ctx, "FETCH 300 FROM c")
		if err != nil {
			return err
		}
		part, err := pgx.CollectRows(rows, pgx.RowTo[int])
		if err != nil {
			return err
		}
		if len(part) == 0 {
			return expect("count", count, 1000)
		}
		count += len(part)
	}
}

func largeObject(ctx context.Context, conn *pgx.Conn) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	objects := tx.LargeObjects()
	oid, err := objects.Create(ctx, 0)
	if err != nil {
		return err
	}
	object, err := objects.Open(ctx, oid, pgx.LargeObjectModeRead|pgx.LargeObjectModeWrite)
	if err != nil {
		return err
	}
	content := bytes.Repeat([]byte("0123456789"), 10000)
	if _, err := object.Write(content); err != nil {
		return err
	}
	if _, err := object.Seek(0, 0); err != nil {
		return err
	}
	got := make([]byte, len(content))
	count, err := object.Read(got)
	return first(err, expect("length", count, len(content)), expect("content", got, content), objects.Unlink(ctx, oid), tx.Commit(ctx))
}

func advisoryLock(ctx context.Context) error {
	holder, err := connect(ctx)
	if err != nil {
		return err
	}
	defer holder.Close(context.Background())
	other, err := connect(ctx)
	if err != nil {
		return err
	}
	defer other.Close(context.Background())
	const try, unlock = "SELECT pg_try_advisory_lock(4711)", "SELECT pg_advisory_unlock(4711)"
	for round := 0; round < 3; round++ {
		for _, step := range []struct {
			conn *pgx.Conn
			sql  string
			want bool
		}{{holder, try, true}, {other, try, false}, {holder, unlock, true}, {other, try, true}, {other, unlock, true}} {
			got, err := one[bool](ctx, step.conn, step.sql)
			if err := first(err, expect(step.sql, got, step.want)); err != nil {
				return err
			}
		}
	}
	return nil
}

func temporaryTable(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, "CREATE TEMP TABLE scratch (a int)"); err != nil {
		return err
	}
	for i := 0; i < 10; i++ {
		if _, err := conn.Exec(ctx, "INSERT INTO scratch VALUES ($1)", i); err != nil {
			return err
		}
	}
	sum, err := one[int](ctx, conn, "SELECT sum(a) FROM scratch")
	_, dropped := conn.Exec(ctx, "DROP TABLE scratch")
	return first(err, expect("sum", sum, 45), dropped)
}

func notice(ctx context.Context) error {
	config, err := pgx.ParseConfig("")
	if err != nil {
		return err
	}
	var heard []string
	config.OnNotice = func(_ *pgconn.PgConn, notice *pgconn.Notice) { heard = append(heard, notice.Message) }
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	_, err = conn.Exec(ctx, "DO $$BEGIN RAISE NOTICE 'hello'; END$$")
	return first(err, expect("notices", heard, []string{"hello"}))
}
