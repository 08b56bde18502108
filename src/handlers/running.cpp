// Runs the handler of a job that an executor holds, and completes the job with it. If the handler fails, is cancelled
// or must stop, ends the attempt in a separate transaction.
//
// Regime: PG. Locks: queue locks and "tq workers", held only inside. Raises: an error of a handler ends only its
// attempt; an error that prevents recording its end ends the process.
#include "handlers/running.hpp"

#include "api/sizes.hpp"
#include "handlers/calling.hpp"
#include "handlers/session.hpp"
#include "jobs/finish.hpp"
#include "processes/slots.hpp"
#include "processes/work_transaction.hpp"

extern "C"
{
#include "utils/timeout.h"
}

namespace tq
{

namespace
{

// The longest text of an error, and of each of its details, that is kept.
constexpr Size kTextMax = 8000;
// How long a handler may take to stop after its executor was told to terminate, in calls of on_tick. A clock would also
// count the time in which this process stood still and the handler could not stop.
constexpr int kStopTicks = 5;
// How long to wait for another transaction that is changing the job, normally and when this process must exit. That
// transaction may be waiting for this process.
constexpr Micros kBusyGrace = 5000000;
constexpr Micros kBusyGraceLeaving = core::kSecond;

int leaving_ticks = 0; // set by on_tick
TimeoutId tick;

// The last value of attempt_open: the handler has ended, and its outcome is not recorded yet.
constexpr sig_atomic_t kEnding = 2;

// On SIGTERM. Without a job: ends the process at once. With a job: cancels it, so that it can be released without
// counting the attempt. If the handler has ended, its outcome is recorded first. A second SIGTERM, or too long a wait,
// ends the process at once as well.
void on_terminate(SIGNAL_ARGS)
{
	const int saved = errno;
	if (self.attempt_open && !self.leaving)
	{
		self.leaving = 1;
		if (self.attempt_open != kEnding)
		{
			InterruptPending = true;
			QueryCancelPending = true;
		}
		SetLatch(MyLatch);
		errno = saved;
		return;
	}
	self.leaving = 1;
	die(postgres_signal_arg);
}

// Called every second while an attempt is open. Ends the process if it should terminate and takes too long.
void on_tick()
{
	if (!self.leaving)
		return;
	if (++leaving_ticks > kStopTicks)
	{
		InterruptPending = true;
		ProcDiePending = true;
		SetLatch(MyLatch);
	}
}

// Milliseconds that the handler may run, 0: no limit. The role's own statement_timeout counts too.
int time_left(const Attempt &a) noexcept
{
	Micros left = StatementTimeout > 0 ? StatementTimeout : 0;
	if (a.ends != core::kNever)
	{
		const Micros until = std::clamp<Micros>((a.ends - mono_now()) / 1000, 1, INT_MAX);
		left = left > 0 ? std::min(left, until) : until;
	}
	return static_cast<int>(left);
}

// Another transaction may be changing the job (tq_release, a move to another segment). Only its end shows whether the
// lease is lost. Returns busy if that takes too long.
Marked end_patiently(const AttemptEnd &ending)
{
	const Micros began = mono_now();
	for (;;)
	{
		// read first: if this process stands still in between, it tries once more
		const bool last = mono_now() - began > (self.leaving ? kBusyGraceLeaving : kBusyGrace);
		const Marked marked = end_attempt(*self.db, ending);
		if (marked != Marked::busy || last)
			return marked;
		nap(20);
	}
}

// How the call of a handler ended.
enum class Outcome : uint8
{
	uncalled,  // this process must exit, or the extension is gone
	completed, // and committed, with the end of the job
	failed,	   // rolled back; the error is to be recorded
	lost,	   // rolled back; the lease was lost, so there is nothing to record
};

// Calls the handler and completes the job, in one transaction. *outcome is `failed` at first, for errors.
void perform(const WorkerContext &context, Attempt *a, volatile Outcome *outcome)
{
	if (self.leaving || !begin_work(context, "tq: running a job"))
	{
		*outcome = Outcome::uncalled;
		return;
	}
	const char *activity = psprintf("tq: job %lld by %s", static_cast<long long>(a->id), a->handler->function);
	debug_query_string = activity;
	pgstat_report_activity(STATE_RUNNING, activity);
	set_search_path(a->handler->search_path);
	if (const int ms = time_left(*a))
		enable_timeout_after(STATEMENT_TIMEOUT, ms);
	Jsonb *result = call_function(context, a);
	TQ_WAIT_POINT("executor-before-complete");
	AttemptEnd ending{a->id, a->lease, Verb::complete};
	ending.detail = result;
	const Marked marked = end_patiently(ending);
	if (marked == Marked::busy)
		raise_busy(a->id);
	// done: the handler itself has ended the attempt (tq_release, tq_bury, tq_fail); that stays
	if (marked != Marked::ok && marked != Marked::done)
	{
		*outcome = Outcome::lost;
		ereport(ERROR, (errcode(ERRCODE_OPERATOR_INTERVENTION),
						errmsg("the lease of job %lld was lost while its handler ran", static_cast<long long>(a->id)),
						errdetail("What the handler did is rolled back.")));
	}
	CHECK_FOR_INTERRUPTS();
	TQ_WAIT_POINT("executor-before-commit");
	// runs deferred triggers, within the same timeout; nothing checks for interrupts after them
	end_work();
	disable_timeout(STATEMENT_TIMEOUT, false);
	QueryCancelPending = false;
	TQ_WAIT_POINT("executor-after-complete");
	*outcome = Outcome::completed;
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

// The fields of an error besides its message, for tq_history.
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
	bool asked = false;
	static_cast<void>(with_entry(*self.db, a.id, [&a, &asked](const Entry &e) noexcept {
		asked = e.lease == a.lease && e.has(core::kCancelAsked);
	}));
	return asked;
}

// An executor is terminated for DROP EXTENSION, which may still roll back, so its job must be released. This waits
// until the drop ends. False if the extension is gone, or if that takes too long.
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

// Ends the attempt, and commits. If another transaction has been changing the job for too long, the attempt is still
// open if that transaction rolls back. So the process must exit, which ends its lease.
AfterAttempt end_and_commit(const AttemptEnd &ending)
{
	const Marked marked = end_patiently(ending); // if the lease is lost, the attempt has ended anyway
	end_work();
	if (marked != Marked::busy)
		return AfterAttempt::stay;
	ereport(LOG, (errmsg("tq executor leaves: job %lld is being changed by another transaction",
						 static_cast<long long>(ending.id))));
	return AfterAttempt::leave;
}

// Records the end of an attempt after the handler's transaction was rolled back. If the function may not be called,
// releases the job without counting the attempt.
AfterAttempt record_failure(const WorkerContext &context, Attempt *attempt, const ErrorData &error, bool called)
{
	const Attempt &a = *attempt;
	if (!begin_patiently(context, "tq: ending an attempt"))
		return AfterAttempt::leave;
	flush_this_transaction();
	AttemptEnd ending{a.id, a.lease, Verb::fail};
	// A released attempt does not count. The release of a job that was asked to stop cancels it (jobs/finish.cpp).
	if ((self.leaving && error.sqlerrcode == ERRCODE_QUERY_CANCELED) || asked_to_stop(a))
		ending.verb = Verb::release;
	ending.reason = self.leaving && ending.verb == Verb::release
						? "the executor was stopped"
						: clipped(error.message != nullptr ? error.message : "");
	ending.detail = ending.verb == Verb::fail ? detail_of(error) : nullptr;
	ending.fatal = is_fatal(*a.handler, error.sqlerrcode);
	if (!called && a.judgment.state == FunctionState::good)
		static_cast<void>(judge_function(context, attempt)); // it may have been dropped since it was judged
	if (a.judgment.state != FunctionState::good)
	{
		ending.verb = Verb::release;
		ending.reason = a.judgment.why;
		ending.detail = nullptr;
	}
	TQ_WAIT_POINT("executor-before-fail");
	const AfterAttempt after = end_and_commit(ending);
	TQ_WAIT_POINT("executor-after-fail");
	return after;
}

// Releases a job whose handler was not called.
void release_uncalled(const WorkerContext &context, const Attempt &a)
{
	if (!begin_patiently(context, "tq: giving a job back"))
		return;
	flush_this_transaction();
	AttemptEnd ending{a.id, a.lease, Verb::release};
	ending.reason = "the executor was stopped";
	static_cast<void>(end_and_commit(ending));
}

} // namespace

void set_up_running()
{
	pqsignal(SIGTERM, on_terminate);
	tick = RegisterTimeout(USER_TIMEOUT, on_tick);
	set_up_calling();
	self.attempt_context = AllocSetContextCreate(TopMemoryContext, "tq attempt", ALLOCSET_DEFAULT_SIZES);
}

char *clipped(const char *text) { return pg::cut_cstring(text, std::min(kTextMax, error_limit().bytes)); }

ErrorData *recover()
{
	HOLD_INTERRUPTS();
	disable_timeout(STATEMENT_TIMEOUT, false);
	QueryCancelPending = false;
	MemoryContextSwitchTo(self.attempt_context);
	ErrorData *error = CopyErrorData();
	EmitErrorReport();
	FlushErrorState();
	AbortCurrentTransaction();
	debug_query_string = nullptr;
	MemoryContextSwitchTo(TopMemoryContext);
	RESUME_INTERRUPTS();
	return error;
}

AfterAttempt run(const WorkerContext &context, Attempt *a)
{
	ErrorData *volatile error = nullptr;
	volatile Outcome outcome = Outcome::failed;
	if (executor_runs(a->id, a->lease))
		self.leaving = 1; // the request came before the job, so no signal was sent
	enable_timeout_every(tick, TimestampTzPlusMilliseconds(GetCurrentTimestamp(), 1000), 1000);
	PG_TRY();
	{
		perform(context, a, &outcome);
	}
	PG_CATCH();
	{
		error = recover();
	}
	PG_END_TRY();
	const bool called = end_call();
	debug_query_string = nullptr;
	static_cast<void>(executor_runs(a->id, 0));
	self.attempt_open = kEnding; // from here on a first SIGTERM does not interrupt
	QueryCancelPending = false;	 // it was for the handler, which has ended
	leaving_ticks = 0;			 // the code below has a separate grace period
	AfterAttempt after = AfterAttempt::stay;
	if (outcome == Outcome::failed)
		after = record_failure(context, a, *error, called);
	else if (outcome == Outcome::uncalled)
	{
		release_uncalled(context, *a);
		after = AfterAttempt::leave;
	}
	disable_timeout(tick, false);
	self.attempt_open = 0;
	tidy_session(context.role);
	return self.leaving ? AfterAttempt::leave : after;
}

} // namespace tq
