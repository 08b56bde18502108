#include "transaction/bulks.hpp"

#include "core/stack_index.hpp"
#include "segments/segments.hpp"
#include "pg/array.hpp"

namespace tq
{

namespace
{

// Beyond this number of sums, one sum stands for all groups of a queue. So the cost of COMMIT is bounded.
constexpr int kMostSums = 10000;

// In TopTransactionContext. No two have the same subtransaction and key; those of inner subtransactions come later.
pg::Array<Bulk> bulks;
core::StackIndex by_key;
pg::Array<int32> by_key_memory;

// Sums with different keys may share a hash: see same_key.
uint64 hash_of(const Bulk &b) noexcept
{
	if (b.group != nullptr)
		return core::hash_name(b.group) + b.queue;
	return static_cast<uint64>(b.lane) << 18 | static_cast<uint64>(b.segment) << 2 |
		   static_cast<uint64>(b.grouped) << 1 | b.blocked;
}

// Whether two sums have the same key, leaving out the subtransaction.
bool same_key(const Bulk &a, const Bulk &b) noexcept
{
	if (a.group != nullptr || b.group != nullptr)
		return a.group != nullptr && b.group != nullptr && a.queue == b.queue && strcmp(a.group, b.group) == 0;
	return a.lane == b.lane && a.queue == b.queue && a.segment == b.segment && a.grouped == b.grouped &&
		   a.blocked == b.blocked;
}

// Adds to the existing sum; false if there is none.
bool merge(const Bulk &b, uint64 hash) noexcept
{
	for (int32 i = bulks.n > 0 ? by_key.last(hash) : -1; i >= 0; i = by_key.before(i))
	{
		Bulk &to = bulks[i];
		if (!same_key(to, b))
			continue;
		if (to.sub != b.sub) // then the sums before it are of outer subtransactions, too
			return false;
		to.count += b.count;
		to.ndelayed += b.ndelayed;
		to.least = std::min(to.least, b.least);
		to.least_id = std::min(to.least_id, b.least_id);
		to.least_due = std::min(to.least_due, b.least_due);
		to.least_expiry = std::min(to.least_expiry, b.least_expiry);
		return true;
	}
	return false;
}

// The caller has reserved memory.
void push(const Bulk &b, uint64 hash) noexcept
{
	bulks.push(b);
	by_key.push(hash);
}

void pop() noexcept { by_key.pop(hash_of(bulks[--bulks.n])); }

void add(Bulk b)
{
	uint64 hash = hash_of(b);
	if (merge(b, hash))
		return;
	if (b.group != nullptr && bulks.n >= kMostSums)
	{
		b.group = "";
		hash = hash_of(b);
		if (merge(b, hash))
			return;
	}
	if (b.group != nullptr)
		b.group = MemoryContextStrdup(TopTransactionContext, b.group);
	bulks.reserve(TopTransactionContext, 1);
	if (by_key.capacity() < bulks.capacity)
	{
		const auto capacity = static_cast<int32>(bulks.capacity);
		by_key_memory.reserve(TopTransactionContext, static_cast<int64>(core::StackIndex::words(capacity)));
		by_key.attach(by_key_memory.data, capacity);
		for (const Bulk &old : bulks)
			by_key.push(hash_of(old));
	}
	push(b, hash);
}

bool is_blocked(const Op &op) noexcept { return op.to == State::blocked; }
bool is_delayed(const Op &op) noexcept { return op.due != core::kNever && !is_blocked(op); }

} // namespace

void add_to_bulks(const Op &op, SubTransactionId sub)
{
	const bool delayed = is_delayed(op), blocked = is_blocked(op), grouped = op.enqueue.group != nullptr;
	const Key key{op.priority, op.id};
	add(Bulk{sub, op.queue, op.lane, op.segment, 1, delayed, key, op.id, delayed ? op.due : core::kNever,
			 blocked ? core::kNever : op.expires_at, grouped, blocked, nullptr});
	if (grouped && !delayed && !blocked)
		add(Bulk{sub, op.queue, op.lane, op.segment, 0, 0, key, op.id, core::kNever, core::kNever, true, false,
				 op.enqueue.group});
}

// Adds -1, in a sum of its own if the job was summed by an outer subtransaction. So ROLLBACK TO restores the job, and
// a release merges the two sums. The least keys remain: for watermarks, lower ones are right as well.
void take_from_bulks(const Op &op, SubTransactionId sub)
{
	add(Bulk{sub, op.queue, op.lane, op.segment, -1, is_delayed(op) ? -1 : 0, core::kMaxKey, INT64_MAX, core::kNever,
			 core::kNever, op.enqueue.group != nullptr, is_blocked(op), nullptr});
}

bool has_bulks() noexcept { return bulks.n > 0; }

int64 bulk_jobs() noexcept
{
	int64 n = 0;
	for (const Bulk &b : bulks)
		n += b.count;
	return n;
}

bool is_in_bulk(const Db &db, JobId id)
{
	return has_bulks() && find_in_segments(db, id, [id](const journal::Segment &tables, int) {
			   journal::JobRow row;
			   ItemPointerData tid;
			   return journal::find_own_job(tables, id, &row, &tid);
		   });
}

pg::Array<Bulk> &pending_bulks() noexcept { return bulks; }

void end_sub_bulks(bool commit, SubTransactionId sub, SubTransactionId parent) noexcept
{
	const int64 end = bulks.n;
	while (bulks.n > 0 && bulks.last().sub >= sub)
		pop();
	// The popped sums are still in the array, and pushing never overtakes reading.
	for (int64 i = bulks.n; commit && i < end; ++i)
	{
		Bulk b = bulks[i];
		b.sub = parent;
		const uint64 hash = hash_of(b);
		if (!merge(b, hash))
			push(b, hash);
	}
}

void forget_bulks() noexcept
{
	bulks.forget();
	by_key = core::StackIndex{};
	by_key_memory.forget();
}

} // namespace tq
