// tq_schedule_next: the times at which a cron expression fires. Needs no queue, no right and no shared memory.
// Regime: PG; raises 22023 (expression, time zone, n). Locks: none.
#include "schedules/schedule_next.hpp"

#include "api/args.hpp"
#include "core/cron_text.hpp"
#include "shmem/shared.hpp"
#include "pg/function.hpp"
#include "pg/zone.hpp"

namespace tq
{

namespace
{

constexpr int kMostTimes = 1000;

// The expression and zone of one call; `from` advances.
struct Preview
{
	core::Cron cron;
	core::Zone zone;
	core::Micros from;
};

} // namespace

core::Cron cron_of(const char *text)
{
	core::Cron cron{};
	core::CronError error{};
	if (core::parse_cron(text, &cron, &error))
		return cron;
	// the parser counts bytes, the message counts characters
	const int position = pg_mbstrlen_with_len(text, error.position - 1) + 1;
	if (error.field == core::CronField::whole)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("cron expression \"%s\" is not valid", text),
						errdetail("At position %d: %s", position, error.text)));
	ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("cron expression \"%s\" is not valid", text),
					errdetail("In the field %s, at position %d: %s", core::cron_field_name(error.field), position,
							  error.text)));
}

namespace
{

// Computes one time per call, so that a LIMIT stops the computation.
Datum next_time(FunctionCallInfo fcinfo, int n, TimestampTz from)
{
	FuncCallContext *call = nullptr;
	if (SRF_IS_FIRSTCALL())
	{
		call = SRF_FIRSTCALL_INIT();
		const MemoryContext old = MemoryContextSwitchTo(call->multi_call_memory_ctx);
		auto *p = static_cast<Preview *>(palloc(sizeof(Preview)));
		p->cron = cron_of(text_required(fcinfo, 0, "cron", kCronLimit));
		p->zone =
			pg::core_zone(pg::find_zone(PG_ARGISNULL(1) ? "UTC" : text_or_null(fcinfo, 1, "timezone", kTimeZoneLimit)));
		p->from = from;
		call->user_fctx = p;
		call->max_calls = static_cast<uint64>(n);
		MemoryContextSwitchTo(old);
	}
	call = SRF_PERCALL_SETUP();
	auto *p = static_cast<Preview *>(call->user_fctx);
	if (call->call_cntr < call->max_calls)
	{
		p->from = core::next_fire(p->cron, p->from, p->zone);
		if (p->from != core::kNever && IS_VALID_TIMESTAMP(p->from))
			SRF_RETURN_NEXT(call, TimestampTzGetDatum(p->from));
	}
	SRF_RETURN_DONE(call);
}

} // namespace

TQ_FUNCTION(tq_schedule_next)
{
	const int32 n = int_or(fcinfo, 2, "n", 5, 1, kMostTimes);
	return next_time(fcinfo, n, preloaded() ? wall_now() : GetCurrentTimestamp());
}

#ifdef TQ_TEST
// For tests, which declare it as (cron text, timezone text, n int, start timestamptz): the times after `start` instead
// of after now.
TQ_BARE_FUNCTION(tq_test_schedule_next) { return next_time(fcinfo, PG_GETARG_INT32(2), PG_GETARG_TIMESTAMPTZ(3)); }
#endif

} // namespace tq
