// An executor: runs jobs by the handlers of one role, in a session of that role (H9).
//
// Regime: PG. Locks: queue locks and "tq workers", held only inside. Raises: what a handler raises ends its attempt and nothing else;
// any other error while no job is held, or one that keeps an attempt from being ended, ends the process. Its lease is bound to the
// process, so the scheduler takes it back.
#include "workers/executor.hpp"

#include "guc.hpp"
#include "live/attach.hpp"
#include "live/workers_table.hpp"
#include "workers/claiming.hpp"
#include "workers/running.hpp"
#include "workers/session.hpp"
#include "workers/slots.hpp"
#include "workers/transaction.hpp"

namespace tq::workers
{

live::Db *executor_db = nullptr;
char executor_name[32];

namespace
{

using live::Micros;

// While there is more to do, the scheduler hears of it this often.
constexpr Micros kMoreInterval = 20000;

Handlers handlers;
int next_handler = 0; // where the next look begins, so that each has its turn

void start(const WorkerContext &context)
{
	if (!begin_work(context, "tq: starting"))
		return;
	executor_db = &live::database_of(context.extension);
	read_handlers(*executor_db, &handlers);
	end_work();
}

bool read_again(const WorkerContext &context)
{
	if (!is_stale(handlers, *executor_db))
		return true;
	if (!begin_work(context, "tq: reading handlers"))
		return false;
	read_handlers(*executor_db, &handlers);
	end_work();
	return true;
}

// A handler of this role that has something to do, and that has no more than its number of executors; this one is engaged by it then.
Handler *engage(const WorkerContext &context)
{
	const Micros now = live::wall_now();
	for (int i = 0; i < handlers.n; ++i)
	{
		const int at = (next_handler + i) % handlers.n;
		Handler &h = handlers.list[at];
		if (h.role != context.role || is_held(h, now) || !find_queue(*executor_db, &h) || !has_work(h, false) ||
			!executor_engage(h.id, h.max, queue_limit(h)))
			continue;
		next_handler = at + 1;
		return &h;
	}
	return nullptr;
}

// What keeps a handler's jobs from being claimed is written down; they are tried again some time later.
void note_problem(const WorkerContext &context, const Handler &h, const ErrorData &error)
{
	if (!begin_work(context, "tq: noting a problem"))
		return;
	write_problem(*executor_db, h, clipped(error.message != nullptr ? error.message : "?"));
	end_work();
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
		attempt_open = 0;
		note_problem(context, *h, *error);
		handlers.valid = false;
		return leaving ? Done::leave : Done::nothing;
	}
	if (!claimed)
		return Done::nothing;
	return run(context, &attempt) ? Done::job : Done::leave;
}

// More to do than this process alone: somebody may start another.
void tell_of_more(const WorkerContext &context, const Handler &h) noexcept
{
	static Micros told = 0;
	const Micros now = live::mono_now();
	if (now - told < kMoreInterval || !has_work(h, false))
		return;
	told = now;
	set_latch_of_scheduler(context.database);
}

// Runs jobs until there have been none for a while, or until it is to leave.
void serve(const WorkerContext &context)
{
	bool worked = false;
	Micros idle_since = live::mono_now();
	while (!stop_requested(context) && !leaving && !live::is_draining(live::worker_slot(*executor_db, executor_name)))
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
			idle_since = live::mono_now();
			if (done == Done::job)
			{
				take_settings(); // it may have no idle moment for hours
				continue;
			}
		}
		if (worked)
			executor_disengage(true); // it may have something for us that came a moment ago
		worked = false;
		const Micros left = idle_since + guc::executor_idle * Micros{1000} - live::mono_now();
		if (left <= 0)
			return;
		idle(static_cast<long>(std::min<Micros>((left + 999) / 1000, 60000)));
	}
}

} // namespace

void run_executor(const WorkerContext &context)
{
	set_up_running();
	snprintf(executor_name, sizeof(executor_name), "executor %d", MyProcPid);
	start(context);
	if (executor_db == nullptr)
		return;
	tidy_session(context.role);
	set_latch_of_scheduler(context.database);
	serve(context);
	live::forget_worker(live::worker_slot(*executor_db, executor_name)); // the next has another number
}

} // namespace tq::workers
