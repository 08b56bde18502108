#include "handlers/calling.hpp"

#include "api/sizes.hpp"

extern "C"
{
#include "storage/sinval.h"
}

namespace tq
{

namespace
{

needs_fmgr_hook_type next_needs_hook = nullptr;
fmgr_hook_type next_hook = nullptr;

// The call that has not reached the function's code yet.
const WorkerContext *guarded_context = nullptr;
Attempt *guarded = nullptr;

bool needs_hook(Oid function)
{
	return (guarded != nullptr && guarded->function == function) ||
		   (next_needs_hook != nullptr && next_needs_hook(function));
}

// FHET_START is the last event before the call goes to the function's language, which reads the code from the catalog
// cache. Between the two nothing takes a lock, and so nothing invalidates the cache: the row that is judged here is the
// row whose code runs. A check before fmgr_info() alone leaves a gap, because that looks up the language, and because
// the function's own settings (CREATE FUNCTION ... SET) are applied after it. The judgment itself may fill the cache,
// which takes locks and so may invalidate it: then the judgment is made again.
void on_call(FmgrHookEventType event, FmgrInfo *function, Datum *arg)
{
	if (next_hook != nullptr)
		next_hook(event, function, arg);
	if (event == FHET_START && guarded != nullptr && guarded->function == function->fn_oid)
	{
		AcceptInvalidationMessages();
		uint64 seen = 0;
		do
		{
			seen = SharedInvalidMessageCounter;
			check_function(*guarded_context, guarded);
		} while (seen != SharedInvalidMessageCounter);
		guarded = nullptr;
	}
}

} // namespace

void set_up_calling()
{
	next_needs_hook = needs_fmgr_hook;
	needs_fmgr_hook = needs_hook;
	next_hook = fmgr_hook;
	fmgr_hook = on_call;
}

bool judge_function(const WorkerContext &context, Attempt *a)
{
	a->judgment = judge(*a->handler, job_type_in(context.extension_schema));
	if (a->judgment.why != nullptr)
		a->judgment.why = MemoryContextStrdup(self.attempt_context, a->judgment.why);
	return a->judgment.state == FunctionState::good;
}

void check_function(const WorkerContext &context, Attempt *a)
{
	if (!judge_function(context, a))
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg_internal("%s", a->judgment.why)));
	a->function = a->judgment.function;
	a->returns_void = a->judgment.returns_void;
}

bool end_call() noexcept
{
	const bool reached = guarded == nullptr;
	guarded = nullptr;
	return reached;
}

Jsonb *call_function(const WorkerContext &context, Attempt *a)
{
	FmgrInfo function;
	LOCAL_FCINFO(fcinfo, 1);
	PgStat_FunctionCallUsage usage;
	check_function(context, a);
	guarded_context = &context;
	guarded = a;
	fmgr_info(a->function, &function);
	InvokeFunctionExecuteHook(a->function);
	InitFunctionCallInfoData(*fcinfo, &function, 1, InvalidOid, nullptr, nullptr);
	fcinfo->args[0].value = a->job;
	fcinfo->args[0].isnull = false;
	TQ_WAIT_POINT("executor-before-call");
	pgstat_init_function_usage(fcinfo, &usage);
	const Datum result = FunctionCallInvoke(fcinfo);
	pgstat_end_function_usage(&usage, true);
	if (fcinfo->isnull || a->returns_void)
		return nullptr;
	return pg::checked_jsonb("result", result, result_limit());
}

} // namespace tq
