#include "retention/segment_policy.hpp"

#include "guc.hpp"

namespace tq
{

namespace
{

constexpr Micros kClockSlack = 10 * core::kSecond; // clocks of two processes may differ by less

// The number of dead letters; 0 while it is unknown.
int64 dead_or_zero(const SegmentView &s) noexcept { return dead_known(s.dead) ? std::max<int64>(s.dead, 0) : 0; }

bool scan_is_delayed(const SegmentView &s) noexcept { return steady_now() < s.again_at; }

// The pause before segments with dead letters that could not be moved are read again.
Micros pause_of(const Retention &keep) noexcept { return std::max(keep.finished / 4, guc::naptime * Micros{1000}); }

// True if the number of live jobs has hardly changed for 60 naptimes (note_progress). Jobs that end soon are not worth
// moving, above all those of a backlog in progress.
bool is_stable(const SegmentView &s) noexcept
{
	return s.noted_at != 0 && s.noted_at + 60 * guc::naptime * Micros{1000} <= steady_now();
}

// True if retention has passed and only live jobs (of a sealed segment) or dead letters (of a finished one) keep it.
bool outlives_retention(const SegmentView &s, const SegmentRules &rules) noexcept
{
	if (s.tables.number == 0)
		return false;
	if (s.state == SegmentState::sealed)
		return s.live > 0 && age_of(s, s.sealed_at, rules) >= rules.keep.finished;
	const Micros age = age_of(s, s.finished_at, rules);
	return s.state == SegmentState::finished && s.dead > 0 && age >= rules.keep.finished && age < rules.keep.dead;
}

// True if moving its live jobs and dead letters is cheaper than keeping it. Zero rows mean unknown: then the janitor
// counts.
bool worth_moving(const SegmentView &s, const SegmentRules &rules) noexcept
{
	return s.rows == 0 || s.slot == rules.sparsest ||
		   few_outlive(s.rows, s.live + dead_or_zero(s), s.state == SegmentState::finished);
}

} // namespace

bool is_future(TimestampTz at, const SegmentRules &rules) noexcept { return at > rules.now + kClockSlack; }

Micros age_of(const SegmentView &s, TimestampTz at, const SegmentRules &rules) noexcept
{
	if (!is_future(at, rules))
		return rules.now - at;
	return s.future_since != 0 ? mono_now() - s.future_since : 0;
}

SegmentRules rules_of(const Db &db, const pg::Array<SegmentView> &map, Micros now) noexcept
{
	SegmentRules rules{retention_of(db), now, false, 0, -1};
	int outlive = 0;
	double least = 0;
	rules.scarce = map.n * 2 >= guc::max_segments;
	if (rules.scarce)
		rules.pace = segment_pace(rules.keep.finished);
	for (const SegmentView &s : map)
	{
		if (!outlives_retention(s, rules))
			continue;
		++outlive;
		const double share =
			static_cast<double>(s.live + dead_or_zero(s)) / static_cast<double>(std::max<int64>(s.rows, 1));
		if (scan_is_delayed(s) || (rules.sparsest >= 0 && share >= least))
			continue;
		rules.sparsest = s.slot;
		least = share;
	}
	if (outlive * 2 < guc::max_segments) // slots are not short
		rules.sparsest = -1;
	return rules;
}

bool has_future(const SegmentView &s, const SegmentRules &rules) noexcept
{
	return is_future(std::max({s.opened_at, s.sealed_at, s.finished_at}), rules);
}

void note_future(const Db &db, const SegmentView &s, bool future) noexcept
{
	if (future != (s.future_since != 0))
		segment_at(db, s.slot).future_since.store(future ? mono_now() : 0);
}

void note_progress(const Db &db, const SegmentView &s) noexcept
{
	SegmentSlot &slot = segment_at(db, s.slot);
	const int64 noted = s.noted_live;
	if (s.noted_at != 0 && s.live <= noted && s.live >= noted - noted / 16)
		return;
	slot.noted_live.store(static_cast<int32>(std::min<int64>(s.live, PG_INT32_MAX)));
	slot.noted_at.store(steady_now());
}

// db.id_limit is 0 until the segments are mapped (segments.cpp); a range that began then would begin at id 0. Segment 0
// is left after its first job, because ended jobs leave dead rows in it.
bool wants_next(const Db &db, const SegmentView &open, const SegmentRules &rules) noexcept
{
	if (open.state != SegmentState::open || (open.rows == 0 && !open.damaged) || db.id_limit.load() == 0)
		return false;
	if (open.damaged)
		return true;
	const Micros age = age_of(open, open.opened_at, rules);
	return open.tables.number == 0 ||
		   ((open.rows >= guc::segment_rows || age >= guc::segment_interval * core::kSecond) && age >= rules.pace);
}

bool wants_emptying(const SegmentView &s, const SegmentRules &rules) noexcept
{
	return s.state == SegmentState::sealed && outlives_retention(s, rules) && worth_moving(s, rules) &&
		   (is_stable(s) || s.slot == rules.sparsest) && !scan_is_delayed(s);
}

bool wants_dropping(const SegmentView &s, const SegmentRules &rules) noexcept
{
	if (s.state != SegmentState::finished || age_of(s, s.finished_at, rules) < rules.keep.finished)
		return false;
	if (!dead_known(s.dead) && scan_is_delayed(s))
		return false;
	// Dead letters that cannot be moved, because their queue is gone, are not read again at once (looked_at).
	return s.dead <= 0 || age_of(s, s.finished_at, rules) >= rules.keep.dead ||
		   (worth_moving(s, rules) && is_over(s.looked_at, pause_of(rules.keep), rules.now) && !scan_is_delayed(s));
}

bool zero_wants_cleaning(const Db &db, const SegmentView &zero, const SegmentRules &rules) noexcept
{
	return zero.rows > zero.live && zero.state != SegmentState::open &&
		   is_over(db.cleaned_at.load(), pause_of(rules.keep), rules.now);
}

} // namespace tq
