/*
 * The delay from an enqueue's commit until a worker that waits in tq_claim has the job.
 *
 * usage: wakeup CONNINFO SAMPLES
 *
 * Two connections, one thread each. The worker waits in tq_claim(..., wait). The producer enqueues, and sends each
 * COMMIT only when the worker sleeps again. Times are CLOCK_MONOTONIC, in this one process:
 *   commit   COMMIT sent -> COMMIT answered, which is mostly the flush of the WAL
 *   ack      COMMIT answered -> the worker has the job; 0 if the worker was first
 *   p50/p99  COMMIT sent -> the worker has the job
 * Prints them as JSON, in milliseconds.
 */
#include <libpq-fe.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *conninfo;
static int samples;
static double *received;			/* written by the worker; the producer reads it after taken */
static atomic_int taken;			/* jobs that the worker has completed */
static char job_id[32];				/* written by the producer before it sends COMMIT */

static double
now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void
sleep_ms(double ms)
{
	struct timespec t = {.tv_sec = (time_t) (ms / 1e3), .tv_nsec = (long) (ms * 1e6) % 1000000000L};

	nanosleep(&t, NULL);
}

static PGconn *
open_connection(const char *name)
{
	PGconn *conn = PQconnectdb(conninfo);

	if (PQstatus(conn) != CONNECTION_OK)
	{
		fprintf(stderr, "%s: %s", name, PQerrorMessage(conn));
		exit(1);
	}
	return conn;
}

static PGresult *
checked(PGconn *conn, PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
	{
		fputs(PQerrorMessage(conn), stderr);
		exit(1);
	}
	return result;
}

static void
execute(PGconn *conn, const char *sql)
{
	PQclear(checked(conn, PQexec(conn, sql)));
}

static void
prepare(PGconn *conn, const char *name, const char *sql)
{
	PQclear(checked(conn, PQprepare(conn, name, sql, 0, NULL)));
}

static void *
work(void *argument)
{
	PGconn *conn = argument;

	for (int n = 0; n < samples;)
	{
		PGresult *job = checked(conn, PQexecPrepared(conn, "claim", 0, NULL, NULL, NULL, 0));
		double at = now_ms();

		if (PQntuples(job) > 0)
		{
			const char *values[2] = {PQgetvalue(job, 0, 0), PQgetvalue(job, 0, 1)};

			if (strcmp(values[0], job_id) != 0)
			{
				fprintf(stderr, "job %s came, %s was sent\n", values[0], job_id);
				exit(1);
			}
			received[n] = at;
			PQclear(checked(conn, PQexecPrepared(conn, "complete", 2, values, NULL, NULL, 0)));
			atomic_store(&taken, ++n);
		}
		PQclear(job);
	}
	return NULL;
}

/* Waits until the worker's backend sleeps in its next claim. */
static void
await_worker(PGconn *conn, const char *pid)
{
	for (bool asleep = false; !asleep;)
	{
		PGresult *result;

		sleep_ms(1);
		result = checked(conn, PQexecPrepared(conn, "asleep", 1, &pid, NULL, NULL, 0));
		asleep = PQgetvalue(result, 0, 0)[0] == 't';
		PQclear(result);
	}
}

static int
ascending(const void *a, const void *b)
{
	double x = *(const double *) a, y = *(const double *) b;

	return (x > y) - (x < y);
}

static void
print(const char *prefix, double *values, const char *end)
{
	qsort(values, samples, sizeof(double), ascending);
	printf("\"%sp50\": %.4f, \"%sp99\": %.4f%s", prefix, values[samples / 2], prefix, values[samples * 99 / 100], end);
}

int
main(int argc, char **argv)
{
	PGconn *producer, *worker;
	pthread_t thread;
	double *total, *commit, *ack;
	char pid[16];

	if (argc != 3 || (samples = atoi(argv[2])) < 1)
	{
		fputs("usage: wakeup CONNINFO SAMPLES\n", stderr);
		return 2;
	}
	conninfo = argv[1];
	received = calloc(samples, sizeof(double));
	total = calloc(samples, sizeof(double));
	commit = calloc(samples, sizeof(double));
	ack = calloc(samples, sizeof(double));

	producer = open_connection("producer");
	worker = open_connection("worker");
	execute(producer, "SELECT tq_create_queue('wakeup')");
	prepare(producer, "enqueue", "SELECT tq_enqueue('wakeup', '{\"n\": 1}')");
	prepare(producer, "asleep", "SELECT state = 'active' AND wait_event IS NOT NULL AND query LIKE '%tq_claim%'"
			" FROM pg_stat_activity WHERE pid = $1::int");
	prepare(worker, "claim", "SELECT id, lease FROM tq_claim('wakeup', wait => '1 min')");
	prepare(worker, "complete", "SELECT tq_complete($1, $2)");
	snprintf(pid, sizeof(pid), "%d", PQbackendPID(worker));
	if (pthread_create(&thread, NULL, work, worker) != 0)
		return 1;

	srandom(1);
	for (int n = 0; n < samples; n++)
	{
		PGresult *id;
		double sent, answered;

		await_worker(producer, pid);
		/* not in step with periodic work */
		sleep_ms(1 + random() % 2000 / 1e3);
		execute(producer, "BEGIN");
		id = checked(producer, PQexecPrepared(producer, "enqueue", 0, NULL, NULL, NULL, 0));
		snprintf(job_id, sizeof(job_id), "%s", PQgetvalue(id, 0, 0));
		PQclear(id);
		sent = now_ms();
		execute(producer, "COMMIT");
		answered = now_ms();
		while (atomic_load(&taken) <= n)
			sleep_ms(0.2);
		total[n] = received[n] - sent;
		commit[n] = answered - sent;
		ack[n] = received[n] > answered ? received[n] - answered : 0;
	}
	pthread_join(thread, NULL);
	PQfinish(worker);
	PQfinish(producer);

	printf("{");
	print("", total, ", ");
	print("commit_", commit, ", ");
	print("ack_", ack, "}\n");
	return 0;
}
