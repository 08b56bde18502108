// An executor: runs jobs by the handlers of one role, in a session of that role (H9).
//
// Regime: PG. Locks: queue locks and "tq workers", held only inside. Raises: what a handler raises ends its attempt and nothing else;
// any other error while no job is held, or one that keeps an attempt from being ended, ends the process. Its lease is bound to the
// process, so the scheduler takes it back.
#include "workers/executor.hpp"

#include "api/args.hpp"
#include "api/finish.hpp"
#include "api/handle.hpp"
#include "guc.hpp"
#include "live/attach.hpp"
#include "live/claims.hpp"
#include "live/leases.hpp"
#include "live/policy.hpp"
#include "live/rights.hpp"
#include "live/segments.hpp"
#include "live/workers_table.hpp"
#include "workers/handlers.hpp"
#include "workers/session.hpp"
#include "workers/slots.hpp"
#include "workers/transaction.hpp"

extern "C"
{
#include "utils/timeout.h"
#include "utils/typcache.h"
}

namespace tq::workers
{

namespace
{

using live::engine;
using live::Hold;
using live::Micros;

// Longest text of an error that is kept, and of each of its details.
constexpr int kTextMax = 8000;
// An executor that was told to terminate gives its handler so long to stop.
constexpr Micros kStopGrace = 5000000;
// While there is more to do, the scheduler hears of it this often.
constexpr Micros kMoreInterval = 20000;

// The attempt at hand. In attempt_context, but for what lies in the registry.
struct Attempt
{
	live::JobId id;
	live::LeaseNo lease;
	Micros ends; // monotonic; kNever
	Datum job;	 // its row, a tq_job
	Oid function;
	bool returns_void;
	const Handler *handler;
};

live::Db *db = nullptr;
Handlers handlers;
MemoryContext attempt_context = nullptr;
char my_name[32];
int next_handler = 0; // where the next look begins, so that each has its turn

// SIGTERM, as seen by its handler.
volatile sig_atomic_t attempt_open = 0; // a job is held
volatile sig_atomic_t leaving = 0;		// asked to terminate
Micros leaving_since = 0;				// monotonic; set by on_tick
TimeoutId tick;

// Without a job: at once. With one: cancels it, so that it can be given back without an attempt being counted. Told twice, or if the
// handler does not stop: at once as well.
void on_terminate(SIGNAL_ARGS)
{
	const int saved = errno;
	if (attempt_open && !leaving)
	{
		leaving = 1;
		InterruptPending = true;
		QueryCancelPending = true;
		SetLatch(MyLatch);
		errno = saved;
		return;
	}
	leaving = 1;
	die(postgres_signal_arg);
}

// Every second while a handler runs.
void on_tick()
{
	if (!leaving)
		return;
	if (leaving_since == 0)
		leaving_since = live::mono_now();
	else if (live::mono_now() - leaving_since > kStopGrace)
	{
		InterruptPending = true;
		ProcDiePending = true;
		SetLatch(MyLatch);
	}
}

void start(const WorkerContext &context)
{
	if (!begin_work(context, "tq: starting"))
		return;
	db = &live::database_of(context.extension);
	read_handlers(*db, &handlers);
	end_work();
}

bool read_again(const WorkerContext &context)
{
	if (!is_stale(handlers, *db))
		return true;
	if (!begin_work(context, "tq: reading handlers"))
		return false;
	read_handlers(*db, &handlers);
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
		if (h.role != context.role || is_held(h, now) || !find_queue(*db, &h) || !has_work(h, false) || !executor_engage(h.id, h.max, queue_limit(h)))
			continue;
		next_handler = at + 1;
		return &h;
	}
	return nullptr;
}

// The row of the job as the handler gets it, in attempt_context.
Datum row_of(Datum *values, bool *nulls, Oid type)
{
	TupleDesc desc = lookup_rowtype_tupdesc_copy(type, -1);
	HeapTuple tuple = heap_form_tuple(desc, values, nulls);
	const MemoryContext here = MemoryContextSwitchTo(attempt_context);
	const Datum row = heap_copy_tuple_as_datum(tuple, desc);
	MemoryContextSwitchTo(here);
	return row;
}

// The attempt ends when its timeout is over; the lease goes on a little, so that what becomes of it is the executor's to say. Without a
// timeout it lasts as long as the process.
void set_ends(const live::Claimed &c, const journal::JobRow &row, Micros mono, Attempt *a) noexcept
{
	const core::QueueSettings s = live::settings_of(c.queue);
	const Micros timeout = live::timeout_of(row.timeout, s).value;
	a->ends = core::kNever;
	if (timeout <= 0)
		return;
	a->ends = mono + timeout;
	live::lock_queue(c.queue);
	live::Queue &q = engine.queue(c.queue);
	if (engine.is(q, c.ref, c.id) && engine.entry(c.ref).lease == c.lease)
		engine.set_limits(q, c.ref, 0, timeout + live::cancel_grace_of(s).value, mono);
	live::unlock_queue(c.queue);
}

// Claims a job for a handler and journals that, in one transaction. False if there is none, or the extension is gone.
bool claim(const WorkerContext &context, Handler *h, Attempt *a)
{
	MemoryContextReset(attempt_context);
	if (!begin_work(context, "tq: claiming"))
		return false;
	flush_this_transaction();
	live::ensure_loaded(*db);
	const Oid job_type = api::job_type_in(context.extension_schema);
	a->function = api::find_handler(h->function, job_type, &a->returns_void);
	const live::Queue &q = engine.queue(h->queue);
	const uint32 generation = q.generation;
	char name[core::kNameMax];
	strlcpy(name, q.name, sizeof(name));
	live::require_right(*db, h->queue, name, live::kConsume);
	if (h->has_problem)
		write_problem(*db, *h, nullptr);

	core::Engine::ClaimTerms terms{};
	terms.owner = live::my_proc;
	terms.worker = live::worker_slot(*db, my_name);
	terms.lease_ms = static_cast<uint32>(api::kLongestLease / 1000);
	terms.default_lease_ms = terms.lease_ms;
	terms.default_timeout_ms = static_cast<uint32>(guc::timeout);
	terms.bound = true;
	terms.kinds = h->kinds;
	terms.nkinds = h->nkinds;
	terms.except = h->except && h->nkinds > 0;
	terms.wall = live::wall_now();
	terms.mono = live::mono_now();
	live::worker_seen(terms.worker, terms.wall);
	live::Claimed c;
	live::ensure_leases(*db);
	live::reserve_ops(1);
	const int first_op = live::op_count();
	bool found = live::take_jobs(h->queue, generation, terms, 1, &c) == 1;
	if (found)
	{
		live::note_bound(c.queue, c.ref, c.id, c.lease);
		if (terms.worker != core::kNil)
			engine.worker(terms.worker).claimed.fetch_add(1, std::memory_order_relaxed);
		journal::Segment tables;
		if (!live::tables_at(*db, c.segment, &tables))
			tables = journal::Segment{};
		journal::JobRow row;
		Datum values[live::kJobColumns] = {};
		bool nulls[live::kJobColumns] = {};
		found = live::claimed_job(*db, c, first_op, terms, tables, values, nulls, &row);
		if (found)
		{
			set_ends(c, row, terms.mono, a);
			TQ_WAIT_POINT("executor-before-claimed");
			live::journal_claim(*db, c);
			a->id = c.id;
			a->lease = c.lease;
			a->job = row_of(values, nulls, job_type);
			a->handler = h;
			attempt_open = 1;
		}
	}
	end_work();
	if (found)
		TQ_WAIT_POINT("executor-after-claim");
	return found;
}

// The result, in the current memory context; null if there is none.
Jsonb *call(const Attempt &a)
{
	FmgrInfo function;
	LOCAL_FCINFO(fcinfo, 1);
	PgStat_FunctionCallUsage usage;
	fmgr_info(a.function, &function);
	InvokeFunctionExecuteHook(a.function);
	InitFunctionCallInfoData(*fcinfo, &function, 1, InvalidOid, nullptr, nullptr);
	fcinfo->args[0].value = a.job;
	fcinfo->args[0].isnull = false;
	pgstat_init_function_usage(fcinfo, &usage);
	const Datum result = FunctionCallInvoke(fcinfo);
	pgstat_end_function_usage(&usage, true);
	return fcinfo->isnull || a.returns_void ? nullptr : DatumGetJsonbP(result);
}

// The handler may have been replaced, dropped or closed to its role since the claim.
void check_again(const WorkerContext &context, Attempt *a)
{
	a->function = api::find_handler(a->handler->function, api::job_type_in(context.extension_schema), &a->returns_void);
}

// Milliseconds that the handler may run, 0: for ever. The role's own statement_timeout counts too.
int time_left(const Attempt &a) noexcept
{
	Micros left = StatementTimeout > 0 ? StatementTimeout : 0;
	if (a.ends != core::kNever)
	{
		const Micros until = std::clamp<Micros>((a.ends - live::mono_now()) / 1000, 1, INT_MAX);
		left = left > 0 ? std::min(left, until) : until;
	}
	return static_cast<int>(left);
}

// In one transaction: calls the handler and completes the job. False if the extension is gone.
bool perform(const WorkerContext &context, Attempt *a, bool *lost)
{
	if (!begin_work(context, "tq: running a job"))
		return false;
	const char *activity = psprintf("tq: job %lld by %s", static_cast<long long>(a->id), a->handler->function);
	debug_query_string = activity;
	pgstat_report_activity(STATE_RUNNING, activity);
	pin_search_path(a->handler->search_path);
	enable_timeout_every(tick, TimestampTzPlusMilliseconds(GetCurrentTimestamp(), 1000), 1000);
	if (const int ms = time_left(*a))
		enable_timeout_after(STATEMENT_TIMEOUT, ms);
	check_again(context, a);
	Jsonb *result = call(*a);
	TQ_WAIT_POINT("executor-before-complete");
	api::Ending ending{a->id, a->lease, live::Verb::complete};
	ending.detail = result;
	const Hold hold = api::end_attempt(*db, ending);
	// one that the handler itself has ended otherwise (tq_release, tq_bury, tq_fail) stays so
	if (hold != Hold::ok && hold != Hold::done)
	{
		*lost = true;
		ereport(ERROR, (errcode(ERRCODE_OPERATOR_INTERVENTION),
						errmsg("the lease of job %lld was lost while its handler ran", static_cast<long long>(a->id)),
						errdetail("What the handler did is rolled back.")));
	}
	disable_timeout(STATEMENT_TIMEOUT, true);
	CHECK_FOR_INTERRUPTS();
	TQ_WAIT_POINT("executor-before-commit");
	end_work();
	TQ_WAIT_POINT("executor-after-complete");
	return true;
}

char *clipped(const char *text)
{
	const int length = static_cast<int>(strlen(text));
	return length <= kTextMax ? pstrdup(text) : pnstrdup(text, static_cast<Size>(pg_mbcliplen(text, length, kTextMax)));
}

void put(JsonbParseState **state, const char *key, const char *text)
{
	JsonbValue v;
	if (text == nullptr)
		return;
	v.type = jbvString;
	v.val.string.val = const_cast<char *>(key);
	v.val.string.len = static_cast<int>(strlen(key));
	pushJsonbValue(state, WJB_KEY, &v);
	v.val.string.val = clipped(text);
	v.val.string.len = static_cast<int>(strlen(v.val.string.val));
	pushJsonbValue(state, WJB_VALUE, &v);
}

// What an error says beyond its message, for tq_history.
Jsonb *detail_of(const ErrorData &error)
{
	JsonbParseState *state = nullptr;
	pushJsonbValue(&state, WJB_BEGIN_OBJECT, nullptr);
	put(&state, "sqlstate", unpack_sql_state(error.sqlerrcode));
	put(&state, "detail", error.detail);
	put(&state, "hint", error.hint);
	put(&state, "context", error.context);
	put(&state, "constraint", error.constraint_name);
	return JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, nullptr));
}

// As in PL/pgSQL, a state that ends with 000 stands for its class.
bool is_fatal(const Handler &h, int state) noexcept
{
	return std::any_of(h.fatal, h.fatal + h.nfatal, [state](int f) noexcept {
		return f == state || (ERRCODE_IS_CATEGORY(f) && ERRCODE_TO_CATEGORY(state) == f);
	});
}

bool asked_to_stop(const Attempt &a) noexcept
{
	uint16_t queue = 0;
	const core::Ref ref = engine.find(live::index_of(*db), a.id, &queue);
	if (ref == core::kNil)
		return false;
	live::lock_queue(queue);
	const bool asked = engine.is(engine.queue(queue), ref, a.id) && engine.entry(ref).lease == a.lease &&
					   engine.entry(ref).has(core::kCancelAsked);
	live::unlock_queue(queue);
	return asked;
}

// DROP EXTENSION, for which an executor is terminated, may yet be rolled back: then its job is to have been given back. False if it was
// not, or takes too long.
bool begin_patiently(const WorkerContext &context, const char *activity)
{
	for (int i = 0; i < 100; ++i)
	{
		if (begin_work(context, activity))
			return true;
		ExtensionRow row;
		StartTransactionCommand();
		const bool gone = !find_extension(&row) || row.oid != context.extension;
		CommitTransactionCommand();
		if (gone)
			return false;
		idle(50);
	}
	return false;
}

// After the handler's transaction was rolled back: what becomes of the attempt.
bool give_up(const WorkerContext &context, const Attempt &a, const ErrorData &error)
{
	if (!begin_patiently(context, "tq: ending an attempt"))
		return false;
	flush_this_transaction();
	api::Ending ending{a.id, a.lease, live::Verb::fail};
	// one that is given back is as if it had not been; one that was asked to stop, and has not succeeded, is cancelled
	if ((leaving && error.sqlerrcode == ERRCODE_QUERY_CANCELED) || asked_to_stop(a))
		ending.verb = live::Verb::release;
	ending.reason = leaving && ending.verb == live::Verb::release ? "the executor was stopped"
																	: clipped(error.message != nullptr ? error.message : "");
	ending.detail = ending.verb == live::Verb::fail ? detail_of(error) : nullptr;
	ending.fatal = is_fatal(*a.handler, error.sqlerrcode);
	TQ_WAIT_POINT("executor-before-fail");
	static_cast<void>(api::end_attempt(*db, ending)); // lost meanwhile, it has ended anyway
	end_work();
	TQ_WAIT_POINT("executor-after-fail");
	return true;
}

// Back from an error: reported, and the transaction rolled back. A copy in attempt_context.
ErrorData *recover()
{
	HOLD_INTERRUPTS();
	disable_timeout(STATEMENT_TIMEOUT, false);
	QueryCancelPending = false;
	MemoryContextSwitchTo(attempt_context);
	ErrorData *error = CopyErrorData();
	EmitErrorReport();
	FlushErrorState();
	AbortCurrentTransaction();
	debug_query_string = nullptr;
	MemoryContextSwitchTo(TopMemoryContext);
	RESUME_INTERRUPTS();
	return error;
}

// False if this process has to leave.
bool run(const WorkerContext &context, Attempt *a)
{
	ErrorData *volatile error = nullptr;
	volatile bool stay = true;
	bool lost = false;
	executor_runs(a->id, a->lease);
	PG_TRY();
	{
		stay = perform(context, a, &lost);
	}
	PG_CATCH();
	{
		error = recover();
	}
	PG_END_TRY();
	disable_timeout(tick, false);
	debug_query_string = nullptr;
	executor_runs(0, 0);
	QueryCancelPending = false; // it was for what has just ended
	if (error != nullptr && !lost)
		stay = give_up(context, *a, *error);
	attempt_open = 0;
	tidy_session(context.role);
	return stay && !leaving;
}

// What keeps a handler's jobs from being claimed is written down; they are tried again some time later.
void note_problem(const WorkerContext &context, const Handler &h, const ErrorData &error)
{
	if (!begin_work(context, "tq: noting a problem"))
		return;
	write_problem(*db, h, clipped(error.message != nullptr ? error.message : "?"));
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
	while (!stop_requested(context) && !leaving && !live::is_draining(live::worker_slot(*db, my_name)))
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
				continue;
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
	pqsignal(SIGTERM, on_terminate);
	tick = RegisterTimeout(USER_TIMEOUT, on_tick);
	attempt_context = AllocSetContextCreate(TopMemoryContext, "tq attempt", ALLOCSET_DEFAULT_SIZES);
	snprintf(my_name, sizeof(my_name), "executor %d", MyProcPid);
	start(context);
	if (db == nullptr)
		return;
	tidy_session(context.role); // ALTER ROLE SET may have made it another role's
	set_latch_of_scheduler(context.database);
	serve(context);
	live::forget_worker(live::worker_slot(*db, my_name)); // the next has another number
}

} // namespace tq::workers
