#include "database/restoring.hpp"

#include "journal/journal.hpp"

namespace tq
{

bool restore_seen_within(const Db &db, Micros length) noexcept
{
	const Micros since = db.outside_changed_at.load(), now = wall_now();
	return since <= now && now < since + length;
}

bool restore_may_be_under_way(const Db &db) noexcept
{
	return db.outside_changes.load() != db.outside_adopted.load() || restore_seen_within(db, 600 * core::kSecond);
}

const char *incomplete_segments()
{
	journal::SegmentTables *list = nullptr;
	const int n = journal::list_segments(&list);
	StringInfoData numbers;
	initStringInfo(&numbers);
	for (int i = 0; i < n; ++i)
		if (!list[i].complete)
			appendStringInfo(&numbers, "%s%d", numbers.len > 0 ? ", " : "", list[i].tables.number);
	return numbers.len > 0 ? numbers.data : nullptr;
}

} // namespace tq
