// tq.require_library(): asked by the scripts that install and update the extension, before anything else.
// Regime: PG. Locks: AccessShareLock on the catalog. Raises TQ007.
#include "live/attach.hpp"
#include "live/versions.hpp"
#include "pg/extension.hpp"
#include "pg/function.hpp"

using namespace tq;

// While such a script runs, the extension already has the version that the script makes. A library that is older was loaded when the server
// started, and has been replaced on disk since. One that is newer is on its way through several scripts.
TQ_FUNCTION(tq_require_library)
{
	pg::ExtensionFacts facts;
	if (pg::extension_facts(live::extension_of_call(fcinfo), &facts) && live::fit_of(facts.version) == live::Fit::newer)
		live::refuse_version(facts.version);
	PG_RETURN_VOID();
}
