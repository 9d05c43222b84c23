package baton;

import static baton.Application.add;
import static baton.Application.connect;
import static baton.Application.execute;
import static baton.Application.expect;
import static baton.Application.expectState;
import static baton.Application.value;

import java.math.BigDecimal;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.Arrays;
import java.util.UUID;
import org.postgresql.PGStatement;
import org.postgresql.util.PSQLException;

/** Statements, their results, types and errors. */
final class Statements {
    private Statements() {}

    static void addAll() {
        add("server_side_prepare_after_five", connection -> {
            try (PreparedStatement statement = connection.prepareStatement("SELECT ?::int + 1")) {
                for (int i = 0; i < 20; i++) {
                    statement.setInt(1, i);
                    try (ResultSet rows = statement.executeQuery()) {
                        rows.next();
                        expect("sum", rows.getInt(1), i + 1);
                    }
                }
                expect("server prepared", statement.unwrap(PGStatement.class).isUseServerPrepare(), true);
                expect("statements", value(connection,
                        "SELECT count(*) > 0 FROM pg_prepared_statements WHERE NOT from_sql"), true);
            }
        });

        add("batch_insert", connection -> batch(connection));

        Application.CASES.put("rewritten_batch_insert", () -> {
            try (var connection = connect("reWriteBatchedInserts", "true")) {
                batch(connection);
            }
        });

        add("fetch_size_uses_portals", connection -> {
            connection.setAutoCommit(false);
            try (PreparedStatement statement = connection.prepareStatement("SELECT generate_series(1, 1000)")) {
                statement.setFetchSize(70);
                int count = 0;
                try (ResultSet rows = statement.executeQuery()) {
                    while (rows.next()) {
                        expect("row", rows.getInt(1), ++count);
                    }
                }
                expect("rows", count, 1000);
            }
            connection.commit();
        });

        add("holdable_cursor_outlives_commit", connection -> {
            connection.setAutoCommit(false);
            execute(connection, "DECLARE kept CURSOR WITH HOLD FOR SELECT generate_series(1, 10)");
            connection.commit();
            expect("first", value(connection, "FETCH 1 FROM kept"), 1);
            connection.commit();
            expect("second", value(connection, "FETCH 1 FROM kept"), 2);
            execute(connection, "CLOSE kept");
            connection.commit();
        });

        add("types_go_there_and_back", connection -> {
            var moment = OffsetDateTime.of(2024, 3, 4, 5, 6, 7, 89_000_000, ZoneOffset.UTC);
            var uuid = UUID.fromString("00112233-4455-6677-8899-aabbccddeeff");
            String sql = "SELECT ?::bigint, ?::text, ?::bool, ?::numeric, ?::timestamptz, ?::uuid, ?::bytea, ?::int[], ?::float8";
            try (PreparedStatement statement = connection.prepareStatement(sql)) {
                // Beyond the fifth, results come in binary.
                for (int round = 0; round < 8; round++) {
                    statement.setLong(1, 1L << 60);
                    statement.setString(2, "ä€");
                    statement.setBoolean(3, true);
                    statement.setBigDecimal(4, new BigDecimal("12345678901234567890.123"));
                    statement.setObject(5, moment);
                    statement.setObject(6, uuid);
                    statement.setBytes(7, new byte[] {0, -1});
                    statement.setArray(8, connection.createArrayOf("int4", new Integer[] {1, null, 3}));
                    statement.setDouble(9, 0.1);
                    try (ResultSet rows = statement.executeQuery()) {
                        rows.next();
                        expect("bigint", rows.getLong(1), 1L << 60);
                        expect("text", rows.getString(2), "ä€");
                        expect("bool", rows.getBoolean(3), true);
                        expect("numeric", rows.getBigDecimal(4), new BigDecimal("12345678901234567890.123"));
                        expect("timestamptz", rows.getObject(5, OffsetDateTime.class).toInstant(), moment.toInstant());
                        expect("uuid", rows.getObject(6), uuid);
                        expect("bytea", Arrays.toString(rows.getBytes(7)), "[0, -1]");
                        expect("array", Arrays.toString((Object[]) rows.getArray(8).getArray()), "[1, null, 3]");
                        expect("float8", rows.getDouble(9), 0.1);
                    }
                }
            }
        });

        add("error_has_its_fields", connection -> {
            execute(connection, "CREATE TEMP TABLE uniq (a int PRIMARY KEY); INSERT INTO uniq VALUES (1)");
            try {
                execute(connection, "INSERT INTO uniq VALUES (1)");
                throw new AssertionError("no error");
            } catch (PSQLException failure) {
                expect("state", failure.getSQLState(), "23505");
                expect("constraint", failure.getServerErrorMessage().getConstraint(), "uniq_pkey");
            }
            expect("after", value(connection, "SELECT 1"), 1);
            execute(connection, "DROP TABLE uniq");
        });

        add("generated_keys", connection -> {
            execute(connection, "CREATE TEMP TABLE keyed (id serial PRIMARY KEY, a text)");
            try (var statement = connection.prepareStatement("INSERT INTO keyed (a) VALUES (?)",
                    Statement.RETURN_GENERATED_KEYS)) {
                for (int i = 1; i <= 10; i++) {
                    statement.setString(1, "row " + i);
                    statement.executeUpdate();
                    try (ResultSet keys = statement.getGeneratedKeys()) {
                        keys.next();
                        expect("key", keys.getInt(1), i);
                    }
                }
            }
            expect("currval", value(connection, "SELECT currval(pg_get_serial_sequence('keyed', 'id'))"), 10L);
            execute(connection, "DROP TABLE keyed");
        });

        Application.CASES.put("simple_query_mode", () -> {
            for (String mode : new String[] {"simple", "extended", "extendedForPrepared", "extendedCacheEverything"}) {
                try (var connection = connect("preferQueryMode", mode);
                        var statement = connection.prepareStatement("SELECT ?::int * 3")) {
                    for (int i = 0; i < 8; i++) {
                        statement.setInt(1, i);
                        try (ResultSet rows = statement.executeQuery()) {
                            rows.next();
                            expect(mode, rows.getInt(1), i * 3);
                        }
                    }
                    expect("plain", value(connection, "SELECT 7"), 7);
                }
            }
        });

        add("result_type_change_is_noticed", connection -> {
            execute(connection, "DROP TABLE IF EXISTS jdbc_types; CREATE TABLE jdbc_types AS SELECT 1 AS a");
            try (PreparedStatement statement = connection.prepareStatement("SELECT * FROM jdbc_types")) {
                for (int i = 0; i < 10; i++) {
                    statement.executeQuery().close();
                }
                execute(connection, "ALTER TABLE jdbc_types ADD COLUMN b text");
                // Within a transaction the driver cannot repeat it by itself.
                connection.setAutoCommit(false);
                expectState("0A000", () -> statement.executeQuery().close());
                connection.rollback();
                connection.setAutoCommit(true);
                // Outside one, it does.
                try (ResultSet rows = statement.executeQuery()) {
                    expect("columns", rows.getMetaData().getColumnCount(), 2);
                }
            } finally {
                execute(connection, "DROP TABLE jdbc_types");
            }
        });

        add("deallocate_all_is_survived", connection -> {
            try (PreparedStatement statement = connection.prepareStatement("SELECT ?::int")) {
                for (int i = 0; i < 10; i++) {
                    statement.setInt(1, i);
                    statement.executeQuery().close();
                }
                execute(connection, "DEALLOCATE ALL");
                statement.setInt(1, 5);
                try (ResultSet rows = statement.executeQuery()) {
                    rows.next();
                    expect("value", rows.getInt(1), 5);
                }
            }
        });

        add("function_with_out_parameter", connection -> {
            execute(connection, "CREATE OR REPLACE FUNCTION jdbc_twice(int) RETURNS int LANGUAGE sql AS 'SELECT $1 * 2'");
            try (var call = connection.prepareCall("{? = call jdbc_twice(?)}")) {
                for (int i = 0; i < 8; i++) {
                    call.registerOutParameter(1, java.sql.Types.INTEGER);
                    call.setInt(2, i);
                    call.execute();
                    expect("twice", call.getInt(1), i * 2);
                }
            }
            execute(connection, "DROP FUNCTION jdbc_twice(int)");
        });
    }

    private static void batch(java.sql.Connection connection) throws SQLException {
        execute(connection, "CREATE TEMP TABLE batched (a int, b text)");
        connection.setAutoCommit(false);
        try (PreparedStatement statement = connection.prepareStatement("INSERT INTO batched VALUES (?, ?)")) {
            for (int i = 0; i < 3000; i++) {
                statement.setInt(1, i);
                statement.setString(2, "row " + i);
                statement.addBatch();
            }
            expect("batch", statement.executeBatch().length, 3000);
        }
        connection.commit();
        connection.setAutoCommit(true);
        expect("sum", value(connection, "SELECT sum(a) FROM batched"), 3000L * 2999 / 2);
        execute(connection, "DROP TABLE batched");
    }
}
