#include "queues/policy.hpp"

#include "guc.hpp"

namespace tq
{

namespace
{

constexpr Micros kMilli = 1000;

Applied pick(int64 of_queue, int64 unit, int64 of_server) noexcept
{
	return of_queue != core::kUnset ? Applied{of_queue * unit, From::queue} : Applied{of_server, From::server};
}

} // namespace

core::QueueSettings settings_of(uint16_t queue) noexcept
{
	core::QueueSettings s;
	if (queue == kNoQueue)
		return s;
	lock_queue(queue);
	s = engine.queue(queue).settings;
	unlock_queue(queue);
	return s;
}

Applied lease_of(int64 own, const core::QueueSettings &s) noexcept
{
	return own > 0 ? Applied{own, From::job} : pick(s.lease_ms, kMilli, guc::lease * kMilli);
}

Applied timeout_of(int64 own, const core::QueueSettings &s) noexcept
{
	return own > 0 ? Applied{own, From::job} : pick(s.timeout_ms, kMilli, guc::timeout * kMilli);
}

Applied max_attempts_of(int32 own, const core::QueueSettings &s) noexcept
{
	return own > 0 ? Applied{own, From::job} : pick(s.max_attempts, 1, guc::max_attempts);
}

Applied priority_of(const core::QueueSettings &s) noexcept { return pick(s.priority, 1, guc::priority); }

Applied lease_grace_of(const core::QueueSettings &s) noexcept
{
	return pick(s.lease_grace_ms, kMilli, guc::lease_grace * kMilli);
}

Applied strict_timeout_of(const core::QueueSettings &s) noexcept
{
	return s.strict_timeout != core::Flag::unset ? Applied{s.strict_timeout == core::Flag::on, From::queue}
												 : Applied{guc::strict_timeout, From::server};
}

Applied on_lost_of(const core::QueueSettings &s) noexcept
{
	return s.on_lost != core::OnLost::unset ? Applied{static_cast<int64>(s.on_lost), From::queue}
											: Applied{guc::on_lost, From::server};
}

Applied cancel_grace_of(const core::QueueSettings &s) noexcept
{
	return pick(s.cancel_grace_ms, kMilli, guc::cancel_grace * kMilli);
}

Applied expires_in_of(const core::QueueSettings &s) noexcept
{
	return pick(s.expires_in_ms, kMilli, guc::expires_in * core::kSecond);
}

Micros expiry_from(Micros start, Micros expires_in) noexcept
{
	return expires_in > 0 && start < END_TIMESTAMP - expires_in ? start + expires_in : core::kNever;
}

Applied unique_for_of(const core::QueueSettings &s) noexcept
{
	return pick(s.unique_for_ms, kMilli, guc::unique_for * core::kSecond);
}

Applied max_depth_of(const core::QueueSettings &s) noexcept { return pick(s.max_depth, 1, guc::max_depth); }

const core::RetryPolicy &retry_of_queue(const core::QueueSettings &s) noexcept
{
	return s.has_retry ? s.retry : guc::retry;
}

core::RetryPolicy retry_of(Jsonb *own, const core::QueueSettings &s, From *from)
{
	const core::RetryPolicy base = retry_of_queue(s);
	if (from != nullptr)
		*from = own != nullptr ? From::job : s.has_retry ? From::queue : From::server;
	if (own == nullptr)
		return base;
	const MemoryContext context = CurrentMemoryContext;
	auto *out = static_cast<core::RetryPolicy *>(palloc(sizeof(core::RetryPolicy)));
	*out = base;
	PG_TRY();
	{
		*out = parse_retry(own, base, "argument");
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		ErrorData *e = CopyErrorData();
		if (ERRCODE_TO_CATEGORY(e->sqlerrcode) != ERRCODE_DATA_EXCEPTION)
			PG_RE_THROW();
		FlushErrorState();
		ereport(WARNING, (errmsg("a job's retry policy is ignored: %s", e->message)));
	}
	PG_END_TRY();
	return *out;
}

Micros ends_at(const Queue &q, const Entry &e) noexcept
{
	const Micros lease = engine.lease_end(e, strict_timeout_of(q.settings).value != 0);
	return e.has(core::kHardTimeout) ? std::min(lease, e.hard_deadline) : lease;
}

void limit_cancelled(const Queue &q, Entry &e) noexcept
{
	const Micros end = mono_now() + cancel_grace_of(q.settings).value;
	core::set_hard_deadline(e, e.has(core::kHardTimeout) ? std::min(e.hard_deadline, end) : end);
}

} // namespace tq
