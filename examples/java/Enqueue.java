// Enqueues with JDBC.   usage: java -cp postgresql.jar Enqueue.java QUEUE NAME COUNT   (and PGHOST, PGPORT, PGDATABASE, PGUSER, PGPASSWORD)
// Each job is enqueued in the transaction that writes its data. Every seventh transaction rolls back,
// so no worker ever sees its job.

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Locale;

public class Enqueue {
	static String env(String variable, String otherwise) {
		return System.getenv().getOrDefault(variable, otherwise);
	}

	/** JDBC has no Unix sockets: a folder in PGHOST becomes localhost. No prepared statements: works behind a pooler. */
	static Connection connect(String name) throws SQLException {
		String host = env("PGHOST", "localhost");
		return DriverManager.getConnection("jdbc:postgresql://%s:%s/%s?prepareThreshold=0&ApplicationName=%s".formatted(
			host.startsWith("/") ? "localhost" : host, env("PGPORT", "5432"), env("PGDATABASE", "postgres"), name),
			env("PGUSER", "postgres"), env("PGPASSWORD", ""));
	}

	public static void main(String[] args) throws SQLException {
		String queue = args[0];
		String name = args[1];
		try (Connection connection = connect(name);
				PreparedStatement insert = connection.prepareStatement("INSERT INTO transfer VALUES (?, ?)");
				PreparedStatement enqueue = connection.prepareStatement(
					"SELECT tq_enqueue(?, ?::jsonb, kind => 'transfer', delay => ?::interval)")) {
			connection.setAutoCommit(false);
			for (int i = 1; i <= Integer.parseInt(args[2]); i++) {
				String transfer = name + "-" + i;
				int amount = i % 10 == 9 ? 0 : i;
				insert.setString(1, transfer);
				insert.setInt(2, amount);
				insert.executeUpdate();
				enqueue.setString(1, queue);
				enqueue.setString(2, String.format(Locale.ROOT, "{\"transfer\": \"%s\", \"amount\": %d, \"seconds\": %.2f, \"failures\": %d}",
					transfer, amount, i % 4 / 20.0, i % 5 == 0 ? 1 : 0));
				enqueue.setString(3, i % 4 == 0 ? "300 ms" : null);
				try (ResultSet row = enqueue.executeQuery()) {
					row.next();
					if (i % 7 == 0) {
						connection.rollback();
					} else {
						connection.commit();
						System.out.println(transfer + " " + row.getLong(1));
					}
				}
			}
		}
	}
}
