// An executor: runs jobs with the handlers of one role, in a session of that role (H9).
//
// Regime: PG. Locks: queue locks and "tq workers", held only inside. Raises: an error of a handler ends only its
// attempt; an error of a claim pauses only the handler. Any other error, and one that prevents recording the end of an
// attempt, ends the process. Its lease is bound to the process, so the scheduler revokes it.
#include "handlers/executor.hpp"

#include "guc.hpp"
#include "database/attach.hpp"
#include "handlers/claiming.hpp"
#include "handlers/running.hpp"
#include "handlers/session.hpp"
#include "processes/slots.hpp"
#include "processes/work_transaction.hpp"
#include "queues/queue_names.hpp"
#include "shmem/workers_table.hpp"

namespace tq
{

ExecutorSelf self;

uint32_t own_slot(const WorkerContext &context) noexcept
{
	const uint32_t slot = worker_slot(*self.db, self.name, context.role, true);
	return slot != core::kNil && engine.worker(slot).role == context.role ? slot : core::kNil;
}

namespace
{

// The least interval between two reports of more work to the scheduler.
constexpr Micros kMoreInterval = 20000;

Handlers handlers;
int next_handler = 0; // index of the first handler to check, so that each has its turn

void start(const WorkerContext &context)
{
	if (!begin_work(context, "tq: starting"))
		return;
	self.db = &database_of(context.extension);
	read_handlers(*self.db, &handlers);
	end_work();
}

bool read_again(const WorkerContext &context)
{
	if (!is_stale(handlers, *self.db))
		return true;
	if (!begin_work(context, "tq: reading handlers"))
		return false;
	read_handlers(*self.db, &handlers);
	end_work();
	return true;
}

// Finds a handler of this role that has work and is below its own limit and its queue's. Engages this executor for it.
Handler *engage(const WorkerContext &context)
{
	const Micros now = wall_now();
	const int n = runnable(*self.db, &handlers, now);
	const int allowed = std::min(guc::executors, executor_entries());
	for (int i = 0; i < handlers.n; ++i)
	{
		const int at = (next_handler + i) % handlers.n;
		Handler &h = handlers.list[at];
		if (h.role != context.role || is_held(h, now) || !find_queue(*self.db, &h) || !has_work(h, false) ||
			!executor_engage(h.id, h.max, queue_limit(h), allowed, handlers.ids, n))
			continue;
		next_handler = at + 1;
		return &h;
	}
	return nullptr;
}

// Records why a handler's jobs do not run. They are retried later; those of a held handler only after it is registered
// again.
void note_problem(const WorkerContext &context, Handler *h, const char *problem, bool hold)
{
	if (!begin_work(context, "tq: noting a problem"))
		return;
	const char *text = clipped(problem);
	if (hold)
		hold_handler(self.db->extension, h->queue_id, h->kind, *h, text);
	else
		write_problem(*self.db, *h, text);
	end_work();
	// in this process at once, even if another transaction has locked the row
	h->retry_at = wall_now() + kShortestPause;
}

enum class Done : uint8
{
	nothing,
	job,
	leave,
};

// Claims and runs one job of a handler.
Done work(const WorkerContext &context, Handler *h)
{
	static Attempt attempt;
	ErrorData *volatile error = nullptr;
	volatile bool claimed = false;
	PG_TRY();
	{
		claimed = claim(context, h, &attempt);
	}
	PG_CATCH();
	{
		error = recover();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(TopMemoryContext);
	if (error != nullptr)
	{
		self.attempt_open = 0;
		note_problem(context, h, error->message != nullptr ? error->message : "?",
					 attempt.judgment.state == FunctionState::held);
		return self.leaving ? Done::leave : Done::nothing;
	}
	if (!claimed)
		return Done::nothing;
	const AfterAttempt after = run(context, &attempt);
	if (attempt.judgment.state != FunctionState::good)
		note_problem(context, h, attempt.judgment.why, attempt.judgment.state == FunctionState::held);
	return after == AfterAttempt::stay ? Done::job : Done::leave;
}

// Wakes the scheduler if there is more work than for this process alone: it may start another executor.
void tell_of_more(const WorkerContext &context, const Handler &h) noexcept
{
	static Micros told = 0;
	const Micros now = mono_now();
	if (now - told < kMoreInterval || !has_work(h, false))
		return;
	told = now;
	set_latch_of_scheduler(context.database);
}

// Runs jobs until there have been none for a while, or until the executor must exit.
void serve(const WorkerContext &context)
{
	bool worked = false;
	Micros idle_since = mono_now();
	while (!stop_requested() && !self.leaving &&
		   !is_draining(own_slot(context)))
	{
		if (!read_again(context))
			return;
		if (Handler *h = engage(context))
		{
			tell_of_more(context, *h);
			const Done done = work(context, h);
			executor_disengage(false);
			if (done == Done::leave)
				return;
			worked = worked || done == Done::job;
			idle_since = mono_now();
			if (done == Done::job)
			{
				take_settings(); // it may have no idle moment for hours
				continue;
			}
		}
		if (worked)
			executor_disengage(true); // work may have come a moment ago
		worked = false;
		const Micros left = idle_since + guc::executor_idle * Micros{1000} - mono_now();
		if (left <= 0)
			return;
		idle(static_cast<long>(std::min<Micros>((left + 999) / 1000, 60000)));
	}
}

} // namespace

void run_executor(const WorkerContext &context)
{
	set_up_running();
	snprintf(self.name, sizeof(self.name), "executor %d", MyProcPid);
	start(context);
	if (self.db == nullptr)
		return;
	tidy_session(context.role);
	set_latch_of_scheduler(context.database);
	serve(context);
	forget_worker(own_slot(context)); // the next has another name
}

} // namespace tq
