// What tq_handle writes down, for those who read it.
// Regime: PG; may raise. Locks: none.
#pragma once

#include "live/shared.hpp"

namespace tq::api
{

struct HandlerOptions
{
	int max = 1000; // executors at a time
	const int *fatal = nullptr; // SQLSTATEs
	int nfatal = 0;
};

// Raises 22023, naming the option. In the current memory context.
HandlerOptions parse_handler_options(Jsonb *options);

// The function of that name that takes a tq_job; raises if there is none, or if the current user may not call it, or if it is of a kind
// that cannot handle jobs. `returns_void`: it has no result.
Oid find_handler(const char *name, Oid job_type, bool *returns_void);

// The type tq_job of an extension in this schema.
Oid job_type_in(Oid schema);

// Why a handler does not run the ready jobs of a kind (null: without one) for which there is one, as the end of a sentence; null if it
// does, or if there is none. `function` receives its name.
const char *why_not_handled(const live::Db &db, int32 queue_id, const char *kind, const char **function);

// Executors of this database.
struct Crew
{
	int present, busy;
};
Crew crew_of() noexcept;

// Handlers with a problem.
int64 broken_handlers(const live::Db &db);

} // namespace tq::api
