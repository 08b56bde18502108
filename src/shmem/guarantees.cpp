#include "shmem/guarantees.hpp"

#include "guc.hpp"

namespace tq
{

int guaranteed_databases() noexcept { return std::min(guc::max_databases, guc::max_queues / 4); }

int short_sizes(ShortSize (&out)[kSizes]) noexcept
{
	const core::Guarantees g = Engine::guarantees(limits());
	const int queues = guc::max_queues, databases = guc::max_databases;
	const auto of_queues = [queues](const char *setting, int value, const char *slots, uint32 guaranteed,
									int needed) noexcept {
		return ShortSize{
			setting, value, slots, "queues", "tq.max_queues", queues, static_cast<int>(guaranteed), needed};
	};
	const ShortSize all[kSizes] = {
		of_queues("tq.max_live_jobs", guc::max_live_jobs, "jobs in memory", g.entries, queues * 8),
		of_queues("tq.max_groups", guc::max_groups, "groups", g.groups, queues * 4),
		of_queues("tq.max_lanes", guc::max_lanes, "kinds", g.kinds, queues <= guc::kMaxLanes / 4 ? queues * 4 : 0),
		{"tq.max_queues", queues, "queues", "databases", "tq.max_databases", databases, guaranteed_databases(),
		 databases * 4},
	};
	int n = 0;
	for (const ShortSize &s : all)
		if (s.guaranteed < s.most)
			out[n++] = s;
	return n;
}

const char *advice(const ShortSize &s)
{
	const char *more = s.needed > 0 ? psprintf("%s to at least %d, or ", s.setting, s.needed) : "";
	return psprintf("Set %s%s to at most %d, and restart the server.", more, s.limit, std::max(s.guaranteed, 1));
}

void warn_of_sizes()
{
	ShortSize sizes[kSizes];
	for (int i = 0, n = short_sizes(sizes); i < n; ++i)
	{
		const ShortSize &s = sizes[i];
		ereport(WARNING, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
						  errmsg("%s is too small for a guaranteed share of each of the %s", s.setting, s.holders),
						  errdetail("%d %s guarantee a share to %d of %d %s (%s).", s.value, s.slots, s.guaranteed,
									s.most, s.holders, s.limit),
						  errhint("%s", advice(s))));
	}
}

} // namespace tq
