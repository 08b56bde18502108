// Handlers as tq_handle records them, for the code that reads them.
// Regime: PG; may raise. Locks: none.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

struct HandlerOptions
{
	int max = 1000; // executors at a time
	const int *fatal = nullptr; // SQLSTATEs
	int nfatal = 0;
};

// Raises 22023 and names the option. Allocates in the current memory context.
HandlerOptions parse_handler_options(Jsonb *options);

// Why the handler of a kind (null: of jobs without a kind) does not run its ready jobs, as the end of a sentence. Null
// if the handler runs them, or if there is no handler. `function` receives the name of the handler's function.
const char *why_not_handled(const Db &db, int32 queue_id, const char *kind, const char **function);

// The executors of this database.
struct PoolStatus
{
	int present, busy;
};
PoolStatus pool_status() noexcept;

// How many handlers have a problem.
int64 broken_handlers(const Db &db);

} // namespace tq
