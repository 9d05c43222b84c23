package baton;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;

/** Runs what applications do with pgjdbc. One line a case; see drivers.py. */
public final class Application {
    /** One case: it fails by throwing. */
    interface Case {
        void run() throws Exception;
    }

    /** A case on a connection of its own. */
    interface ConnectedCase {
        void run(Connection connection) throws Exception;
    }

    static final Map<String, Case> CASES = new LinkedHashMap<>();

    private Application() {}

    static void add(String name, ConnectedCase body) {
        CASES.put(name, () -> {
            try (Connection connection = connect()) {
                body.run(connection);
            }
        });
    }

    static String url() {
        return "jdbc:postgresql://" + System.getenv("PGHOST") + ":" + System.getenv("PGPORT") + "/"
                + System.getenv("PGDATABASE");
    }

    /** Connects, with options as name, value, name, value. */
    static Connection connect(String... options) throws SQLException {
        Properties properties = new Properties();
        properties.setProperty("user", System.getenv("PGUSER"));
        properties.setProperty("sslmode", System.getenv("PGSSLMODE"));
        for (int i = 0; i < options.length; i += 2) {
            properties.setProperty(options[i], options[i + 1]);
        }
        return DriverManager.getConnection(url(), properties);
    }

    static void expect(String what, Object got, Object wanted) {
        if (!Objects.equals(got, wanted)) {
            throw new AssertionError(what + " is " + got + ", not " + wanted);
        }
    }

    static void expectState(String state, Case body) throws Exception {
        try {
            body.run();
        } catch (SQLException failure) {
            expect("SQLSTATE (" + failure.getMessage() + ")", failure.getSQLState(), state);
            return;
        }
        throw new AssertionError("no error where SQLSTATE " + state + " was expected");
    }

    /** The only column of the only row. */
    static Object value(Connection connection, String sql) throws SQLException {
        try (var statement = connection.createStatement(); var rows = statement.executeQuery(sql)) {
            rows.next();
            return rows.getObject(1);
        }
    }

    static void execute(Connection connection, String sql) throws SQLException {
        try (var statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    public static void main(String[] arguments) {
        Statements.addAll();
        Transactions.addAll();
        Extras.addAll();
        CASES.forEach((name, body) -> {
            try {
                body.run();
                System.out.println("ok " + name);
            } catch (Throwable failure) {
                System.out.println("not ok " + name + ": " + String.valueOf(failure).replace('\n', ' '));
                failure.printStackTrace();
            }
        });
        System.exit(0);
    }
}
