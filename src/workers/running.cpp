// Runs the handler of a job that an executor holds and completes the job with it; or, if it fails, is cancelled or has to stop, ends the
// attempt in a transaction of its own.
//
// Regime: PG. Locks: queue locks and "tq workers", held only inside. Raises: what a handler raises ends its attempt and nothing else;
// an error that keeps an attempt from being ended ends the process.
#include "workers/running.hpp"

#include "api/finish.hpp"
#include "api/handle.hpp"
#include "live/attach.hpp"
#include "workers/session.hpp"
#include "workers/slots.hpp"
#include "workers/transaction.hpp"

extern "C"
{
#include "utils/timeout.h"
}

namespace tq::workers
{

MemoryContext attempt_context = nullptr;
volatile sig_atomic_t attempt_open = 0;
volatile sig_atomic_t leaving = 0;

namespace
{

using live::engine;
using live::Hold;
using live::Micros;

// Longest text of an error that is kept, and of each of its details.
constexpr int kTextMax = 8000;
// An executor that was told to terminate gives its handler so long to stop.
constexpr Micros kStopGrace = 5000000;
// How long another transaction that is changing the job is waited for, and when we are to leave. It may be waiting for us.
constexpr Micros kBusyGrace = 5000000;
constexpr Micros kBusyGraceLeaving = 1000000;

Micros leaving_since = 0; // monotonic; set by on_tick
TimeoutId tick;

// What is left of an attempt, in attempt_open, when its handler is over: to be written down.
constexpr sig_atomic_t kEnding = 2;

// Without a job: at once. With one: cancels it, so that it can be given back without an attempt being counted; once the handler is over, how it
// ended is written down first. Told twice, or if that takes long: at once as well.
void on_terminate(SIGNAL_ARGS)
{
	const int saved = errno;
	if (attempt_open && !leaving)
	{
		leaving = 1;
		if (attempt_open != kEnding)
		{
			InterruptPending = true;
			QueryCancelPending = true;
		}
		SetLatch(MyLatch);
		errno = saved;
		return;
	}
	leaving = 1;
	die(postgres_signal_arg);
}

// Every second while an attempt is open.
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

// Another transaction may be changing the job (tq_release, a move to another segment): whether the lease is lost, is known when it has ended.
// Busy if that takes too long.
Hold end_patiently(const api::Ending &ending)
{
	const Micros began = live::mono_now();
	for (;;)
	{
		const Hold hold = api::end_attempt(*executor_db, ending);
		if (hold != Hold::busy || live::mono_now() - began > (leaving ? kBusyGraceLeaving : kBusyGrace))
			return hold;
		static_cast<void>(WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 20, PG_WAIT_EXTENSION));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
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
	if (const int ms = time_left(*a))
		enable_timeout_after(STATEMENT_TIMEOUT, ms);
	check_again(context, a);
	Jsonb *result = call(*a);
	TQ_WAIT_POINT("executor-before-complete");
	api::Ending ending{a->id, a->lease, live::Verb::complete};
	ending.detail = result;
	const Hold hold = end_patiently(ending);
	if (hold == Hold::busy)
		live::raise_busy(a->id);
	// one that the handler itself has ended otherwise (tq_release, tq_bury, tq_fail) stays so
	if (hold != Hold::ok && hold != Hold::done)
	{
		*lost = true;
		ereport(ERROR, (errcode(ERRCODE_OPERATOR_INTERVENTION),
						errmsg("the lease of job %lld was lost while its handler ran", static_cast<long long>(a->id)),
						errdetail("What the handler did is rolled back.")));
	}
	CHECK_FOR_INTERRUPTS();
	TQ_WAIT_POINT("executor-before-commit");
	// deferred triggers run now, and count too; once it has committed nothing looks for the interrupt
	end_work();
	disable_timeout(STATEMENT_TIMEOUT, false);
	QueryCancelPending = false;
	TQ_WAIT_POINT("executor-after-complete");
	return true;
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
	const core::Ref ref = engine.find(live::index_of(*executor_db), a.id, &queue);
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

// Ends the attempt and the transaction. False if somebody else has been changing the job for too long: should he roll back, nobody but us has
// the lease, so the process leaves, and the lease with it.
bool end_here(const api::Ending &ending)
{
	const Hold hold = end_patiently(ending); // lost meanwhile, it has ended anyway
	end_work();
	if (hold == Hold::busy)
		ereport(LOG, (errmsg("tq executor leaves: job %lld is being changed by another transaction", static_cast<long long>(ending.id))));
	return hold != Hold::busy;
}

// After the handler's transaction was rolled back: what becomes of the attempt. False if the process has to leave.
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
	const bool ended = end_here(ending);
	TQ_WAIT_POINT("executor-after-fail");
	return ended;
}

// Its handler was not even called.
void give_back(const WorkerContext &context, const Attempt &a)
{
	if (!begin_patiently(context, "tq: giving a job back"))
		return;
	flush_this_transaction();
	api::Ending ending{a.id, a.lease, live::Verb::release};
	ending.reason = "the executor was stopped";
	static_cast<void>(end_here(ending));
}

} // namespace

void set_up_running()
{
	pqsignal(SIGTERM, on_terminate);
	tick = RegisterTimeout(USER_TIMEOUT, on_tick);
	attempt_context = AllocSetContextCreate(TopMemoryContext, "tq attempt", ALLOCSET_DEFAULT_SIZES);
}

char *clipped(const char *text)
{
	const int length = static_cast<int>(strlen(text));
	return length <= kTextMax ? pstrdup(text) : pnstrdup(text, static_cast<Size>(pg_mbcliplen(text, length, kTextMax)));
}

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

bool run(const WorkerContext &context, Attempt *a)
{
	ErrorData *volatile error = nullptr;
	volatile bool stay = true;
	bool lost = false;
	if (executor_runs(a->id, a->lease))
		leaving = 1; // whoever asked saw no job yet, and sent no signal
	enable_timeout_every(tick, TimestampTzPlusMilliseconds(GetCurrentTimestamp(), 1000), 1000);
	PG_TRY();
	{
		stay = !leaving && perform(context, a, &lost);
	}
	PG_CATCH();
	{
		error = recover();
	}
	PG_END_TRY();
	debug_query_string = nullptr;
	static_cast<void>(executor_runs(0, 0));
	attempt_open = kEnding;
	QueryCancelPending = false; // it was for what has just ended
	leaving_since = 0;			// what follows has its own time
	if (error != nullptr && !lost)
		stay = give_up(context, *a, *error);
	else if (!stay)
		give_back(context, *a);
	disable_timeout(tick, false);
	attempt_open = 0;
	tidy_session(context.role);
	return stay && !leaving;
}

} // namespace tq::workers
