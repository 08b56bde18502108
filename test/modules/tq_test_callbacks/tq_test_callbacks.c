/*
 * Another extension's transaction callback, for tests. LOAD registers it after tq's, and the server calls the newest
 * callback first, so it runs before tq's.
 *
 *   tq_test_callbacks.hold_commit      file, relative to the data directory: while it exists, COMMIT waits in the callback, when
 *                                      the transaction is visible but not published by tq
 *   tq_test_callbacks.fail_pre_commit  raise an error before the commit, when tq has not been called yet
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/guc.h"

PG_MODULE_MAGIC;

static char *hold_commit = NULL;
static bool fail_pre_commit = false;

static void
callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_COMMIT && fail_pre_commit)
		ereport(ERROR, (errmsg("commit refused by tq_test_callbacks")));
	/* no error may leave a callback at COMMIT: it only checks for a file */
	if (event == XACT_EVENT_COMMIT && hold_commit != NULL && hold_commit[0] != '\0')
		while (access(hold_commit, F_OK) == 0)
			pg_usleep(1000);
}

void _PG_init(void);

void
_PG_init(void)
{
	DefineCustomStringVariable("tq_test_callbacks.hold_commit", "File that holds commits up while it exists.", NULL,
							   &hold_commit, "", PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("tq_test_callbacks.fail_pre_commit", "Refuses commits.", NULL, &fail_pre_commit, false,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	RegisterXactCallback(callback, NULL);
}
