// The cursor of tq_changes. Transactions commit in another order than they write, so a cursor is a set of transactions:
// all below `next`, without those that were running.
// Regime: PG; may ereport unless noexcept. Locks: none.
#pragma once

#include "pg/array.hpp"

namespace tq
{

constexpr int kLogName = 8;

// A set of transactions whose changes were returned.
struct Seen
{
	uint64 next = 0;		   // the set has none from here on
	pg::Array<uint64> running; // nor any of these, which are ascending and below `next`
	// One of `running`, of which the changes up to (part_queue, part_job, part_step) were returned; 0: none.
	uint64 part = 0;
	int32 part_queue = 0;
	int64 part_job = 0;
	int32 part_step = 0;

	bool has(uint64 xid) const noexcept
	{
		return xid < next && !std::binary_search(running.begin(), running.end(), xid);
	}
	// The first transaction from `xid` on that is not in the set.
	uint64 first_missing(uint64 xid) const noexcept
	{
		const uint64 *at = std::lower_bound(running.begin(), running.end(), xid);
		return at != running.end() ? *at : std::max(xid, next);
	}
};

struct ChangeCursor
{
	char log[kLogName + 1];
	Seen seen;
};

// Raises 22023 for a text that is no cursor.
ChangeCursor parse_cursor(const char *text);
// Appends the text of a cursor without `part`.
void write_set(StringInfo s, const char *log, const Seen &seen);

// The transactions that a snapshot sees. This transaction is not among them: it may still roll back.
Seen seen_by(Snapshot snapshot);
// Whether every transaction of one set is also in another.
bool includes(const Seen &all, const Seen &some) noexcept;
// The transactions whose changes of a queue were deleted: those in a snapshot, up to the last one that had a change.
// False if none was deleted.
bool parse_deleted(const char *snapshot, const char *last, Seen *gone);

} // namespace tq
