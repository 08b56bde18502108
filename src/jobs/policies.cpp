#include "jobs/policies.hpp"

extern "C"
{
#include "utils/json.h"
}

#include "jobs/job_options.hpp"
#include "pg/interval.hpp"

namespace tq
{

namespace
{

using core::Backoff;
using core::Micros;

// Writes the members of an object, one after the other.
class Writer
{
	StringInfoData text_;

public:
	Writer() { initStringInfo(&text_); }
	Jsonb *json()
	{
		return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(psprintf("{%s}", text_.data))));
	}
	void raw(const char *key, From from, const char *value)
	{
		static constexpr const char *kFrom[] = {"job", "queue", "server"}; // as enum From
		appendStringInfo(&text_, "%s\"%s\": {\"value\": %s, \"from\": \"%s\"}", text_.len > 0 ? ", " : "", key, value,
						 kFrom[static_cast<int>(from)]);
	}
	void number(const char *key, Applied a) { raw(key, a.from, psprintf("%lld", static_cast<long long>(a.value))); }
	void real(const char *key, From from, double value) { raw(key, from, psprintf("%g", value)); }
	void boolean(const char *key, Applied a) { raw(key, a.from, a.value != 0 ? "true" : "false"); }
	void word(const char *key, From from, const char *value) { raw(key, from, psprintf("\"%s\"", value)); }
	void duration(const char *key, Applied a, bool zero_is_none)
	{
		raw(key, a.from, zero_is_none && a.value == 0 ? "null" : interval(a.value));
	}
	// In the interval style of the session.
	static const char *interval(Micros micros)
	{
		Interval i{};
		i.day = static_cast<int32>(micros / pg::kDay);
		i.time = micros % pg::kDay;
		return psprintf("\"%s\"", DatumGetCString(DirectFunctionCall1(interval_out, PointerGetDatum(&i))));
	}
};

const char *retry_json(const core::RetryPolicy &p)
{
	static constexpr const char *kNames[] = {"exponential", "linear", "fixed", "list"}; // as enum Backoff
	StringInfoData s;
	initStringInfo(&s);
	appendStringInfo(&s, "{\"policy\": \"%s\", \"max\": %s, \"jitter\": %g, \"on_lost\": %s",
					 kNames[static_cast<int>(p.backoff)], Writer::interval(p.max), static_cast<double>(p.jitter),
					 Writer::interval(p.on_lost));
	if (p.backoff == Backoff::exponential)
		appendStringInfo(&s, ", \"factor\": %g", static_cast<double>(p.factor));
	if (p.backoff != Backoff::list)
		appendStringInfo(&s, ", \"delay\": %s", Writer::interval(p.delay));
	else
	{
		appendStringInfoString(&s, ", \"delays\": [");
		for (int i = 0; i < p.ndelays; ++i)
			appendStringInfo(&s, "%s%s", i > 0 ? ", " : "", Writer::interval(p.delays[i]));
		appendStringInfoChar(&s, ']');
	}
	appendStringInfoChar(&s, '}');
	return s.data;
}

const char *on_lost_word(int64 on_lost) noexcept
{
	switch (static_cast<core::OnLost>(on_lost))
	{
		case core::OnLost::bury:
			return "bury";
		case core::OnLost::dead:
			return "dead";
		default:
			return "retry";
	}
}

// A value that was fixed at the enqueue counts as the job's own, unless it equals the default of the queue or the
// server.
From origin(int64 value, Applied otherwise) noexcept { return value == otherwise.value ? otherwise.from : From::job; }

// Writes when the job expires. Compares the time of its row with the default of its queue or the server, to find its
// origin. A job with parents has no time in its row, unless it is the job's own.
void put_expiry(Writer &w, const journal::JobRow &row, TimestampTz expires_at, const core::QueueSettings &s)
{
	const Applied in = expires_in_of(s);
	const TimestampTz start = std::max(row.run_at, row.enqueued_at);
	const bool by_queue = row.depends_on != nullptr && row.expires_at == journal::kNoTime;
	if (expires_at == journal::kNoTime)
		w.raw("expires_at", by_queue || in.value == 0 ? in.from : From::job, "null");
	else if (TIMESTAMP_IS_NOEND(expires_at))
		w.raw("expires_at", From::job, "null");
	else
	{
		const char *time = JsonEncodeDateTime(nullptr, TimestampTzGetDatum(expires_at), TIMESTAMPTZOID, nullptr);
		const From compared = in.value > 0 ? origin(expires_at - start, in) : From::job;
		w.word("expires_at", by_queue ? in.from : compared, time);
	}
}

} // namespace

Jsonb *policies_of(const journal::JobRow &row, int32 priority, TimestampTz expires_at, uint16_t queue)
{
	const core::QueueSettings s = settings_of(queue);
	Writer w;
	w.number("priority", Applied{priority, origin(priority, priority_of(s))});
	w.number("max_attempts", max_attempts_of(row.max_attempts, s));
	From from{};
	const core::RetryPolicy retry = retry_of(row.retry, s, &from);
	w.raw("retry", from, retry_json(retry));
	w.duration("lease", lease_of(row.lease, s), false);
	w.duration("lease_grace", lease_grace_of(s), false);
	w.duration("timeout", timeout_of(row.timeout, s), true);
	w.boolean("strict_timeout", strict_timeout_of(s));
	const Applied on_lost = on_lost_of(s);
	w.word("on_lost", on_lost.from, on_lost_word(on_lost.value));
	w.duration("cancel_grace", cancel_grace_of(s), false);
	put_expiry(w, row, expires_at, s);
	if (row.unique_key != nullptr)
	{
		const Micros unique_for = own_unique_for(row.options);
		w.duration("unique_for", unique_for != core::kUnset ? Applied{unique_for, From::job} : unique_for_of(s), true);
	}
	if (row.weight > 0)
		w.real("weight", From::job, static_cast<double>(row.weight));
	else
		w.real("weight", From::server, 1);
	return w.json();
}

} // namespace tq
