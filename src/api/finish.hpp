// How an executor ends an attempt: as tq_complete, tq_fail and tq_release do, in the current transaction.
// Regime: PG; raises what those raise of the journal. Locks: queue locks, held only inside.
#pragma once

#include "live/verbs.hpp"

namespace tq::api
{

struct Ending
{
	live::JobId id;
	live::LeaseNo lease;
	live::Verb verb; // complete, fail, release
	const char *reason = nullptr;
	Jsonb *detail = nullptr; // result, or error detail
	bool fatal = false;		 // fail: for good
};

// Hold::ok if it has ended; else why not. Nobody's rights are looked at.
live::Hold end_attempt(live::Db &db, const Ending &ending);

} // namespace tq::api
