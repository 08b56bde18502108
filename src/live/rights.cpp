#include "live/rights.hpp"

#include "live/attach.hpp"
#include "live/queue_settings.hpp"
#include "live/segments.hpp"
#include "live/verbs.hpp"
#include "live/xact.hpp"
#include "pg/extension.hpp"
#include "pg/owner.hpp"

namespace tq::live
{

namespace
{

// Grows with every change of roles, of memberships, of databases (whose owner is the member of pg_database_owner), and of tq.acl or its
// owner that this backend hears of. A change of rows of tq.acl is told by tq.acl_changed(), a trigger that invalidates the table's relcache
// entry: so it comes at the commit for others, at the next command for its own transaction, and again if that is rolled back.
uint32 version = 1;
Oid acl_table = InvalidOid;

// Sessions that change roles back and forth (SECURITY DEFINER, poolers) find what they knew.
Rights remembered[4];
int last = 0;
int next_victim = 0;

void on_relcache_invalidation(Datum, Oid relid)
{
	if (relid == acl_table || relid == InvalidOid)
		++version;
}

void on_syscache_invalidation(Datum, int, uint32) { ++version; }

void register_once()
{
	static bool registered = false;
	if (registered)
		return;
	CacheRegisterRelcacheCallback(on_relcache_invalidation, 0);
	CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, on_syscache_invalidation, 0);
	CacheRegisterSyscacheCallback(AUTHOID, on_syscache_invalidation, 0);
	CacheRegisterSyscacheCallback(DATABASEOID, on_syscache_invalidation, 0);
	registered = true;
}

uint8 right_named(const char *name) noexcept
{
	for (size_t i = 0; i < lengthof(kRightNames); ++i)
		if (strcmp(kRightNames[i], name) == 0)
			return static_cast<uint8>(1 << i);
	return 0;
}

// Rows by queue_id; what memberships bring is added up. The list is made in TopMemoryContext.
void read_grants(const Db &db, Oid user, Rights *to)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("SELECT queue_id, role, privilege FROM tq.acl ORDER BY queue_id", 0, nullptr, nullptr, nullptr, true, 0);
	QueueRights *list = nullptr;
	if (SPI_processed > 0)
		list = static_cast<QueueRights *>(
			MemoryContextAlloc(TopMemoryContext, mul_size(sizeof(QueueRights), static_cast<Size>(SPI_processed))));
	to->list = list; // from here on the next reader frees it
	for (uint64 i = 0; i < SPI_processed; ++i)
	{
		HeapTuple tuple = SPI_tuptable->vals[i];
		TupleDesc desc = SPI_tuptable->tupdesc;
		bool isnull = false;
		const int32 queue_id = DatumGetInt32(SPI_getbinval(tuple, desc, 1, &isnull));
		const Oid role = DatumGetObjectId(SPI_getbinval(tuple, desc, 2, &isnull));
		const Datum privilege = SPI_getbinval(tuple, desc, 3, &isnull);
		if (!has_privs_of_role(user, role))
			continue;
		const uint8 bit = right_named(text_to_cstring(DatumGetTextPP(privilege)));
		if (queue_id == kAllQueues)
			to->everywhere |= bit;
		else if (to->n > 0 && list[to->n - 1].queue_id == queue_id)
			list[to->n - 1].mask |= bit;
		else
			list[to->n++] = QueueRights{queue_id, bit};
	}
	pg::leave_owner(scope);
}

const Rights &look_up(const Db &db, Oid user)
{
	int place = -1;
	for (int i = 0; i < static_cast<int>(lengthof(remembered)); ++i)
		if (remembered[i].user == user && remembered[i].extension == db.extension)
			place = i;
	if (place >= 0 && remembered[place].version == version)
		return remembered[last = place];
	if (place < 0)
		place = next_victim++ % static_cast<int>(lengthof(remembered));
	register_once();
	Rights &r = remembered[place];
	if (r.list != nullptr)
		pfree(r.list);
	r = Rights{}; // of nobody, should what follows raise an error
	// what is heard of while the rest is read may not be in it: then it is read again next time
	const uint32 before = version;
	pg::ExtensionFacts facts;
	if (!pg::extension_facts(db.extension, &facts))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("extension \"tq\" does not exist")));
	acl_table = get_relname_relid("acl", get_namespace_oid("tq", false));
	if (has_privs_of_role(user, facts.owner))
		r.everywhere = kEveryRight;
	else
		read_grants(db, user, &r);
	r.user = user;
	r.extension = db.extension;
	r.version = before;
	return remembered[last = place];
}

const char *names_of(uint8 any_of)
{
	StringInfoData s;
	initStringInfo(&s);
	for (size_t i = 0; i < lengthof(kRightNames); ++i)
		if ((any_of & (1 << i)) != 0)
			appendStringInfo(&s, "%s%s", s.len > 0 ? " or " : "", kRightNames[i]);
	return s.data;
}

[[noreturn]] void raise_denied(const char *name, uint8 any_of)
{
	ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE), errmsg("permission denied for queue \"%s\"", name),
					errdetail("The privilege needed is %s.", names_of(any_of)),
					errhint("Who may manage the queue can grant it with tq_grant.")));
}

// Only what this backend has heard of may have been missing: the rights of a queue that another process has just written.
bool has_right(const Db &db, const Queue &q, uint8 any_of)
{
	if (rights(db).may(q, any_of))
		return true;
	AcceptInvalidationMessages();
	return rights(db).may(q, any_of);
}

// The queue of a job that has no entry, by the journal; false if there is no such job.
bool find_in_journal(const Db &db, JobId id, int32 *queue_id)
{
	if (op_count() > 0 || has_bulks())
		CommandCounterIncrement();
	int slots[kMostSlots];
	const int n = slots_of_id(db, id, slots);
	bool found = false;
	Snapshot s = RegisterSnapshot(GetLatestSnapshot());
	for (int i = 0; i < n && !found; ++i)
	{
		journal::Segment tables;
		journal::JobRow row;
		ItemPointerData tid;
		found = tables_at(db, slots[i], &tables) && journal::find_job(tables, id, s, false, &row, &tid);
		if (found)
			*queue_id = row.queue_id;
	}
	UnregisterSnapshot(s);
	return found;
}

} // namespace

uint8 Rights::mask_of(int32 queue_id) const noexcept
{
	const QueueRights *begin = list, *end = list + n;
	const QueueRights *at =
		std::lower_bound(begin, end, queue_id, [](const QueueRights &r, int32 q) noexcept { return r.queue_id < q; });
	return at != end && at->queue_id == queue_id ? at->mask : 0;
}

const Rights &rights(const Db &db)
{
	const Oid user = GetUserId();
	const Rights &r = remembered[last];
	if (r.user == user && r.version == version && r.extension == db.extension)
		return r;
	return look_up(db, user);
}

void require_right(const Db &db, uint16_t slot, const char *name, uint8 any_of)
{
	if ((rights(db).everywhere & any_of) == 0 && !has_right(db, engine.queue(slot), any_of))
		raise_denied(name, any_of);
}

void require_right_to_name(const Db &db, const char *name, uint8 any_of)
{
	if ((rights(db).everywhere & any_of) == 0)
		raise_denied(name, any_of);
}

void require_right_to_make(const Db &db, const char *name, uint8 any_of)
{
	const uint8 everywhere = rights(db).everywhere;
	if ((everywhere & kCreate) != 0)
		return;
	if ((everywhere & any_of) == 0)
		raise_denied(name, any_of);
	ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE), errmsg("permission denied to create queue \"%s\"", name),
					errdetail("There is no such queue; to make one takes the privilege create."),
					errhint("Who may manage all queues can grant it with tq_grant, queue => '*', or create the queue.")));
}

uint16_t queue_with_right(Db &db, const char *name, uint8 any_of)
{
	uint16_t slot = find_queue(db, name);
	if (slot == kNoQueue && read_queues(db, name) > 0) // before the first load
		slot = find_queue(db, name);
	if (slot == kNoQueue)
		require_right_to_name(db, name, any_of);
	else
		require_right(db, slot, name, any_of);
	return require_queue(db, name);
}

int32 number_to_manage(Db &db, const char *name)
{
	check_name("queue", name);
	const uint16_t slot = queue_with_right(db, name, kManage);
	ensure_queue_row(db, slot);
	return engine.queue(slot).id;
}

void require_right_everywhere(const Db &db, const char *what, uint8 any_of)
{
	if ((rights(db).everywhere & any_of) == 0)
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE), errmsg("permission denied for %s", what),
						errdetail("The privilege needed is %s on all queues.", names_of(any_of)),
						errhint("Who may manage all queues can grant it with tq_grant, queue => '*'.")));
}

Access access_to_job(Db &db, JobId id, uint8 any_of)
{
	if ((rights(db).everywhere & any_of) != 0)
		return Access::granted;
	uint16_t slot = 0;
	int32 queue_id = 0;
	const Op *own = nullptr;
	if (engine.find(index_of(db), id, &slot) != kNil)
		queue_id = engine.queue(slot).id; // a job keeps its queue
	else if ((own = pending_enqueue(id)) != nullptr)
		queue_id = engine.queue(slot = own->queue).id;
	else if (!find_in_journal(db, id, &queue_id))
		return Access::absent;
	else
		slot = queue_of_id(db, queue_id);
	const Rights &mine = rights(db);
	const auto may = [&](uint8 which) noexcept {
		return slot != kNoQueue ? mine.may(engine.queue(slot), which) : mine.may(queue_id, which);
	};
	return may(any_of) ? Access::granted : may(kQueueRights) ? Access::denied : Access::unseen;
}

void raise_job_denied(JobId id, uint8 any_of)
{
	ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					errmsg("permission denied for job %lld", static_cast<long long>(id)),
					errdetail("The privilege needed on its queue is %s.", names_of(any_of)),
					errhint("Who may manage the queue can grant it with tq_grant.")));
}

void require_job(Db &db, JobId id, uint8 any_of)
{
	switch (access_to_job(db, id, any_of))
	{
		case Access::unseen:
			raise_no_job(id);
		case Access::denied:
			raise_job_denied(id, any_of);
		default:
			break;
	}
}

void grant_to_creator(const Queue &q)
{
	if (q.creator == InvalidOid)
		return;
	const Oid types[] = {INT4OID, OIDOID};
	const Datum values[] = {Int32GetDatum(q.id), ObjectIdGetDatum(q.creator)};
	pg::sql("INSERT INTO tq.acl (queue_id, role, privilege)"
			" SELECT $1, $2::regrole, p FROM unnest('{produce,consume,manage,monitor}'::text[]) p"
			" WHERE EXISTS (SELECT FROM pg_roles WHERE oid = $2) ON CONFLICT DO NOTHING",
			2, types, values, nullptr, false, 0);
}

uint8 parse_right(const char *name)
{
	const uint8 bit = right_named(name);
	if (bit == 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("unknown privilege \"%s\"", name),
						errhint("Known privileges are produce, consume, manage, monitor, create.")));
	return bit;
}

} // namespace tq::live
