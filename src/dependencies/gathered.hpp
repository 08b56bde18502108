// What one transaction of the resolver has gathered, and the parts that work on it. The recorded ends of parents lead
// to children (ends.cpp); batches count them (batch_progress.cpp); resolver.cpp decides about the children.
// Regime: PG. Locks: as resolver.hpp.
#pragma once

#include "dependencies/resolving.hpp"
#include "segments/segments.hpp"

namespace tq
{

// Approximate bytes recorded, and bytes passed on, in a transaction. The timers of all queues wait for it.
constexpr Size kBytesAtOnce = 524288;
constexpr int kEnded = 256;
constexpr int kMost = 2 * kEnough + 50; // including the children of the last check

// In tq.dependency.outcome: the child is given the outcome only because one transaction enqueued both, so not that of a
// job that replaces the parent. It stays in the outcome of a parent that has ended, because ends can be taken back.
#define TQ_OWN "'{\"replaceable\": false}'::jsonb"
// The outcome in a row whose end is taken back. A large batch keeps no outcomes.
#define TQ_OUTCOME_OPEN "CASE WHEN outcome IS NULL OR outcome @> " TQ_OWN " THEN " TQ_OWN " END"

struct Child
{
	core::JobId id;
	int succeeded; // parents recorded by this transaction
	int failed;
};

struct Gathered
{
	Child children[kMost];
	int n;
	core::JobId ended[kEnded]; // parents with a recorded end, as far as they fit
	int nended;				   // how many there were
	Size recorded;			   // bytes of outcomes
	Size handed;			   // bytes of outcomes that children were given
};
extern Gathered gathered;

// The record of a child, made on the first call.
Child &child_of(core::JobId id);

// The segment of a job. Marks it as blocked if it is locked. Segment 0 has no test, because it has few jobs.
int slot_of(const Db &db, core::JobId id, Events events);
// A segment that was blocked a moment ago may be locked against appends only.
bool is_unreadable(const Db &db, int slot);

// Copies at most `capacity` of the ids that a statement returned.
int ids_returned(uint64 n, core::JobId *out, int capacity);

// --- ends.cpp

// Records how a parent has ended, if it has.
void look_at_parent(Db &db, core::JobId id);
// The same for the open parents of a child.
void look_at_child(Db &db, core::JobId id);

// --- batch_progress.cpp

// What happens to a child now.
enum class Decision : uint8
{
	wait,
	free,
	cancel,
	block, // it may have been cancelled because of ends that were taken back since
};
struct Resolution
{
	Decision decision;
	const char *reason;
	Jsonb *parents;
	bool keep; // the batch continues without its callback: jobs may still join and end
	bool of_batch; // the child is the callback of a batch
	bool despite; // free, although parents have failed: these ends can be taken back
};

bool is_batch(core::JobId id);
// Decides about a batch: counts the ended jobs, and checks whether all have ended. False if the child is no batch.
bool decide_batch(Db &db, const Child &c, Resolution *v);
// The step after the one with which the resolver has cancelled a callback because jobs of the batch had failed; 0: the
// callback has not ended so.
int32 step_if_cancelled(const Db &db, core::JobId callback);
// The detail of the event by which a user retries a callback: it runs although jobs of the batch have failed.
Jsonb *forgiven();
// For a postponed child: its batch counts this transaction's records now.
void only_count(const Child &c);
// Deletes the record of a batch when the row of its callback is gone.
void look_at_batch(Db &db, core::JobId id);

// --- resolver.cpp

// The outcomes that a child is given.
Jsonb *outcomes_for(core::JobId child);
// Deletes the rows of a child, and records which jobs it has waited for, and which had failed when it was freed.
void forget(core::JobId child, bool freed = false);

} // namespace tq
