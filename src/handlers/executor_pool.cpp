#include "handlers/executor_pool.hpp"

#include "guc.hpp"
#include "handlers/handler_function.hpp"
#include "handlers/handler_list.hpp"
#include "processes/slots.hpp"
#include "processes/work_transaction.hpp"
#include "queues/queue_names.hpp"

extern "C"
{
#include "catalog/pg_authid.h"
}

namespace tq
{

namespace
{

// An executor may stay this long before it must yield to another role.
constexpr Micros kTurn = core::kSecond;
// An executor that ignores an interrupt is terminated after this long. So is one of several of a role, if another
// role waits this long.
constexpr Micros kPatience = 5 * core::kSecond;

// What this process remembers of an executor's entry in the slot table.
struct PoolEntry
{
	ExecutorView now;		 // the entry in this pass
	bool woken;				 // in this pass
	int64 interrupted_lease; // of the attempt that interrupt() has interrupted
	Micros interrupted_at;	 // when interrupt() has interrupted that attempt; monotonic
	bool terminated;		 // interrupt() has then sent SIGTERM, too
	int64 terminated_lease;	 // of the attempt that terminate_one_of_most() has ended
	Micros dismissed_at;	 // steady_now
};

// A role whose executors failed, or found no free background worker. The pause grows with each failure.
struct PoolPause
{
	Oid role;
	Micros until; // monotonic
	Micros length;
};
constexpr int kMaxPauses = 32;

struct ExecutorPool
{
	Handlers handlers = {};
	PoolEntry *entries = nullptr;
	int nentries = 0;
	Micros short_since = 0; // monotonic; since when a role without an executor waits for an entry; 0: none waits
	bool is_short = false;	// in this pass
	bool is_full = false;	// in this pass: a job waits because all executors are at work
	PoolPause pauses[kMaxPauses] = {};
};
ExecutorPool state;

PoolPause *pause_of(Oid role, bool make) noexcept
{
	PoolPause *free = &state.pauses[0];
	for (PoolPause &p : state.pauses)
	{
		if (p.role == role)
			return &p;
		if (p.until < free->until)
			free = &p;
	}
	if (!make)
		return nullptr;
	*free = PoolPause{role, 0, 0};
	return free;
}

bool is_paused(Oid role, Micros mono) noexcept
{
	const PoolPause *p = pause_of(role, false);
	return p != nullptr && p->until > mono;
}

bool is_in_use(const PoolEntry &p) noexcept { return p.now.worker.stage != Stage::none; }
bool is_starting(const PoolEntry &p) noexcept { return is_in_use(p) && p.now.worker.stage != Stage::ready; }
bool is_idle(const PoolEntry &p) noexcept
{
	return p.now.worker.stage == Stage::ready && !p.now.worker.stopping && p.now.handler == 0;
}

template <class Which> int count(Which &&which) noexcept
{
	return static_cast<int>(std::count_if(state.entries, state.entries + state.nentries, which));
}

int present(Oid role) noexcept
{
	return count([role](const PoolEntry &p) noexcept { return is_in_use(p) && p.now.role == role; });
}

// Why the role cannot have a session; null if no reason is known. Needs a transaction.
const char *why_no_session(Oid role)
{
	if (!OidIsValid(role))
		return kUnknownRole;
	HeapTuple tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(role));
	if (!HeapTupleIsValid(tuple))
		return psprintf("role %u does not exist", role);
	const auto *form = reinterpret_cast<Form_pg_authid>(GETSTRUCT(tuple));
	const char *why = nullptr;
	if (!form->rolcanlogin && pg::kMayNotLogin == 0)
		why = psprintf("role \"%s\" is not permitted to log in", NameStr(form->rolname));
	ReleaseSysCache(tuple);
	return why;
}

// Records for all handlers of a role why they cannot run. `only_if_known`: not if the reason is only in the server log.
// False if the extension is gone.
bool record_problem(const WorkerContext &context, Db &db, Oid role, bool only_if_known, bool *recorded)
{
	if (!begin_work(context, "tq: looking at the roles of handlers"))
		return false;
	const char *why = why_no_session(role);
	*recorded = why != nullptr || !only_if_known;
	for (int i = 0; *recorded && i < state.handlers.n; ++i)
		if (state.handlers.list[i].role == role)
			write_problem(db, state.handlers.list[i],
						  why != nullptr ? why
										 : "an executor of its role could not be started; the server log says why");
	end_work();
	return true;
}

// Reads how executors have ended, and sets the pauses of their roles. False if the extension is gone.
bool process_exits(const WorkerContext &context, Db &db, int slot, Micros mono)
{
	for (int n = 0; n < state.nentries; ++n)
	{
		const ExecutorView &e = state.entries[n].now;
		if (e.worker.stage != Stage::none || e.worker.outcome == ExitOutcome::none)
			continue;
		bool recorded = false;
		switch (take_outcome(slot, Kind::executor, n))
		{
			case ExitOutcome::failed: {
				PoolPause *p = pause_of(e.role, true);
				p->length = e.worker.healthy_ms >= 60000
								? core::kSecond
								: std::clamp<Micros>(p->length * 2, core::kSecond, 60 * core::kSecond);
				p->until = mono + p->length;
				if (e.worker.healthy_ms == 0 && !record_problem(context, db, e.role, false, &recorded))
					return false;
			}
			break;
			case ExitOutcome::no_worker_slot:
				pause_of(e.role, true)->until = mono + std::max<Micros>(core::kSecond, guc::naptime * Micros{1000});
				break;
			case ExitOutcome::done:
			case ExitOutcome::stopped:
				if (PoolPause *p = pause_of(e.role, false); p != nullptr && e.worker.healthy_ms > 0)
					p->length = 0; // it was healthy: the next failure counts as the first
				break;
			default:
				break;
		}
	}
	return true;
}

// Does an attempt still hold its lease (else `lost`), and was it asked to stop?
enum class AttemptState : uint8
{
	good,
	asked,
	lost,
};

AttemptState state_of_attempt(const Db &db, int64 job, int64 lease) noexcept
{
	AttemptState s = AttemptState::lost;
	static_cast<void>(with_entry(db, job, [&s, lease](const Entry &e) noexcept {
		if (e.state == State::running && e.lease == lease)
			s = e.has(core::kCancelAsked) ? AttemptState::asked : AttemptState::good;
	}));
	return s;
}

// Interrupts executors whose job was asked to stop, or whose lease is lost.
void interrupt(const Db &db, int slot, Micros mono) noexcept
{
	for (int n = 0; n < state.nentries; ++n)
	{
		PoolEntry &p = state.entries[n];
		if (p.now.worker.stage != Stage::ready || p.now.lease == 0)
			continue;
		const AttemptState s = state_of_attempt(db, p.now.job, p.now.lease);
		if (s == AttemptState::good)
			continue;
		if (p.interrupted_lease != p.now.lease)
		{
			p.interrupted_lease = p.now.lease;
			p.interrupted_at = mono;
			p.terminated = false;
			signal_executor(slot, n, p.interrupted_lease, SIGINT);
		}
		else if (s == AttemptState::lost && !p.terminated && mono - p.interrupted_at > kPatience)
		{
			p.terminated = true;
			signal_executor(slot, n, p.interrupted_lease, SIGTERM);
		}
	}
}

void dismiss(int slot, int n) noexcept
{
	dismiss_executor(slot, n);
	if (!state.entries[n].now.worker.stopping)
		state.entries[n].dismissed_at = steady_now();
	state.entries[n].now.worker.stopping = true;
}

// Dismisses executors beyond the allowed number, idle ones first.
void dismiss_surplus(int slot, int allowed) noexcept
{
	const auto stays = [](const PoolEntry &p) noexcept { return is_in_use(p) && !p.now.worker.stopping; };
	int surplus = count(stays) - allowed;
	for (int round = 0; round < 2; ++round)
		for (int n = 0; n < state.nentries && surplus > 0; ++n)
			if (stays(state.entries[n]) && (round == 1 || is_idle(state.entries[n])))
			{
				--surplus;
				dismiss(slot, n);
			}
}

// Terminates the executor with the latest attempt of the role that has most executors, if it has two or more. Its job
// is released, and the attempt is not counted. So no role keeps all executors with long jobs, and no role loses its
// last one.
void terminate_one_of_most(int slot) noexcept
{
	int victim = -1;
	int most = 1;
	for (int n = 0; n < state.nentries; ++n)
	{
		const PoolEntry &p = state.entries[n];
		if (p.now.worker.stage != Stage::ready || p.now.lease == 0 || p.terminated_lease == p.now.lease)
			continue;
		const int of_role = present(p.now.role);
		if (of_role < most || of_role < 2 ||
			(of_role == most && victim >= 0 && p.now.lease < state.entries[victim].now.lease))
			continue;
		most = of_role;
		victim = n;
	}
	if (victim < 0)
		return;
	state.entries[victim].terminated_lease = state.entries[victim].now.lease;
	signal_executor(slot, victim, state.entries[victim].now.lease, SIGTERM);
}

// All executors that are allowed exist, and this role has none. Dismisses an idle executor, or else the oldest of those
// that had their turn. A dismissed executor may have a long job. So after kTurn another one is dismissed as well, and
// after kPatience one is terminated.
void yield_executor(int slot, Micros mono)
{
	int victim = -1;
	state.is_short = true;
	if (state.short_since == 0)
		state.short_since = mono;
	else if (mono - state.short_since > kPatience)
	{
		state.short_since = mono; // the next one goes after another kPatience
		terminate_one_of_most(slot);
	}
	const Micros turn_over = steady_now() - kTurn;
	if (count([turn_over](const PoolEntry &p) noexcept {
			return is_in_use(p) && p.now.worker.stopping && (p.now.handler == 0 || p.dismissed_at > turn_over);
		}) > 0)
		return; // one is exiting: it is idle, or was dismissed less than kTurn ago
	for (int n = 0; n < state.nentries; ++n)
	{
		const PoolEntry &p = state.entries[n];
		if (p.now.worker.stage != Stage::ready || p.now.worker.stopping || p.woken ||
			(!is_idle(p) && p.now.worker.since > turn_over))
			continue;
		if (victim < 0 || (is_idle(p) && !is_idle(state.entries[victim])) ||
			(is_idle(p) == is_idle(state.entries[victim]) &&
			 p.now.worker.since < state.entries[victim].now.worker.since))
			victim = n;
	}
	if (victim >= 0)
		dismiss(slot, victim);
}

// Do as many executors run this handler's jobs, or its queue's, as may?
bool at_limit(const Handler &h) noexcept
{
	const int engaged = count([&h](const PoolEntry &p) noexcept { return p.now.handler == h.id; });
	const int by_queue = count([&h](const PoolEntry &p) noexcept { return p.now.handler >> 32 == h.id >> 32; });
	return engaged >= h.max || by_queue >= queue_limit(h);
}

// Must the handler leave the last executor to others?
bool leaves_to_others(const Handler &h, int allowed, int nrunnable) noexcept
{
	const auto runs = [](uint64 handler) noexcept {
		return count([handler](const PoolEntry &p) noexcept { return p.now.handler == handler; }) > 0;
	};
	const int engaged = count([&h](const PoolEntry &p) noexcept { return p.now.handler == h.id; });
	const int busy = count([](const PoolEntry &p) noexcept { return p.now.handler != 0; });
	return leaves_last_executor(h.id, engaged, allowed - busy, state.handlers.ids, nrunnable, runs);
}

// Serves a handler that has work: wakes an idle executor, or requests one more. False if the extension is gone.
bool provide_executor(const WorkerContext &context, Db &db, int slot, const Handler &h, int allowed, Micros mono)
{
	for (int n = 0; n < state.nentries; ++n)
		if (is_idle(state.entries[n]) && state.entries[n].now.role == h.role && !state.entries[n].woken)
		{
			state.entries[n].woken = true;
			wake_executor(slot, n);
			call_for(h); // a client may take the job first; then the next one needs another look
			return true;
		}
	if (count([&h](const PoolEntry &p) noexcept { return is_starting(p) && p.now.role == h.role; }) > 0 ||
		is_paused(h.role, mono))
		return true;
	if (count(is_in_use) >= allowed)
	{
		state.is_full = state.is_full || count(is_idle) == 0;
		if (present(h.role) == 0)
			yield_executor(slot, mono);
		return true;
	}
	bool recorded = false;
	if (!record_problem(context, db, h.role, true, &recorded))
		return false;
	if (recorded || !request_executor(slot, h.role))
		return true;
	for (int n = 0; n < state.nentries; ++n)
		state.entries[n].now = executor_view(slot, n);
	return true;
}

} // namespace

bool manage_pool(const WorkerContext &context, Db &db)
{
	if (is_stale(state.handlers, db))
	{
		if (!begin_work(context, "tq: reading handlers"))
			return false;
		read_handlers(db, &state.handlers);
		// functions may have changed while tq was not loaded, or rows were written by hand
		hold_changed_handlers(context.extension, context.extension_schema);
		end_work();
	}
	const int slot = find_slot(context.database);
	if (slot < 0)
		return true;
	if (state.entries == nullptr)
	{
		state.nentries = executor_entries();
		state.entries = static_cast<PoolEntry *>(
			MemoryContextAllocZero(TopMemoryContext, sizeof(PoolEntry) * static_cast<Size>(state.nentries + 1)));
	}
	const Micros mono = mono_now();
	for (int n = 0; n < state.nentries; ++n)
	{
		state.entries[n].now = executor_view(slot, n);
		state.entries[n].woken = false;
	}
	if (!process_exits(context, db, slot, mono))
		return false;
	interrupt(db, slot, mono);
	const int allowed = std::min(guc::executors, state.nentries);
	dismiss_surplus(slot, allowed);
	if (allowed == 0)
		return true;
	const Micros now = wall_now();
	const int nrunnable = runnable(db, &state.handlers, now);
	state.is_short = state.is_full = false;
	// handlers whose role has no executor come first
	for (int round = 0; round < 2; ++round)
		for (int i = 0; i < state.handlers.n; ++i)
		{
			Handler &h = state.handlers.list[i];
			if ((present(h.role) == 0) != (round == 0) || is_held(h, now) || !find_queue(db, &h) || !has_work(h, true))
				continue;
			if (at_limit(h))
				continue; // one of its executors claims the next job
			if (leaves_to_others(h, allowed, nrunnable))
				state.is_full = true;
			else if (!provide_executor(context, db, slot, h, allowed, mono))
				return false;
		}
	if (!state.is_short)
		state.short_since = 0;
	if (state.is_full != (db.executors_full_since.load() != 0))
		db.executors_full_since.store(state.is_full ? mono : 0);
	return true;
}

} // namespace tq
