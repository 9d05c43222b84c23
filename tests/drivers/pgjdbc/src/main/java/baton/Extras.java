package baton;

import static baton.Application.add;
import static baton.Application.connect;
import static baton.Application.execute;
import static baton.Application.expect;
import static baton.Application.expectState;
import static baton.Application.value;

import java.io.StringReader;
import java.io.StringWriter;
import java.sql.Connection;
import java.sql.Statement;
import java.util.Arrays;
import java.util.Timer;
import java.util.TimerTask;
import org.postgresql.PGConnection;
import org.postgresql.largeobject.LargeObject;
import org.postgresql.largeobject.LargeObjectManager;

/** What only PostgreSQL's driver has, and cancelling. */
final class Extras {
    private static final String SLEEPS =
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'PgSleep'";

    private Extras() {}

    static void addAll() {
        add("copy_in_and_out", connection -> {
            var copy = connection.unwrap(PGConnection.class).getCopyAPI();
            execute(connection, "CREATE TEMP TABLE copied (a int, b text)");
            StringBuilder lines = new StringBuilder();
            for (int i = 0; i < 20000; i++) {
                lines.append(i).append("\tline ").append(i).append('\n');
            }
            expect("rows", copy.copyIn("COPY copied FROM STDIN", new StringReader(lines.toString())), 20000L);
            StringWriter out = new StringWriter();
            expect("rows", copy.copyOut("COPY (SELECT * FROM copied ORDER BY a) TO STDOUT", out), 20000L);
            expect("same", out.toString().contentEquals(lines), true);
            expectState("22P02", () -> copy.copyIn("COPY copied FROM STDIN", new StringReader("wrong\tline\n")));
            expect("after", value(connection, "SELECT 1"), 1);
            execute(connection, "DROP TABLE copied");
        });

        add("listen_and_notify", connection -> {
            execute(connection, "LISTEN jdbc_news");
            try (Connection other = connect()) {
                execute(other, "NOTIFY jdbc_news, 'one'");
                execute(other, "NOTIFY jdbc_news, 'two'");
            }
            var heard = new StringBuilder();
            var listener = connection.unwrap(PGConnection.class);
            for (int i = 0; i < 600 && heard.length() < 6; i++) {
                for (var notification : listener.getNotifications(100)) {
                    heard.append(notification.getParameter());
                }
            }
            expect("heard", heard.toString(), "onetwo");
            execute(connection, "UNLISTEN *");
        });

        add("cancel_from_another_thread", connection -> {
            for (int i = 0; i < 3; i++) {
                try (Statement statement = connection.createStatement()) {
                    new Timer(true).schedule(new TimerTask() {
                        @Override
                        public void run() {
                            // Cancelled before it runs, it would be executed all the same.
                            try (Connection other = connect()) {
                                while (!value(other, SLEEPS).equals(true)) {
                                    Thread.sleep(10);
                                }
                                statement.cancel();
                            } catch (Exception failure) {
                                failure.printStackTrace();
                            }
                        }
                    }, 0);
                    expectState("57014", () -> statement.execute("SELECT pg_sleep(60)"));
                }
                expect("after", value(connection, "SELECT 1"), 1);
            }
        });

        add("query_timeout", connection -> {
            try (Statement statement = connection.createStatement()) {
                statement.setQueryTimeout(3);
                expectState("57014", () -> statement.execute("SELECT pg_sleep(60)"));
            }
            expect("after", value(connection, "SELECT 1"), 1);
        });

        add("metadata", connection -> {
            var metadata = connection.getMetaData();
            execute(connection, "DROP TABLE IF EXISTS jdbc_meta; CREATE TABLE jdbc_meta (a int PRIMARY KEY, b text)");
            for (int i = 0; i < 6; i++) {
                int count = 0;
                try (var columns = metadata.getColumns(null, "public", "jdbc_meta", null)) {
                    while (columns.next()) {
                        count++;
                    }
                }
                expect("columns", count, 2);
                try (var keys = metadata.getPrimaryKeys(null, "public", "jdbc_meta")) {
                    expect("key", keys.next(), true);
                }
            }
            execute(connection, "DROP TABLE jdbc_meta");
        });

        add("large_object", connection -> {
            connection.setAutoCommit(false);
            LargeObjectManager manager = connection.unwrap(PGConnection.class).getLargeObjectAPI();
            long oid = manager.createLO();
            byte[] content = new byte[100_000];
            Arrays.fill(content, (byte) 7);
            try (LargeObject object = manager.open(oid, LargeObjectManager.READWRITE)) {
                object.write(content);
                object.seek(0);
                expect("content", Arrays.equals(object.read(content.length), content), true);
            }
            manager.unlink(oid);
            connection.commit();
        });
    }
}
