// Whether a waiting job belongs in memory or stays on disk until its lane, its group or the timers reach it.
// Regime: core.
#pragma once

#include "core/types.hpp"

namespace tq::core
{

struct Waiting
{
	Key key;
	Micros due;	  // if it is delayed
	bool delayed; // else it is ready
	bool grouped;
};

// What the watermarks guarantee for the job's position, and how far ahead the timers read.
struct Vouched
{
	Key lane; // the lane's watermark
	bool tail; // no job on disk follows the lane's last job
	Micros timers; // the timers' watermark
	Micros horizon; // the last time up to which the timers read
};

// A delayed job belongs in memory if it is due soon, a ready job if no job on disk precedes it. A job of a group also
// needs `group_takes`, which is called only if it decides.
template <class GroupTakes>
constexpr bool belongs_in_memory(const Waiting &job, const Vouched &vouched, GroupTakes &&group_takes) noexcept
{
	if (job.delayed)
		return job.due < vouched.timers && job.due <= vouched.horizon && (!job.grouped || group_takes());
	return job.grouped ? group_takes() : job.key < vouched.lane || vouched.tail;
}

} // namespace tq::core
