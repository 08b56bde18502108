/*
 * Enqueues with libpq.   usage: enqueue QUEUE NAME COUNT   (and the usual PG* variables)
 *
 * Each job is enqueued in the transaction that writes its data. Every seventh transaction rolls back,
 * so no worker ever sees its job.
 */
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>

/* Runs a statement that must not fail; returns its result as text. */
static const char *run(PGconn *conn, const char *sql, int n, const char *const args[])
{
	static char answer[32];
	PGresult *result = PQexecParams(conn, sql, n, NULL, args, NULL, NULL, 0);
	if (PQresultStatus(result) != PGRES_TUPLES_OK && PQresultStatus(result) != PGRES_COMMAND_OK)
	{
		fputs(PQerrorMessage(conn), stderr);
		exit(1);
	}
	if (PQntuples(result) == 1)
		snprintf(answer, sizeof(answer), "%s", PQgetvalue(result, 0, 0));
	PQclear(result);
	return answer;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return fprintf(stderr, "usage: %s QUEUE NAME COUNT\n", argv[0]), 2;
	PGconn *conn = PQconnectdb("");
	for (int i = 1; i <= atoi(argv[3]); i++)
	{
		char transfer[100], amount[12], payload[300];
		snprintf(transfer, sizeof(transfer), "%s-%d", argv[2], i);
		snprintf(amount, sizeof(amount), "%d", i % 10 == 9 ? 0 : i);
		/* a name with quotes or backslashes would need escaping */
		snprintf(payload, sizeof(payload), "{\"transfer\": \"%s\", \"amount\": %s, \"seconds\": %.2f, \"failures\": %d}", transfer,
				 amount, i % 4 / 20.0, i % 5 == 0);
		run(conn, "BEGIN", 0, NULL);
		run(conn, "INSERT INTO transfer VALUES ($1, $2)", 2, (const char *[]){transfer, amount});
		const char *id = run(conn, "SELECT tq_enqueue($1, $2, kind => 'transfer', delay => $3)", 3,
							 (const char *[]){argv[1], payload, i % 4 == 0 ? "300 ms" : NULL});
		if (i % 7 == 0)
		{
			run(conn, "ROLLBACK", 0, NULL);
			continue;
		}
		run(conn, "COMMIT", 0, NULL);
		printf("%s %s\n", transfer, id);
	}
	PQfinish(conn);
	return 0;
}
