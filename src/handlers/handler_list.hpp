// The registry of handlers (tq.handler), cached by schedulers and executors.
// Regime: PG; reading and writing it may raise. Locks: queue locks, held only inside.
#pragma once

#include "handlers/handler_function.hpp"

namespace tq
{

struct Handler : HandlerFunction
{
	int32 queue_id;
	uint16_t queue;		 // slot at the last lookup
	int max;			 // executors at a time
	uint64 id;			 // of (queue, kind), never 0; the upper half is the queue's
	uint64 *kinds;		 // hashes of the kinds that it runs, or does not run (`except`)
	int nkinds;			 // how many; 0: it runs all kinds
	bool except;		 // it runs all kinds except these
	bool has_problem;
	TimestampTz retry_at; // earliest time of its next job, see is_held()
	const char *kind;	  // null: all kinds without a handler of their own
	const char *search_path;
	const int *fatal; // SQLSTATEs that end the job without another attempt
	int nfatal;
};

struct Handlers
{
	MemoryContext context;
	Handler *list;
	int n;
	uint64 *ids; // capacity n, see runnable()
	uint32 seen; // db.handler_changes when they were read
	bool valid;
};

constexpr core::Micros kShortestPause = core::kSecond;
constexpr core::Micros kLongestPause = 60000000;

// Does the handler pause after a problem, or is it held? A pause lasts at most kLongestPause, even if the clock went
// back.
inline bool is_held(const Handler &h, core::Micros now) noexcept
{
	return TIMESTAMP_IS_NOEND(h.retry_at) || (h.retry_at > now && h.retry_at - now <= kLongestPause);
}

// Has the table changed since it was read? Compares one counter.
inline bool is_stale(const Handlers &h, const Db &db) noexcept
{
	return !h.valid || h.seen != db.handler_changes.load();
}

// Reads the table. Needs a transaction.
void read_handlers(const Db &db, Handlers *handlers);

// Finds the slot of the handler's queue. False if the queue does not exist.
bool find_queue(const Db &db, Handler *handler) noexcept;

// Puts the ids of the handlers that may run jobs now into handlers->ids, and returns how many. Such a handler is
// neither paused nor held, and its queue is not paused. Does not check whether there are jobs.
int runnable(const Db &db, Handlers *handlers, core::Micros now) noexcept;

// How many executors may work for the handler's queue at a time.
int queue_limit(const Handler &handler) noexcept;

// Could one of the handler's jobs start now? If not, and if `call` is true, asks for a wakeup as call_for() does.
bool has_work(const Handler &handler, bool call) noexcept;

// Asks the core to wake the scheduler once, when a job of the queue becomes startable (Queue::call).
void call_for(const Handler &handler) noexcept;

// Records why the handler's jobs cannot run, and delays its next try, longer each time, up to kLongestPause. With a
// null problem, records that they can run again. Needs a transaction. Does nothing if the handler is held, or if
// another transaction is changing it.
void write_problem(const Db &db, const Handler &handler, const char *problem);

} // namespace tq
