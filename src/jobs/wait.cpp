// tq_wait: waits until a job can be claimed, without a snapshot that would hold back vacuum in the whole database
// (H20). tq_ready: the queues and kinds that have such jobs.
// Regime: PG. Locks: queue locks, briefly (shmem/waiting.hpp).
#include "api/args.hpp"
#include "database/activation.hpp"
#include "database/attach.hpp"
#include "jobs/snapshots.hpp"
#include "queues/queue_names.hpp"
#include "queues/rights.hpp"
#include "shmem/waiting.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"
#include "pg/rows.hpp"

namespace tq
{

namespace
{

// A queue as the caller named it.
struct Named
{
	const char *name;
	uint16_t queue; // kNoQueue: there is none
	uint32 generation;
	uint64 kind;
	bool any; // kind
};

// What a call of tq_wait or tq_ready is about.
struct Target
{
	Db *db;
	Oid extension;
	bool for_login = false;	 // also for the roles that the login may SET ROLE to
	const Db *all = nullptr; // every queue; otherwise null
	Named *named = nullptr;	 // by queue
	Wanted *wanted = nullptr;
	int nnamed = 0;
	int n = 0; // of `wanted`
};

// Groups the list by queue. A queue that is named once without a kind is wanted with any kind.
void set_wanted(Target *t)
{
	std::sort(t->named, t->named + t->nnamed, [](const Named &a, const Named &b) noexcept {
		return a.queue != b.queue ? a.queue < b.queue : a.any > b.any;
	});
	t->wanted = static_cast<Wanted *>(palloc(sizeof(Wanted) * static_cast<Size>(t->nnamed)));
	auto *kinds = static_cast<uint64_t *>(palloc(sizeof(uint64_t) * static_cast<Size>(t->nnamed)));
	int pairs = 0;
	for (int i = 0; i < t->nnamed && t->named[i].queue != kNoQueue;)
	{
		Wanted &w = t->wanted[t->n++] = Wanted{t->named[i].queue, 0, kinds};
		const bool any = t->named[i].any;
		for (; i < t->nnamed && t->named[i].queue == w.queue; ++i)
			if (!any)
				kinds[w.nkinds++] = t->named[i].kind;
		std::sort(kinds, kinds + w.nkinds);
		w.nkinds = static_cast<int>(std::unique(kinds, kinds + w.nkinds) - kinds);
		kinds += w.nkinds;
		pairs += w.nkinds + (w.nkinds > 0);
	}
	const int limit = most_pairs(t->n);
	if (pairs > limit)
		ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("too many kinds to wait for"),
						errdetail("Queues with kinds and their kinds are %d; the limit is %d.", pairs, limit),
						errhint("Name a queue without a kind to wait for all its jobs.")));
}

// The role under which the caller may consume from a queue: its own, or one that its login may SET ROLE to. InvalidOid:
// none.
Oid consumer_of(const Target &t, uint16_t slot)
{
	if (has_right(*t.db, slot, kConsume))
		return GetUserId();
	return t.for_login ? login_roles(*t.db).on(engine.queue(slot).id) : InvalidOid;
}

bool consumes_everywhere(const Target &t)
{
	return has_right_everywhere(*t.db, kConsume) || (t.for_login && OidIsValid(login_roles(*t.db).everywhere));
}

// The queues that the caller may consume from.
void name_all(Target *t)
{
	if (consumes_everywhere(*t))
	{
		t->all = t->db;
		return;
	}
	const LoginRoles *login = t->for_login ? &login_roles(*t->db) : nullptr;
	const Rights &mine = rights(*t->db);
	t->named = static_cast<Named *>(palloc(sizeof(Named) * engine.limits().queues));
	for_queues(*t->db, [t, &mine, login](uint16_t slot, const Queue &q) {
		if (mine.may(q, kConsume) || (login != nullptr && OidIsValid(login->on(q.id))))
			t->named[t->nnamed++] = Named{nullptr, slot, q.generation, 0, true};
	});
}

bool asks_for_login(FunctionCallInfo fcinfo, int argument)
{
	return PG_NARGS() > argument && given(fcinfo, argument) && PG_GETARG_BOOL(argument);
}

// queues and kinds. `find` returns the slot of a queue, or kNoQueue.
template <class Find> void parse_target(FunctionCallInfo fcinfo, int queues, int kinds, Target *t, Find &&find)
{
	const bool with_kinds = PG_NARGS() > kinds && given(fcinfo, kinds);
	if (!given(fcinfo, queues))
	{
		if (with_kinds)
			ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("kinds needs queues"),
							errdetail("It has the kind of each element of queues.")));
		name_all(t);
	}
	else
	{
		int nkinds = 0;
		bool *any = nullptr;
		Datum *list = array_required(fcinfo, queues, "queues", TEXTOID, &t->nnamed);
		Datum *kind = with_kinds ? array_with_nulls(fcinfo, kinds, "kinds", TEXTOID, &any, &nkinds) : nullptr;
		if (with_kinds)
			same_length("queues", t->nnamed, "kinds", nkinds);
		if (t->nnamed == 0)
			ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("queues must not be empty"),
							errhint("Leave it out for all queues.")));
		if (t->nnamed > static_cast<int>(core::kWaitersPerProc))
			static_cast<void>(rights(*t->db)); // reads the rights on all queues at once
		t->named = static_cast<Named *>(palloc0(mul_size(sizeof(Named), static_cast<Size>(t->nnamed))));
		for (int i = 0; i < t->nnamed; ++i)
		{
			CHECK_FOR_INTERRUPTS();
			Named &named = t->named[i];
			named.name = name_in(list[i], "queue");
			named.any = !with_kinds || any[i];
			if (!named.any)
			{
				const char *name = name_in(kind[i], "kind");
				check_name("kind", name);
				named.kind = core::hash_name(name);
			}
			named.queue = find(named.name);
			if (named.queue != kNoQueue)
				named.generation = generation_of(*t->db, named.queue, named.name);
		}
	}
	set_wanted(t);
}

bool is_ready(const Target &t) noexcept
{
	return t.all != nullptr ? wait_check_all(*t.all) : wait_check(t.wanted, t.n);
}

// Before each look for jobs, because a sleep may be long. For queues that the caller named, raises 42501 if the right
// was revoked, and TQ002 if the queue was dropped. Where the caller waits for whatever queues there are, leaves out
// dropped ones and those without a right.
void check_rights(Target *t)
{
	AcceptInvalidationMessages();
	if (t->all != nullptr && !consumes_everywhere(*t))
	{
		t->all = nullptr;
		name_all(t);
		set_wanted(t);
	}
	int n = 0;
	for (int i = 0; i < t->nnamed; ++i)
	{
		const Named &named = t->named[i];
		const bool may = named.queue == kNoQueue || OidIsValid(consumer_of(*t, named.queue));
		if (named.name == nullptr)
		{
			if (!may || engine.queue(named.queue).generation != named.generation)
				continue;
			t->wanted[n] = t->wanted[i]; // `named` and `wanted` have the same order
			t->named[n++] = named;
		}
		else if (!may)
		{
			check_still_there(named.queue, named.generation, named.name, may);
			require_right(*t->db, named.queue, named.name, kConsume);
		}
	}
	if (t->nnamed > 0 && t->named[0].name == nullptr)
		t->n = t->nnamed = n;
	InvalidateCatalogSnapshot(); // it would hold back vacuum
}

// Registers as a waiter again; true if there is already a job to claim.
bool enter(Target &t)
{
	if (t.all != nullptr)
		wait_begin_all(*t.all);
	else
		wait_begin(t.wanted, t.n);
	require_still_active(*t.db, t.extension);
	if (!t.db->used || t.db->extension != t.extension)
		ereport(ERROR, (errcode(kErrNoSuchQueue), errmsg("the queues do not exist"),
						errdetail("The extension was dropped while this session waited for them.")));
	bool appeared = false; // a queue that was missing; the caller's claim then checks its right
	for (int i = 0; i < t.nnamed; ++i)
	{
		const Named &named = t.named[i];
		if (named.queue == kNoQueue)
		{
			wait_for_name(*t.db, named.name);
			appeared = appeared || queue_exists(*t.db, named.name);
		}
		else if (named.name != nullptr)
			check_still_there(named.queue, named.generation, named.name);
	}
	return appeared || is_ready(t);
}

constexpr pg::ColumnSpec kReady[] = {{"queue", TEXTOID}, {"kind", TEXTOID}, {"jobs", INT8OID}, {"role", TEXTOID}};

struct ReadyLane
{
	char kind[core::kNameMax];
	bool has_kind;
	int64 jobs;
};

// Copies the lanes of a queue that have startable jobs of these kinds; returns how many.
int copy_ready(const Queue &q, const Wanted &w, ReadyLane *out, int capacity) noexcept
{
	int n = 0;
	const int64 left = engine.starts_left(q);
	for (uint16_t i = q.lanes; i != core::kNoLane && n < capacity && left > 0; i = engine.lane(i).next)
	{
		const Lane &l = engine.lane(i);
		const uint64_t *end = w.kinds + w.nkinds;
		if (!l.in_startable || (w.nkinds > 0 && std::find(w.kinds, end, l.kind_hash) == end))
			continue;
		ReadyLane &r = out[n++];
		strlcpy(r.kind, l.kind, sizeof(r.kind));
		r.has_kind = l.has_kind;
		r.jobs = std::min<int64>(int64{l.ready.size} + l.heads.size, left);
	}
	return n;
}

// Adds the rows of a queue. A kind that comes between the two locks may be missing.
void put_ready(const Target &t, const Wanted &w, const pg::RowSet &rows)
{
	char name[core::kNameMax];
	lock_queue(w.queue);
	const bool some = engine.queue(w.queue).startable.min != kNil;
	const auto capacity = static_cast<int>(engine.queue(w.queue).kinds + 1);
	unlock_queue(w.queue);
	if (!some)
		return;
	const Oid consumer = consumer_of(t, w.queue);
	const char *role = OidIsValid(consumer) ? GetUserNameFromId(consumer, true) : nullptr;
	auto *lanes = static_cast<ReadyLane *>(palloc(sizeof(ReadyLane) * static_cast<Size>(capacity)));
	lock_queue(w.queue);
	strlcpy(name, engine.queue(w.queue).name, sizeof(name));
	const int n = copy_ready(engine.queue(w.queue), w, lanes, capacity);
	unlock_queue(w.queue);
	for (int i = 0; i < n; ++i)
	{
		pg::RowValues row;
		row.add_text(name);
		row.add_text(lanes[i].has_kind ? lanes[i].kind : nullptr);
		row.add_int8(lanes[i].jobs);
		row.add_text(role);
		rows.put(row);
	}
	pfree(lanes);
}

} // namespace

// queues, timeout, kinds, all_roles
TQ_FUNCTION(tq_wait)
{
	PreventCommandIfParallelMode("tq_wait()");
	const core::Micros timeout = interval_or(fcinfo, 1, "timeout", core::kNever, 0);
	const bool atomic = is_atomic(fcinfo);
	Db &db = loaded_database(fcinfo);
	Target t{.db = &db, .extension = db.extension, .for_login = asks_for_login(fcinfo, 3)};
	parse_target(fcinfo, 0, 2, &t, [&db, &t](const char *name) {
		const uint16_t slot = t.for_login && is_name(name) ? find_queue(db, name) : kNoQueue;
		return slot != kNoQueue && OidIsValid(consumer_of(t, slot)) ? slot : queue_for_claim(db, name);
	});
	drop_snapshots(atomic);
	const core::Micros until = end_of_wait(timeout);
	check_rights(&t);
	bool found = enter(t);
	while (!found && wait_sleep(until))
	{
		check_rights(&t);
		found = is_ready(t); // before this call returns its token
		if (!found)
			found = enter(t);
	}
	// if a job was found, the caller claims next; otherwise a token that came too late goes to another waiter
	wait_end(!found);
	PG_RETURN_VOID();
}

// queues, kinds, all_roles
TQ_FUNCTION(tq_ready)
{
	Db &db = loaded_database(fcinfo);
	Target t{.db = &db, .extension = db.extension, .for_login = asks_for_login(fcinfo, 2)};
	parse_target(fcinfo, 0, 1, &t, [&db, &t](const char *name) {
		check_name("queue", name);
		const uint16_t slot = find_queue(db, name);
		if (slot != kNoQueue && t.for_login && OidIsValid(consumer_of(t, slot)))
			return slot;
		if (slot == kNoQueue)
			require_right_to_name(db, name, kConsume);
		else
			require_right(db, slot, name, kConsume);
		return slot;
	});
	const pg::RowSet rows = pg::begin_rows(fcinfo, pg::row_shape(kReady));
	for (int i = 0; i < t.n; ++i)
		put_ready(t, t.wanted[i], rows);
	if (t.all != nullptr)
		static_cast<void>(any_startable_queue(db, [&t, &rows](uint16_t slot) {
			return put_ready(t, Wanted{slot, 0, nullptr}, rows), false;
		}));
	return static_cast<Datum>(0);
}

} // namespace tq
