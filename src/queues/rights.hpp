// Which role may do what with which queue (P8): the table tq.acl, and this backend's cache of it. Owners of the
// extension and superusers may do everything; other roles only what a row grants.
// Regime: PG; reading the table may raise. Locks: AccessShareLock on tq.acl while it is read.
#pragma once

#include "shmem/shared.hpp"
#include "pg/array.hpp"

namespace tq
{

// Rights as bits. Functions that take several require only one of them.
enum Right : uint8
{
	kProduce = 1,
	kConsume = 2,
	kOperate = 4,  // to cancel, retry, reschedule and purge jobs, to pause and resume
	kManage = 8,   // to change settings, to grant, to drop
	kMetrics = 16, // counts and times, no jobs
	kInspect = 32, // jobs with their contents
	kCreate = 64,  // on all queues only: to create queues
};
constexpr uint8 kQueueRights = kProduce | kConsume | kOperate | kManage | kMetrics | kInspect;
constexpr uint8 kEveryRight = kQueueRights | kCreate;
constexpr uint8 kMayKnow = kQueueRights & ~kMetrics;				 // knows of the queue's jobs
constexpr uint8 kMayLook = kConsume | kOperate | kManage | kInspect; // sees the queue's jobs in the views
constexpr uint8 kMayCount = kMayLook | kMetrics;					 // sees the queue's counts in the views
constexpr uint8 kMayRead = kConsume | kInspect;						 // sees contents of jobs: payload, result, error

constexpr int32 kAllQueues = 0; // in tq.acl.queue_id; shown as '*'

// The privileges that tq_grant takes, and the rights that each includes.
struct Privilege
{
	const char *name;
	uint8 rights;
};
constexpr Privilege kPrivileges[] = {
	{"produce", kProduce},
	{"consume", kConsume},
	{"operate", kOperate},
	{"manage", kManage | kOperate},
	{"metrics", kMetrics},
	{"inspect", kInspect},
	{"monitor", kMetrics | kInspect},
	{"create", kCreate},
};

struct QueueRights
{
	int32 queue_id;
	uint8 mask;
};

// The rights of one role, with its memberships: on all queues, and on queues that were looked up.
struct Rights
{
	Oid user;
	Oid extension;
	uint32 version;	   // `version` when it was read; 0: not in use
	uint32 roles_version;
	uint64 clock;	   // grant_clock() before it was read; 0: valid for `version` only
	uint8 everywhere;  // on all queues
	// The list has all queues on which the role has a right. Otherwise a missing queue was not looked up.
	bool whole;
	pg::Array<QueueRights> list; // by queue_id

	bool knows(int32 queue_id) const noexcept;

	bool may(int32 queue_id, uint8 any_of) const noexcept
	{
		return (everywhere & any_of) != 0 || (mask_of(queue_id) & any_of) != 0;
	}
	// The role that names a queue may use it before its row and grants are written.
	bool may(const Queue &q, uint8 any_of) const noexcept
	{
		return may(q.id, any_of) || (q.creator == user && !q.persisted && (kQueueRights & any_of) != 0);
	}
	// Whether the role may see the contents of the queue's jobs and their outcomes (jobs/outcome_rights.hpp).
	bool may_read(int32 queue_id) const noexcept { return may(queue_id, kMayRead); }
	bool may_read(const Queue &q) const noexcept { return may(q, kMayRead); }

private:
	const QueueRights *position_of(int32 queue_id) const noexcept;
	uint8 mask_of(int32 queue_id) const noexcept;
};

// The current user's rights on all queues, valid until the next call. Costs a few comparisons if nothing has changed;
// otherwise reads all of tq.acl.
const Rights &rights(const Db &db);
// The same for one queue: reads only its rows.
const Rights &rights_on(const Db &db, int32 queue_id);

// The roles under which the login of this session may consume. It may SET ROLE to each.
struct LoginRoles
{
	struct Consumer
	{
		int32 queue_id;
		Oid role;
	};
	Oid login;
	Oid extension;
	uint32 version;				 // 0: not in use
	Oid everywhere;				 // may consume from all queues; or InvalidOid
	pg::Array<Consumer> list; // by queue_id, each queue once

	Oid on(int32 queue_id) const noexcept; // InvalidOid: none
};
// Valid until the next call. Raises 42501 where SET ROLE is refused: in a SECURITY DEFINER function, whose owner must
// not gain what the login may do. Costs as much as rights().
const LoginRoles &login_roles(const Db &db);

// Whether the current user has one of these privileges on the queue `slot`. Sees grants just committed elsewhere.
bool has_right(const Db &db, uint16_t slot, uint8 any_of);

// The same from the cache, at the cost of a few comparisons; false: read it with has_right or rights_on. Other roles'
// grants on other queues do not matter.
bool remembers_right(const Db &db, uint16_t slot, uint8 any_of) noexcept;

// The same on all queues.
bool has_right_everywhere(const Db &db, uint8 any_of);

// Raises 42501 if the current user has none of these privileges on the queue `slot`; `name`: as the caller gave it.
void require_right(const Db &db, uint16_t slot, const char *name, uint8 any_of);

// The same for a name without a queue. Without the right on all queues, the error is the same as for an existing queue.
void require_right_to_name(const Db &db, const char *name, uint8 any_of);
// The same where the caller would create the queue, which needs the privilege create. `any_of`: what is needed if the
// queue exists, so that the error without any right is that of require_right_or_create; 0: the caller only creates it.
void require_right_to_make(const Db &db, const char *name, uint8 any_of);
// As require_right for an existing queue that the caller would create if it were missing.
void require_right_or_create(const Db &db, uint16_t slot, const char *name, uint8 any_of);
// The same where the caller waits until the queue is created: `any_of` or create, on all queues.
void require_right_to_await(const Db &db, const char *name, uint8 any_of);

// Whether this role exists and has one of these privileges on the queue `slot`.
bool role_may(const Db &db, Oid role, uint16_t slot, uint8 any_of);

// The queue with that name, even if closing, on which the current user has the right; raises 42501, TQ002.
uint16_t queue_with_right(Db &db, const char *name, uint8 any_of);

// The number of a queue that the current user may manage, for rows that refer to it. Includes queues without a row and
// queues that this transaction is creating.
int32 number_to_manage(Db &db, const char *name);

// Locks the row of a queue to the end of the transaction, before rows that refer to it are deleted. finish_drops skips
// a queue whose row is locked, but would wait for these. Does nothing for kAllQueues.
void lock_queue_row(const Db &db, int32 queue_id);

// Raises 42501 unless the current user has one of these rights on all queues; `what` names the function or view.
void require_right_everywhere(const Db &db, const char *what, uint8 any_of);

// Raises unless the current user owns the extension or is a superuser, and tq.testing is on. For functions that tests
// call; `what` names the function.
void require_testing(const Db &db, const char *what);

// Inserts the creator of a new queue, and all rights for it. Runs as the extension's owner, inside its SPI connection.
void grant_to_creator(const Queue &q);

// Whether the table tq.creator exists: 0.1.0 has none.
bool records_creators();

// The privileges that include one of these rights, for messages: "consume or manage".
const char *names_of(uint8 any_of);

// The rights of a privilege; raises 22023 for an unknown name.
uint8 parse_right(const char *name);

} // namespace tq
