import java.math.BigDecimal;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Timestamp;
import java.sql.Types;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Properties;
import java.util.TreeSet;

/**
 * Asks a served recording through two drivers of JDBC, and compares what they give.
 *
 * <pre>JdbcClients PG_ADDRESS FLIGHT_ADDRESS RECORDING QUESTIONS</pre>
 *
 * QUESTIONS is crates/query/sql/tests/questions.sql. Every question is asked of both drivers, of
 * PostgreSQL's as a prepared statement in binary and in pieces of 500 rows. What a tool asks before
 * it shows a table is asked too: tables, columns, types.
 */
public final class JdbcClients {
    private static int failures;

    public static void main(String[] arguments) throws Exception {
        String recording = arguments[2];
        try (Connection pg = openPg(arguments[0], recording);
                Connection flight = openFlight(arguments[1], recording)) {
            checkMetadata("pgjdbc", pg, recording);
            checkMetadata("Flight SQL JDBC", flight, recording);
            checkParameters("pgjdbc", pg);
            checkParameters("Flight SQL JDBC", flight);
            checkErrors("pgjdbc", pg);
            checkErrors("Flight SQL JDBC", flight);
            checkCancel(pg);
            compareAnswers(pg, flight, Files.readString(Path.of(arguments[3])));
        }
        if (failures > 0) {
            System.exit(1);
        }
    }

    private static Connection openPg(String address, String recording) throws SQLException {
        Properties properties = new Properties();
        properties.put("user", "anyone");
        Connection connection = DriverManager.getConnection("jdbc:postgresql://" + address + "/" + recording, properties);
        // Rows come in pieces only within a transaction.
        connection.setAutoCommit(false);
        connection.setReadOnly(true);
        return connection;
    }

    private static Connection openFlight(String address, String recording) throws SQLException {
        Properties properties = new Properties();
        properties.put("useEncryption", "false");
        properties.put("database", recording);
        return DriverManager.getConnection("jdbc:arrow-flight-sql://" + address, properties);
    }

    private static void expect(Object got, Object wanted, String what) {
        if (!Objects.equals(got, wanted)) {
            System.out.println(what + ": " + got + " instead of " + wanted);
            failures++;
        }
    }

    private static void checkMetadata(String driver, Connection connection, String recording) throws SQLException {
        TreeSet<String> tables = new TreeSet<>();
        try (ResultSet rows = connection.getMetaData().getTables(null, recording, "%", null)) {
            while (rows.next()) {
                tables.add(rows.getString("TABLE_NAME"));
            }
        }
        expect(tables.toString(), "[messages, quotes, raw, trades]", driver + ": tables");
        List<String> columns = new ArrayList<>();
        try (ResultSet rows = connection.getMetaData().getColumns(null, recording, "quotes", "%")) {
            while (rows.next()) {
                columns.add(rows.getString("COLUMN_NAME"));
            }
        }
        expect(columns.containsAll(List.of("symbol", "bid", "bid_size", "ask", "ask_size")), true, driver + ": columns " + columns);
        System.out.println("answered: " + driver + ", " + tables.size() + " tables, " + columns.size() + " columns of quotes");
    }

    private static void checkParameters(String driver, Connection connection) throws SQLException {
        String sql = "SELECT count(*) FROM messages WHERE type = ? AND shares >= ? AND price < ?";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            statement.setString(1, "A");
            statement.setLong(2, 100);
            statement.setBigDecimal(3, new BigDecimal("288.5000"));
            long prepared = single(statement.executeQuery());
            try (Statement plain = connection.createStatement()) {
                expect(prepared, single(plain.executeQuery(
                        "SELECT count(*) FROM messages WHERE type = 'A' AND shares >= 100 AND price < 288.5")), driver + ": parameters");
            }
            expect(prepared > 0, true, driver + ": rows by parameters");
        }
    }

    private static long single(ResultSet rows) throws SQLException {
        rows.next();
        return rows.getLong(1);
    }

    private static void checkErrors(String driver, Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.executeQuery("SELECT pricee FROM messages");
            expect("rows", "an error", driver + ": an unknown column");
        } catch (SQLException error) {
            expect(error.getMessage().contains("pricee"), true, driver + ": the words of an error: " + error.getMessage());
        }
        if (!connection.getAutoCommit()) {
            connection.rollback();
        }
        try (Statement statement = connection.createStatement()) {
            expect(single(statement.executeQuery("SELECT 1")), 1L, driver + ": a statement after an error");
        }
    }

    /** A statement that would compute for hours ends by cancel, and the connection goes on. */
    private static void checkCancel(Connection connection) throws Exception {
        try (Statement statement = connection.createStatement()) {
            Thread canceller = new Thread(() -> {
                try {
                    Thread.sleep(500);
                    statement.cancel();
                } catch (Exception error) {
                    expect(error, null, "pgjdbc: cancel");
                }
            });
            canceller.start();
            try {
                statement.executeQuery("SELECT count(*) FROM generate_series(1, 1000000) a(x)"
                        + " JOIN generate_series(1, 1000000) b(y) ON x + y < 0");
                expect("rows", "an error", "pgjdbc: an endless statement");
            } catch (SQLException error) {
                expect(error.getSQLState(), "57014", "pgjdbc: the state of a cancelled statement");
            }
            canceller.join();
        }
        connection.rollback();
    }

    private static void compareAnswers(Connection pg, Connection flight, String text) throws SQLException {
        int asked = 0;
        long rows = 0;
        for (String block : text.split("\n-- question ")) {
            int end = block.indexOf('\n');
            if (asked == 0 && block.startsWith("--")) {
                continue;
            }
            String title = block.substring(0, end);
            String sql = block.substring(end).split("\n-- duckdb\n")[0];
            List<List<Object>> one = readPrepared(pg, sql);
            List<List<Object>> other = readPlain(flight, sql);
            expect(one.size(), other.size(), title + ": rows of pgjdbc and of Flight SQL JDBC");
            for (int at = 0; at < Math.min(one.size(), other.size()); at++) {
                if (!one.get(at).equals(other.get(at))) {
                    expect(one.get(at), other.get(at), title + ": row " + at);
                    break;
                }
            }
            asked++;
            rows += one.size();
        }
        expect(asked >= 40 && rows > 0, true, "questions");
        System.out.println(asked + " questions, " + rows + " rows, by pgjdbc and by Flight SQL JDBC: " + failures + " failures");
    }

    private static List<List<Object>> readPrepared(Connection connection, String sql) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            statement.setFetchSize(500);
            return read(statement.executeQuery());
        }
    }

    private static List<List<Object>> readPlain(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            return read(statement.executeQuery(sql));
        }
    }

    private static List<List<Object>> read(ResultSet rows) throws SQLException {
        int columns = rows.getMetaData().getColumnCount();
        List<List<Object>> read = new ArrayList<>();
        while (rows.next()) {
            List<Object> row = new ArrayList<>();
            for (int column = 1; column <= columns; column++) {
                row.add(plain(rows, column));
            }
            read.add(row);
        }
        return read;
    }

    /** A value in a form that both drivers share: whole numbers as long, times in microseconds. */
    private static Object plain(ResultSet rows, int column) throws SQLException {
        Object value;
        switch (rows.getMetaData().getColumnType(column)) {
            case Types.TIMESTAMP:
            case Types.TIMESTAMP_WITH_TIMEZONE:
                Timestamp time = rows.getTimestamp(column);
                value = time == null ? null : time.getTime() / 1000 * 1_000_000 + time.getNanos() / 1000;
                break;
            case Types.NUMERIC:
            case Types.DECIMAL:
                BigDecimal decimal = rows.getBigDecimal(column);
                value = decimal == null ? null : decimal.toPlainString();
                break;
            case Types.BIT:
            case Types.BOOLEAN:
                value = rows.getBoolean(column);
                break;
            case Types.BIGINT:
            case Types.INTEGER:
            case Types.SMALLINT:
                value = rows.getLong(column);
                break;
            case Types.DOUBLE:
            case Types.FLOAT:
            case Types.REAL:
                value = rows.getDouble(column);
                break;
            default:
                value = rows.getString(column);
        }
        return rows.wasNull() ? null : value;
    }
}
