#include "handlers/session.hpp"

extern "C"
{
#include "commands/prepare.h"
#include "commands/sequence.h"
#include "utils/portal.h"
}

namespace tq
{

namespace
{

void set_local(const char *name, const char *value)
{
	static_cast<void>(set_config_option(name, value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false));
}

} // namespace

void flush_this_transaction() { set_local("synchronous_commit", "local"); }

void set_search_path(const char *search_path) { set_local("search_path", search_path); }

void tidy_session(Oid role)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PortalHashTableDeleteAll(); // may run code of the role, so first
	if (GetUserId() != role || GetSessionUserId() != role || OidIsValid(GetCurrentRoleId()))
		SetPGVariable("session_authorization", NIL, false);
	ResetAllOptions();
	DropAllPreparedStatements();
	LockReleaseAll(USER_LOCKMETHOD, true);
	// A drop may delete toasted rows of the catalogs, which needs a snapshot. That of the transaction could wait: the
	// handler may have set default_transaction_deferrable.
	PushActiveSnapshot(GetCatalogSnapshot(RelationRelationId));
	ResetTempTableNamespace();
	PopActiveSnapshot();
	ResetSequenceCaches();
	CommitTransactionCommand();
	if (GetUserId() != role || GetSessionUserId() != role)
		ereport(FATAL,
				(errcode(ERRCODE_INTERNAL_ERROR), errmsg("the session of an executor is not its role's any more")));
}

} // namespace tq
