#include "transaction/pending.hpp"

#include "guc.hpp"
#include "core/stack_index.hpp"
#include "transaction/bulks.hpp"
#include "pg/array.hpp"

extern "C"
{
#include "utils/builtins.h"
}

namespace tq
{

namespace
{

// The open transaction. The arrays are in TopTransactionContext, and are forgotten (not freed) when it ends.
struct Pending
{
	pg::Array<Op> ops;
	// Used once there are many operations; updated on lookup.
	core::StackIndex by_job;
	pg::Array<int32> by_job_memory;
	int nenqueued = 0; // individual enqueue operations among ops
	ClaimsHere claims;
	int held = 0; // operations that hold a waiting job in memory
	bool bulk_mode = false;
	const char *last_group = nullptr;
};
Pending tx;

// The last operation that may concern a job, and the previous one; -1 if there is none. A long list has an index by
// job. In a short one, each operation may concern the job, so the caller compares ids.
int last_about(JobId id) noexcept
{
	if (tx.by_job.capacity() == 0)
		return op_count() - 1;
	while (tx.by_job.size() < tx.ops.n)
		tx.by_job.push(static_cast<uint64>(tx.ops[tx.by_job.size()].id));
	return tx.by_job.last(static_cast<uint64>(id));
}

int previous_about(int i) noexcept { return tx.by_job.capacity() == 0 ? i - 1 : tx.by_job.before(i); }

// A change of a waiting job (lease 0) holds its entry in memory. A running job stays there anyway, and PRE_COMMIT
// checks the share for new jobs.
void count(const Op &op, int by) noexcept
{
	tx.held += op.verb != Verb::enqueue && op.verb != Verb::claim && op.lease == 0 ? by : 0;
	tx.claims.all += op.verb == Verb::claim ? by : 0;
	tx.claims.alone += op.verb == Verb::claim && op.claim.alone ? by : 0;
}

const Op &pop_op() noexcept
{
	const Op &op = tx.ops[--tx.ops.n];
	count(op, -1);
	if (tx.by_job.size() > tx.ops.n)
		tx.by_job.pop(static_cast<uint64>(op.id));
	return op;
}

// Undoes the change of an enqueue that is still in the list. The copy has the subtransaction of the change, so the
// enqueue keeps its own.
void undo_edit(const Op &copy) noexcept
{
	Op &enqueue = *pending_enqueue(copy.id);
	const SubTransactionId sub = enqueue.sub;
	enqueue = copy;
	enqueue.verb = Verb::enqueue;
	enqueue.sub = sub;
}

} // namespace

void reserve_ops(int n)
{
	constexpr int kFew = 32; // operations that are searched without an index
	tx.ops.reserve(TopTransactionContext, n);
	const auto capacity = static_cast<int32>(tx.ops.capacity);
	if (capacity <= kFew || tx.by_job.capacity() >= capacity)
		return;
	tx.by_job_memory.reserve(TopTransactionContext, static_cast<int64>(core::StackIndex::words(capacity)));
	tx.by_job.attach(tx.by_job_memory.data, capacity);
}

Op &push_op(const Op &op) noexcept
{
	Op &noted = tx.ops.push(op);
	noted.sub = GetCurrentSubTransactionId();
	count(op, 1);
	return noted;
}

int op_count() noexcept { return static_cast<int>(tx.ops.n); }

bool may_hold(const Queue &q) noexcept
{
	return engine.changes_left(q) > 0 && tx.held < static_cast<int64>(engine.limits().entries / 2);
}

ClaimsHere &claims_here() noexcept { return tx.claims; }

void charge_only(int first, JobId id) noexcept
{
	// three rollbacks make a job pause (core::abort_pause)
	for (int i = first; i < tx.ops.n; ++i)
		if (tx.ops[i].verb == Verb::claim)
			tx.ops[i].claim.charge = tx.ops[i].id == id ? 3 : 0;
}

void note_wait(int index, Micros waited) noexcept
{
	if (tx.ops[index].verb == Verb::claim && tx.ops[index].prev.step == 1)
		tx.ops[index].claim.waited = std::max<Micros>(waited, 0);
}

void distrust(int first) noexcept
{
	for (int i = first; i < tx.ops.n; ++i)
		tx.ops[i].stale = tx.ops[i].verb != Verb::enqueue && tx.ops[i].verb != Verb::claim;
}

Op &last_op() noexcept { return tx.ops.last(); }

void set_pending(const Op &op) noexcept
{
	lock_queue(op.queue);
	if (engine.is(engine.queue(op.queue), op.ref, op.id) && engine.entry(op.ref).owner == my_proc)
		engine.entry(op.ref).pending = op.to;
	unlock_queue(op.queue);
}

const char *keep_group_key(const text *key, bool by_itself)
{
	if (key == nullptr)
		return nullptr;
	if (tx.bulk_mode && !by_itself)
		return text_to_cstring(key);
	const auto *bytes = VARDATA_ANY(key);
	const Size n = VARSIZE_ANY_EXHDR(key);
	// Neighbours mostly share their group.
	if (tx.last_group == nullptr || strlen(tx.last_group) != n || memcmp(tx.last_group, bytes, n) != 0)
		tx.last_group = static_cast<char *>(memcpy(MemoryContextAllocZero(TopTransactionContext, n + 1), bytes, n));
	return tx.last_group;
}

void note_enqueue(const Op *list, int n)
{
	const SubTransactionId sub = GetCurrentSubTransactionId();
	const int single = tx.bulk_mode ? 0 : std::min(n, std::max(guc::publish_limit - tx.nenqueued, 0));
	reserve_ops(single);
	for (int i = 0; i < single; ++i)
		push_op(list[i]);
	tx.nenqueued += single;
	tx.bulk_mode = tx.bulk_mode || single < n;
	for (int i = single; i < n; ++i)
		add_to_bulks(list[i], sub);
}

Op *pending_enqueue(JobId id) noexcept
{
	for (int i = tx.nenqueued > 0 ? last_about(id) : -1; i >= 0; i = previous_about(i))
		if (tx.ops[i].verb == Verb::enqueue && tx.ops[i].id == id)
			return &tx.ops[i];
	return nullptr;
}

void keep_enqueue(const Op &enqueue) noexcept
{
	Op copy = enqueue;
	copy.verb = Verb::none;
	push_op(copy);
}

Op &take_from_bulk(const Op &op)
{
	reserve_ops(1);
	take_from_bulks(op, GetCurrentSubTransactionId());
	++tx.nenqueued;
	return push_op(op);
}

bool cancel_requested_here(JobId id, LeaseNo lease) noexcept
{
	for (int i = last_about(id); i >= 0; i = previous_about(i))
		if (tx.ops[i].id == id && tx.ops[i].lease == lease && is_cancel_request(tx.ops[i]) && !tx.ops[i].makes_way)
			return true;
	return false;
}

bool superseded_here(JobId id) noexcept
{
	for (int i = last_about(id); i >= 0; i = previous_about(i))
		if (tx.ops[i].id == id && is_cancel_request(tx.ops[i]) && tx.ops[i].makes_way)
			return true;
	return false;
}

Op *last_op_on(Ref ref, JobId id) noexcept
{
	for (int i = last_about(id); i >= 0; i = previous_about(i))
		if (tx.ops[i].ref == ref && tx.ops[i].id == id && tx.ops[i].verb != Verb::enqueue &&
			!is_cancel_request(tx.ops[i]))
			return &tx.ops[i];
	return nullptr;
}

Op *pending_ops() noexcept { return tx.ops.begin(); }

bool enqueues_pending() noexcept { return tx.nenqueued > 0; }

// Operations of inner subtransactions were relabelled or undone before, so those of this one are the tail.
void relabel_ops(SubTransactionId sub, SubTransactionId parent) noexcept
{
	for (int64 i = tx.ops.n; i-- > 0 && tx.ops[i].sub == sub;)
		tx.ops[i].sub = parent;
}

const Op *pop_op_of(SubTransactionId sub) noexcept
{
	while (tx.ops.n > 0 && tx.ops.last().sub >= sub)
	{
		const Op &op = pop_op();
		if (op.verb != Verb::none)
		{
			tx.nenqueued -= op.verb == Verb::enqueue;
			return &op;
		}
		undo_edit(op);
	}
	return nullptr;
}

void forget_ops() noexcept
{
	tx = Pending{};
	forget_bulks();
}

} // namespace tq
