// A wall clock for the tests of cron: a time zone given by its offset changes.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "core/cron.hpp"

namespace tq::test
{

// A simple implementation: its functions scan all changes.
struct Clock
{
	core::Seconds offset;										  // before the first change
	std::vector<std::pair<core::Seconds, core::Seconds>> changes; // (instant, offset from then on), in order

	core::Seconds offset_at(core::Seconds t) const
	{
		core::Seconds o = offset;
		for (const auto &[from, offset_then] : changes)
			if (t >= from)
				o = offset_then;
		return o;
	}
	static core::Seconds local(const void *data, core::Seconds t) noexcept
	{
		return t + static_cast<const Clock *>(data)->offset_at(t);
	}
	// As pg::instants: a skipped time stays skipped, even if the clock later goes back over the gap and shows that
	// time.
	static core::Instants instants(const void *data, core::Seconds shown) noexcept
	{
		const auto *c = static_cast<const Clock *>(data);
		std::set<core::Seconds> found;
		if (local(data, shown - c->offset) == shown)
			found.insert(shown - c->offset);
		for (const auto &[from, offset_then] : c->changes)
		{
			if (found.empty() && from + offset_then > shown)
				return {0, from, 0};
			if (local(data, shown - offset_then) == shown)
				found.insert(shown - offset_then);
		}
		if (found.empty())
			return {};
		return {static_cast<int>(found.size()), *found.begin(), *found.rbegin()};
	}
	core::Zone zone() const { return {this, local, instants}; }
};

} // namespace tq::test
