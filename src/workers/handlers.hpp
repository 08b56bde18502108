// The registry of handlers (tq.handler) as schedulers and executors remember it.
// Regime: PG; reading and writing it may raise. Locks: queue locks, held only inside.
#pragma once

#include "live/shared.hpp"

namespace tq::workers
{

struct Handler
{
	int32 queue_id;
	uint16_t queue;		 // slot, when it was last looked for
	Oid role;
	int max;			 // executors at a time
	uint64 id;			 // of (queue, kind), never 0; the upper half is the queue's
	uint64 *kinds;		 // hashes of the kinds it is for,
	int nkinds;			 // 0: all,
	bool except;		 // or is not for
	bool has_problem;
	TimestampTz retry_at; // its jobs are not tried before, as is_held() says
	const char *kind;	 // null: those without a handler of their own
	const char *function;
	const char *search_path;
	const int *fatal; // SQLSTATEs after which no other attempt is made
	int nfatal;
};

struct Handlers
{
	MemoryContext context;
	Handler *list;
	int n;
	uint32 seen; // db.handler_changes when they were read
	bool valid;
};

constexpr core::Micros kLongestPause = 60000000;

// Does it pause after a problem? Not for longer than any pause is, if the clock was set back.
inline bool is_held(const Handler &h, core::Micros now) noexcept { return h.retry_at > now && h.retry_at - now <= kLongestPause; }

// Has the table changed since it was read? Costs nothing.
inline bool is_stale(const Handlers &h, const live::Db &db) noexcept { return !h.valid || h.seen != db.handler_changes.load(); }

// Reads it anew; in a transaction.
void read_handlers(const live::Db &db, Handlers *handlers);

// The slot of its queue; false if the queue is not there (any more).
bool find_queue(const live::Db &db, Handler *handler) noexcept;

// How many executors may be at work for its queue.
int queue_limit(const Handler &handler) noexcept;

// Could one of its jobs start now? If not, and `call` is true, the scheduler is woken when one can.
bool has_work(const Handler &handler, bool call) noexcept;

// Have the scheduler woken when another job could start.
void call_for(const Handler &handler) noexcept;

// Notes why its jobs cannot be run, and when they are tried again: later each time, up to kLongestPause. Or (null) that they can. In a
// transaction; waits for nobody, so it is without effect if another transaction changes the handler.
void write_problem(const live::Db &db, const Handler &handler, const char *problem);

} // namespace tq::workers
