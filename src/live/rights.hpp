// Who may do what with which queue (P8): the table tq.acl, and what this backend remembers of it. Owners of the extension and superusers
// may do everything; nobody else anything that no row grants.
// Regime: PG; reading the table may raise. Locks: none of its own, AccessShareLock on tq.acl while it is read.
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

// Privileges as bits. Where several are named, one of them is enough.
enum Right : uint8
{
	kProduce = 1,
	kConsume = 2,
	kManage = 4,
	kMonitor = 8,
	kCreate = 16, // on all queues only: to make new ones
};
constexpr uint8 kQueueRights = kProduce | kConsume | kManage | kMonitor;
constexpr uint8 kEveryRight = kQueueRights | kCreate;
constexpr uint8 kMayLook = kConsume | kManage | kMonitor; // sees the queue and its jobs in the views
constexpr uint8 kMayRead = kConsume | kMonitor;			  // ... with what is in the jobs: payload, result, error

constexpr int32 kAllQueues = 0; // as tq.acl.queue_id; shown as '*'

constexpr const char *kRightNames[] = {"produce", "consume", "manage", "monitor", "create"}; // by bit

struct QueueRights
{
	int32 queue_id;
	uint8 mask;
};

// What one role may do, its memberships counted in.
struct Rights
{
	Oid user;
	Oid extension;
	uint32 version;	   // of what it was made from; 0: not in use
	uint8 everywhere;  // on all queues
	int n;
	QueueRights *list; // by queue_id

	bool may(int32 queue_id, uint8 any_of) const noexcept
	{
		return (everywhere & any_of) != 0 || (mask_of(queue_id) & any_of) != 0;
	}
	// Whoever names a queue may use it before its row, and with it the grants, are written.
	bool may(const Queue &q, uint8 any_of) const noexcept
	{
		return may(q.id, any_of) || (q.creator == user && !q.persisted && (kQueueRights & any_of) != 0);
	}

private:
	uint8 mask_of(int32 queue_id) const noexcept;
};

// Those of the current user. Good until the next call; a few comparisons if nothing has changed.
const Rights &rights(const Db &db);

// Raises 42501 if the current user has none of these privileges on the queue `slot`; `name` is what it was called.
void require_right(const Db &db, uint16_t slot, const char *name, uint8 any_of);

// The same where there is no queue of that name: who has no right on all queues learns no more than if there were one.
void require_right_to_name(const Db &db, const char *name, uint8 any_of);
// ... and one is to be made, by somebody who wants to use it so: it takes the right to create queues.
void require_right_to_make(const Db &db, const char *name, uint8 any_of);

// The queue of that name, on which the current user has the right; raises 42501, TQ002. One being dropped is found as well.
uint16_t queue_with_right(Db &db, const char *name, uint8 any_of);

// The number of a queue that the caller may manage, for rows that refer to it; also one that was only named, or that he is creating.
int32 number_to_manage(Db &db, const char *name);

// The same for what concerns all queues: `what` names the function.
void require_right_everywhere(const Db &db, const char *what, uint8 any_of);

enum class Access : uint8
{
	granted,
	denied, // may see the job, but not do this
	unseen, // has no right on its queue: for the caller there is no such job
	absent,
};

// May the current user do this to a job? Looks for its queue in memory, in what this transaction has enqueued, in the journal; does not
// look at all where the right is one on all queues.
Access access_to_job(Db &db, JobId id, uint8 any_of);

// Raises TQ004 or 42501 unless access_to_job grants it; a job that is absent is left to the caller.
void require_job(Db &db, JobId id, uint8 any_of);
[[noreturn]] void raise_job_denied(JobId id, uint8 any_of);

// Writes the rights that come with a new queue: all of them for its creator. As the extension's owner, inside its SPI connection.
void grant_to_creator(const Queue &q);

// The bit of a privilege's name; 22023 for any other word.
uint8 parse_right(const char *name);

} // namespace tq::live
