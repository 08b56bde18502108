// What tq_handle writes down, for those who read it.
// Regime: PG; may raise. Locks: none.
#pragma once

#include "pg/prelude.hpp"

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

} // namespace tq::api
