package baton;

import static baton.Application.add;
import static baton.Application.connect;
import static baton.Application.execute;
import static baton.Application.expect;
import static baton.Application.expectState;
import static baton.Application.value;

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.sql.Connection;
import java.sql.Savepoint;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Transactions, pools of connections, and what a session keeps. */
final class Transactions {
    private Transactions() {}

    static void addAll() {
        Application.CASES.put("hikari_pool_of_many_threads", Transactions::hikari);

        add("transactions_commit_and_roll_back", connection -> {
            execute(connection, "DROP TABLE IF EXISTS jdbc_tx; CREATE TABLE jdbc_tx (a int)");
            connection.setAutoCommit(false);
            execute(connection, "INSERT INTO jdbc_tx VALUES (1)");
            connection.commit();
            execute(connection, "INSERT INTO jdbc_tx VALUES (2)");
            connection.rollback();
            expect("count", value(connection, "SELECT count(*) FROM jdbc_tx"), 1L);
            execute(connection, "DROP TABLE jdbc_tx");
            connection.commit();
        });

        add("savepoints", connection -> {
            connection.setAutoCommit(false);
            execute(connection, "SET LOCAL my.level = 'outer'");
            Savepoint point = connection.setSavepoint("point");
            execute(connection, "SET LOCAL my.level = 'inner'");
            expectState("22012", () -> execute(connection, "SELECT 1/0"));
            connection.rollback(point);
            expect("level", value(connection, "SHOW my.level"), "outer");
            connection.commit();
        });

        Application.CASES.put("autosave_keeps_the_transaction", () -> {
            try (Connection connection = connect("autosave", "always")) {
                connection.setAutoCommit(false);
                execute(connection, "CREATE TEMP TABLE saved (a int)");
                expectState("22012", () -> execute(connection, "SELECT 1/0"));
                execute(connection, "INSERT INTO saved VALUES (1)");
                expect("count", value(connection, "SELECT count(*) FROM saved"), 1L);
                connection.rollback();
            }
        });

        add("isolation_and_read_only", connection -> {
            connection.setTransactionIsolation(Connection.TRANSACTION_SERIALIZABLE);
            connection.setReadOnly(true);
            connection.setAutoCommit(false);
            expect("isolation", value(connection, "SHOW transaction_isolation"), "serializable");
            expectState("25006", () -> execute(connection, "CREATE TABLE jdbc_never (a int)"));
            connection.rollback();
            connection.setReadOnly(false);
            expect("isolation", connection.getTransactionIsolation(), Connection.TRANSACTION_SERIALIZABLE);
            connection.rollback();
        });

        add("schema_and_client_info", connection -> {
            execute(connection, "CREATE SCHEMA IF NOT EXISTS jdbc_schema");
            connection.setSchema("jdbc_schema");
            connection.setClientInfo("ApplicationName", "a name of its own");
            for (int i = 0; i < 10; i++) {
                expect("schema", connection.getSchema(), "jdbc_schema");
                expect("name", value(connection,
                        "SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()"),
                        "a name of its own");
            }
            execute(connection, "DROP SCHEMA jdbc_schema");
        });
    }

    private static void hikari() throws Exception {
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl(Application.url());
        config.setUsername(System.getenv("PGUSER"));
        config.addDataSourceProperty("sslmode", System.getenv("PGSSLMODE"));
        config.setMaximumPoolSize(16);
        config.setConnectionInitSql("SET my.pool = 'hikari'");
        try (HikariDataSource source = new HikariDataSource(config)) {
            var threads = Executors.newFixedThreadPool(32);
            List<Future<?>> futures = new ArrayList<>();
            for (int thread = 0; thread < 32; thread++) {
                int number = thread;
                futures.add(threads.submit(() -> {
                    for (int i = 0; i < 30; i++) {
                        try (Connection connection = source.getConnection();
                                var statement = connection.prepareStatement(
                                        "SELECT ?::int + ?::int, current_setting('my.pool')")) {
                            statement.setInt(1, number);
                            statement.setInt(2, i);
                            try (var rows = statement.executeQuery()) {
                                rows.next();
                                expect("sum", rows.getInt(1), number + i);
                                expect("setting", rows.getString(2), "hikari");
                            }
                        }
                    }
                    return null;
                }));
            }
            for (Future<?> future : futures) {
                future.get();
            }
            threads.shutdown();
        }
    }
}
