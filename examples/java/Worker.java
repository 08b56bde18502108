// A tq worker with JDBC.   usage: java -cp postgresql.jar Worker.java QUEUE NAME   (and PGHOST, PGPORT, PGDATABASE, PGUSER, PGPASSWORD)

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Locale;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

public class Worker {
	static final Duration LEASE = Duration.ofSeconds(3); // renewed after a third of it
	static final String LOST = "TQ001";

	record Job(long id, long lease, int attempt, String until, String transfer, int amount, double seconds, int failures) {}

	/** A retry cannot succeed. */
	@SuppressWarnings("serial")
	static class Fatal extends Exception {
		Fatal(String message) { super(message); }
	}

	private final String queue;
	private final String name;
	private final ScheduledExecutorService beats = Executors.newSingleThreadScheduledExecutor();
	private volatile boolean stopping;

	Worker(String queue, String name) {
		this.queue = queue;
		this.name = name;
	}

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

	void note(String event, Job job, String word) {
		if (System.getenv("WORK_LOG") == null)
			return;
		String line = String.format(Locale.ROOT, "%.6f %s %s %d %d %d %s%n", System.currentTimeMillis() / 1e3, name, event, job.id,
			job.lease, job.attempt, word);
		try {
			Files.writeString(Path.of(System.getenv("WORK_LOG")), line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
		} catch (IOException e) {
			throw new java.io.UncheckedIOException(e);
		}
	}

	/** The first column of the first row, or null. */
	static String value(Connection connection, String sql, Object... args) throws SQLException {
		try (PreparedStatement statement = connection.prepareStatement(sql)) {
			for (int i = 0; i < args.length; i++)
				statement.setObject(i + 1, args[i]);
			try (ResultSet rows = statement.executeQuery()) {
				return rows.next() ? rows.getString(1) : null;
			}
		}
	}

	Job claim(Connection connection) throws SQLException {
		try (PreparedStatement statement = connection.prepareStatement("""
				SELECT id, lease, attempt, extract(epoch FROM lease_expires_at), payload->>'transfer', payload->>'amount',
					coalesce(payload->>'seconds', '0'), coalesce(payload->>'failures', '0')
				FROM tq_claim(?, worker => ?, lease_for => ? * interval '1 ms', wait => '2 s')""")) {
			statement.setString(1, queue);
			statement.setString(2, name);
			statement.setLong(3, LEASE.toMillis());
			try (ResultSet r = statement.executeQuery()) {
				return r.next() ? new Job(r.getLong(1), r.getLong(2), r.getInt(3), r.getString(4), r.getString(5), r.getInt(6),
					r.getDouble(7), r.getInt(8)) : null;
			}
		}
	}

	/** Renews the lease on its own connection, and cancels the work on a stop request. */
	void beat(Job job, CompletableFuture<Void> working) {
		try (Connection connection = connect(name)) {
			switch (value(connection, "SELECT action FROM tq_heartbeat(?, ?)", job.id, job.lease)) {
				case "lost", "cancel" -> working.completeExceptionally(new Exception("stopped as asked"));
				case "quiet" -> stopping = true;
				default -> { }
			}
		} catch (SQLException e) {
			System.err.println(e.getMessage()); // the server restarts; the next heartbeat may succeed
		}
	}

	/** The slow work, outside any transaction. */
	void work(Job job) throws Exception {
		if (job.attempt <= job.failures)
			throw new Exception("the bank does not answer");
		if (job.amount <= 0)
			throw new Fatal("nothing to book");
		var working = new CompletableFuture<Void>();
		long third = LEASE.toMillis() / 3;
		var beating = beats.scheduleAtFixedRate(() -> beat(job, working), third, third, TimeUnit.MILLISECONDS);
		try {
			working.completeOnTimeout(null, (long) (job.seconds * 1000), TimeUnit.MILLISECONDS).get();
		} catch (ExecutionException e) {
			throw (Exception) e.getCause();
		} finally {
			beating.cancel(false);
		}
	}

	String complete(Connection connection, Job job) throws SQLException {
		note("end", job, "complete");
		connection.setAutoCommit(false); // both or neither
		try {
			value(connection, "INSERT INTO booking VALUES (?, ?, ?, ?) RETURNING 1", job.id, job.transfer, job.amount, name);
			String answer = value(connection, "SELECT tq_complete(?, ?)", job.id, job.lease);
			connection.commit();
			return answer;
		} catch (SQLException e) {
			connection.rollback(); // raises an error if the server is gone
			throw e;
		} finally {
			if (!connection.isClosed())
				connection.setAutoCommit(true);
		}
	}

	String fail(Connection connection, Job job, Exception error) throws SQLException {
		boolean fatal = error instanceof Fatal;
		note("end", job, fatal ? "kill" : "fail");
		return value(connection, "SELECT tq_fail(?, ?, ?, fatal => ?)", job.id, job.lease, error.getMessage(), fatal);
	}

	void process(Connection connection, Job job) throws SQLException {
		note("start", job, job.until);
		String answer;
		try {
			try {
				work(job);
				answer = complete(connection, job);
			} catch (Exception e) {
				if (e instanceof SQLException s && (LOST.equals(s.getSQLState()) || !connection.isValid(5)))
					throw s;
				answer = fail(connection, job, e);
			}
		} catch (SQLException e) {
			if (!LOST.equals(e.getSQLState()))
				throw e;
			answer = "lost"; // another worker has the job by now
		}
		note("told", job, answer);
	}

	void run() throws InterruptedException {
		while (!stopping) {
			try (Connection connection = connect(name)) {
				while (!stopping) {
					Job job = claim(connection);
					if (job != null)
						process(connection, job);
				}
			} catch (SQLException e) {
				// the server restarts: jobs in hand run again after their leases expire
				System.err.println(e.getMessage());
				Thread.sleep(200);
			}
		}
		beats.shutdown();
	}

	public static void main(String[] args) throws Exception {
		var worker = new Worker(args[0], args[1]);
		var main = Thread.currentThread();
		// SIGTERM: the JVM exits when this hook returns, so it waits for the job in hand; the status would be 143
		Runtime.getRuntime().addShutdownHook(new Thread(() -> {
			worker.stopping = true;
			try {
				main.join();
				Runtime.getRuntime().halt(0);
			} catch (InterruptedException e) {
				Thread.currentThread().interrupt();
			}
		}));
		worker.run();
	}
}
