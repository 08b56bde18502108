/*
 * A tq worker with libpq.   usage: worker QUEUE NAME   (and the usual PG* variables)
 *
 * A job is finished in one round trip: in a pipeline, all statements before a sync are one transaction.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <libpq-fe.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LEASE 3.0 /* seconds; renewed after a third of it */

/* Columns of a claim. */
enum { ID, LEASE_NO, ATTEMPT, UNTIL, TRANSFER, AMOUNT, SECONDS, FAILURES };

static const char *const claim =
	"SELECT id, lease, attempt, extract(epoch FROM lease_expires_at), payload->>'transfer', payload->>'amount',"
	" coalesce(payload->>'seconds', '0'), coalesce(payload->>'failures', '0')"
	" FROM tq_claim($1, worker => $2, lease_for => $3, wait => '2 s')";

static const char *queue, *name;
static volatile sig_atomic_t stopping = 0;

static void stop(int signal_number) { (void)signal_number, stopping = 1; }

static double seconds_of(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void pause_for(double seconds)
{
	struct timespec t = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
	nanosleep(&t, NULL);
}

static const char *field(const PGresult *job, int column) { return PQgetvalue(job, 0, column); }

static void note(const char *event, const PGresult *job, const char *word)
{
	const char *file = getenv("WORK_LOG");
	int fd = file ? open(file, O_WRONLY | O_APPEND | O_CREAT, 0644) : -1;
	if (fd < 0)
		return;
	dprintf(fd, "%.6f %s %s %s %s %s %s\n", seconds_of(CLOCK_REALTIME), name, event, field(job, ID), field(job, LEASE_NO),
			field(job, ATTEMPT), word);
	close(fd);
}

/* The result, or NULL if the statement failed; `lost` is then set if the lease was lost. */
static PGresult *checked(PGresult *result, bool *lost)
{
	ExecStatusType status = PQresultStatus(result);
	if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK || status == PGRES_PIPELINE_SYNC)
		return result;
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	if (state && strcmp(state, "TQ001") == 0)
		*lost = true;
	else if (status != PGRES_PIPELINE_ABORTED)
		fputs(PQresultErrorMessage(result), stderr);
	PQclear(result);
	return NULL;
}

/* The slow work, outside any transaction; checks the lease now and then. Returns NULL or an error. */
static const char *work(PGconn *conn, const PGresult *job)
{
	const char *args[] = {field(job, ID), field(job, LEASE_NO)};
	if (atoi(field(job, ATTEMPT)) <= atoi(field(job, FAILURES)))
		return "the bank does not answer";
	if (atoi(field(job, AMOUNT)) <= 0)
		return "nothing to book";
	double renewed = seconds_of(CLOCK_MONOTONIC), end = renewed + atof(field(job, SECONDS)), left;
	while ((left = end - seconds_of(CLOCK_MONOTONIC)) > 0)
	{
		bool lost = false;
		pause_for(left < 0.05 ? left : 0.05);
		if (seconds_of(CLOCK_MONOTONIC) - renewed < LEASE / 3)
			continue;
		renewed = seconds_of(CLOCK_MONOTONIC);
		PGresult *said = checked(PQexecParams(conn, "SELECT action FROM tq_heartbeat($1, $2)", 2, NULL, args, NULL, NULL, 0), &lost);
		if (!said)
			return "no heartbeat";
		const char action = *field(said, 0); /* run, quiet, cancel, lost */
		PQclear(said);
		if (action == 'q')
			stopping = 1;
		else if (action != 'r')
			return "stopped as asked";
	}
	return NULL;
}

/* Sends the statements as one transaction; stores the answer of the last one. Returns false without that answer. */
static bool finish(PGconn *conn, const PGresult *job, int n, const char *const statements[], const char *const *const args[],
				   const int counts[])
{
	bool lost = false, synced = false;
	char answer[32] = "";
	PQenterPipelineMode(conn);
	for (int i = 0; i < n; i++)
		PQsendQueryParams(conn, statements[i], counts[i], NULL, args[i], NULL, NULL, 0);
	PQpipelineSync(conn);
	for (int i = 0; i <= n && PQstatus(conn) == CONNECTION_OK; i++)
	{
		PGresult *said = PQgetResult(conn);
		synced = PQresultStatus(said) == PGRES_PIPELINE_SYNC; /* committed */
		if ((said = checked(said, &lost)) && PQntuples(said) == 1)
			snprintf(answer, sizeof(answer), "%s", field(said, 0));
		PQclear(said);
		if (!synced)
			PQclear(PQgetResult(conn)); /* NULL, which ends a statement */
	}
	PQexitPipelineMode(conn);
	if (synced && (lost || *answer))
		note("told", job, lost ? "lost" : answer);
	return synced && (lost || *answer);
}

static void process(PGconn *conn, const PGresult *job)
{
	const char *const insert[] = {field(job, ID), field(job, TRANSFER), field(job, AMOUNT), name};
	const char *const complete[] = {field(job, ID), field(job, LEASE_NO)};
	const char *error;

	note("start", job, field(job, UNTIL));
	if (!(error = work(conn, job)))
	{
		note("end", job, "complete");
		if (finish(conn, job, 2, (const char *[]){"INSERT INTO booking VALUES ($1, $2, $3, $4)", "SELECT tq_complete($1, $2)"},
				   (const char *const *[]){insert, complete}, (int[]){4, 2}))
			return;
		error = "could not be booked";
	}
	if (PQstatus(conn) == CONNECTION_OK)
	{
		bool fatal = atoi(field(job, AMOUNT)) <= 0; /* a retry cannot succeed */
		const char *const fail[] = {field(job, ID), field(job, LEASE_NO), error, fatal ? "t" : "f"};
		note("end", job, fatal ? "kill" : "fail");
		finish(conn, job, 1, (const char *[]){"SELECT tq_fail($1, $2, $3, fatal => $4)"}, (const char *const *[]){fail}, (int[]){4});
	}
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return fprintf(stderr, "usage: %s QUEUE NAME\n", argv[0]), 2;
	queue = argv[1], name = argv[2];
	signal(SIGTERM, stop);
	setenv("PGAPPNAME", name, 0);
	PGconn *conn = PQconnectdb("");
	while (!stopping)
	{
		bool lost;
		PGresult *job = NULL;
		if (PQstatus(conn) == CONNECTION_OK)
			job = checked(PQexecParams(conn, claim, 3, NULL, (const char *[]){queue, name, "3 s"}, NULL, NULL, 0), &lost);
		if (job && PQntuples(job) == 1)
			process(conn, job);
		if (!job)
		{
			/* the server restarts: jobs in hand run again after their leases expire */
			pause_for(0.2);
			PQreset(conn);
		}
		PQclear(job);
	}
	PQfinish(conn);
	return 0;
}
