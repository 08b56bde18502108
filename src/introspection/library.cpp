// tq.require_library(): the scripts that install and update the extension call it first.
// Regime: PG. Locks: AccessShareLock on the catalog. Raises TQ007.
#include "database/attach.hpp"
#include "shmem/versions.hpp"
#include "pg/extension.hpp"
#include "pg/function.hpp"

using namespace tq;

// During such a script, the extension already has the version of the script. An older library was loaded at the start
// of the server and has been replaced on disk since. A newer library is normal: an update may run through several
// scripts.
TQ_FUNCTION(tq_require_library)
{
	pg::ExtensionFacts facts;
	if (pg::extension_facts(extension_of_call(fcinfo), &facts) && fit_of(facts.version) == Fit::newer)
		refuse_version(facts.version);
	PG_RETURN_VOID();
}
