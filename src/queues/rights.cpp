#include "queues/rights.hpp"

#include "guc.hpp"
#include "queues/near_queues.hpp"
#include "queues/queue_names.hpp"
#include "queues/queue_rows.hpp"
#include "shmem/grant_changes.hpp"
#include "pg/extension.hpp"
#include "pg/json_values.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

struct Memory
{
	// Grows with every change that this backend is notified of: roles, memberships, databases (the owner is a member of
	// pg_database_owner), tq.acl or its owner. For changed rows of tq.acl, the trigger tq.acl_changed() invalidates the
	// table's relcache entry. Other sessions are notified at commit; the changing transaction at its next command, and
	// again if it rolls back.
	uint32 version = 1;
	uint32 roles_version = 1; // the same without changes of tq.acl
	Oid acl_table = InvalidOid;

	// Several, for sessions that switch between roles (SECURITY DEFINER, poolers).
	Rights remembered[4];
	int last = 0;
	int next_victim = 0;
};
Memory memory;

void on_relcache_invalidation(Datum, Oid relid)
{
	memory.version += relid == memory.acl_table || relid == InvalidOid;
	memory.roles_version += relid == InvalidOid;
}

void on_syscache_invalidation(Datum, int, uint32)
{
	++memory.version;
	++memory.roles_version;
}

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

uint8 rights_named(const char *name) noexcept
{
	for (const Privilege &p : kPrivileges)
		if (strcmp(p.name, name) == 0)
			return p.rights;
	return 0;
}

// Adds rights for a queue whose number is the greatest so far.
void append(Rights *to, int32 queue_id, uint8 granted)
{
	if (to->list.n > 0 && to->list.last().queue_id == queue_id)
		to->list.last().mask |= granted;
	else
		to->list.append(TopMemoryContext, QueueRights{queue_id, granted});
}

// Moves the last element to its position by number.
void sort_last(Rights *to) noexcept
{
	for (int64 i = to->list.n - 1; i > 0 && to->list[i - 1].queue_id > to->list[i].queue_id; --i)
		std::swap(to->list[i - 1], to->list[i]);
}

// Reads the rights on one queue, or on all, including those of memberships.
void read_grants(const Db &db, Oid user, const int32 *queue_id, Rights *to)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	if (queue_id == nullptr)
	{
		to->list.n = 0;
		pg::sql("SELECT queue_id, role::oid, privilege FROM tq.acl ORDER BY queue_id", {}, true, 0);
	}
	else
	{
		const Oid types[] = {INT4OID};
		const Datum values[] = {Int32GetDatum(*queue_id)};
		pg::sql("SELECT queue_id, role::oid, privilege FROM tq.acl WHERE queue_id IN (0, $1) ORDER BY queue_id",
				{types, values}, true, 0);
		append(to, *queue_id, 0);
	}
	for (uint64 i = 0; i < SPI_processed; ++i)
	{
		bool no_role = false;
		const int32 of = pg::spi_int4(i, "queue_id", -1);
		const Oid role = DatumGetObjectId(pg::spi_value(i, "role", OIDOID, &no_role));
		const char *privilege = pg::spi_text(i, "privilege");
		if (no_role || privilege == nullptr || !has_privs_of_role(user, role))
			continue;
		const uint8 granted = rights_named(privilege);
		if (of == kAllQueues)
			to->everywhere |= granted;
		else
			append(to, of, granted);
	}
	if (queue_id != nullptr)
		sort_last(to);
	to->whole = queue_id == nullptr;
	pg::leave_owner(scope);
}

// Whether these rights include what is asked for: this queue, or every queue.
bool answers(const Rights &r, const Db &db, Oid user, const int32 *queue_id) noexcept
{
	return r.user == user && r.extension == db.extension && r.version == memory.version &&
		   (queue_id != nullptr ? r.knows(*queue_id) : r.whole);
}

const Rights &look_up(const Db &db, Oid user, const int32 *queue_id)
{
	if (answers(memory.remembered[memory.last], db, user, queue_id))
		return memory.remembered[memory.last];
	int slot = -1;
	for (int i = 0; i < static_cast<int>(lengthof(memory.remembered)); ++i)
		if (memory.remembered[i].user == user && memory.remembered[i].extension == db.extension)
			slot = i;
	if (slot >= 0 && answers(memory.remembered[slot], db, user, queue_id))
		return memory.remembered[memory.last = slot];
	const bool stands = slot >= 0 && memory.remembered[slot].version == memory.version;
	if (slot < 0)
	{
		slot = memory.next_victim;
		memory.next_victim = (slot + 1) % static_cast<int>(lengthof(memory.remembered));
	}
	register_once();
	Rights &r = memory.remembered[slot];
	r.user = InvalidOid; // invalid if the code below raises an error
	if (!stands)
	{
		// The result may lack a change that this backend is notified of during the read. So keep the old version: the
		// next call reads again.
		r.list.n = 0;
		r = Rights{InvalidOid, db.extension, memory.version, memory.roles_version, grant_clock(), 0, false, r.list};
		pg::ExtensionFacts facts;
		if (!pg::extension_facts(db.extension, &facts))
			ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("extension \"tq\" does not exist")));
		memory.acl_table = get_relname_relid("acl", get_namespace_oid("tq", false));
		if (has_privs_of_role(user, facts.owner))
		{
			r.everywhere = kEveryRight;
			r.whole = true;
			r.clock = 0; // the owner's rights do not depend on tq.acl
		}
	}
	if (!r.whole)
		read_grants(db, user, queue_id, &r);
	r.user = user;
	return memory.remembered[memory.last = slot];
}

// The error is the same whether the queue exists or not. `or_create`: the call would create a missing queue.
[[noreturn]] void raise_denied(const Db &db, const char *name, uint8 any_of, bool or_create = false)
{
	ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE), errmsg("permission denied for queue \"%s\"", name),
					errdetail("The privilege needed is %s%s.", names_of(any_of),
							  or_create ? ", or create if there is no such queue" : ""),
					errhint("%sA role that may manage the queue can grant it with tq_grant.",
							perhaps_queue(db, name))));
}

} // namespace

const QueueRights *Rights::position_of(int32 queue_id) const noexcept
{
	return std::lower_bound(list.begin(), list.end(), queue_id,
							[](const QueueRights &r, int32 q) noexcept { return r.queue_id < q; });
}

uint8 Rights::mask_of(int32 queue_id) const noexcept
{
	const QueueRights *at = position_of(queue_id);
	return at != list.end() && at->queue_id == queue_id ? at->mask : 0;
}

bool Rights::knows(int32 queue_id) const noexcept
{
	const QueueRights *at = position_of(queue_id);
	return whole || queue_id == kAllQueues || (at != list.end() && at->queue_id == queue_id);
}

const Rights &rights(const Db &db)
{
	return look_up(db, GetUserId(), nullptr);
}

const Rights &rights_on(const Db &db, int32 queue_id)
{
	return look_up(db, GetUserId(), &queue_id);
}

namespace
{

// The remembered rights of the current user, even if rights on some queues have changed since. Null if rights on all
// queues may have changed.
const Rights *remembered_rights(const Db &db) noexcept
{
	const Rights &r = memory.remembered[memory.last];
	const bool stands = r.user == GetUserId() && r.extension == db.extension && r.roles_version == memory.roles_version;
	return stands && grants_unchanged_since(r.clock) ? &r : nullptr;
}

} // namespace

bool remembers_right(const Db &db, uint16_t slot, uint8 any_of) noexcept
{
	const Rights *r = remembered_rights(db);
	return r != nullptr && grants_unchanged_since(r->clock, slot) && r->may(engine.queue(slot), any_of);
}

// A missing right may be new: another process may just have written the queue's row.
bool has_right(const Db &db, uint16_t slot, uint8 any_of)
{
	if (remembers_right(db, slot, any_of))
		return true;
	const Queue &q = engine.queue(slot);
	if (rights_on(db, q.id).may(q, any_of))
		return true;
	AcceptInvalidationMessages();
	return rights_on(db, q.id).may(q, any_of);
}

void require_right(const Db &db, uint16_t slot, const char *name, uint8 any_of)
{
	if (!has_right(db, slot, any_of))
		raise_denied(db, name, any_of);
}

void require_right_or_create(const Db &db, uint16_t slot, const char *name, uint8 any_of)
{
	if (!has_right(db, slot, any_of))
		raise_denied(db, name, any_of, true);
}

bool has_right_everywhere(const Db &db, uint8 any_of)
{
	const Rights *r = remembered_rights(db);
	return ((r != nullptr ? *r : rights_on(db, kAllQueues)).everywhere & any_of) != 0;
}

Oid LoginRoles::on(int32 queue_id) const noexcept
{
	const Consumer *at = std::lower_bound(list.begin(), list.end(), queue_id,
										  [](const Consumer &c, int32 q) noexcept { return c.queue_id < q; });
	return at != list.end() && at->queue_id == queue_id ? at->role : everywhere;
}

const LoginRoles &login_roles(const Db &db)
{
	static LoginRoles roles;
	const Oid login = GetSessionUserId();
	if (InLocalUserIdChange() || InSecurityRestrictedOperation())
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("cannot use the roles of the login within a security-definer function"),
						errdetail("SET ROLE is not allowed there either.")));
	AcceptInvalidationMessages();
	register_once();
	if (roles.login == login && roles.extension == db.extension && roles.version == memory.version)
		return roles;
	roles.version = 0; // invalid if the code below raises an error
	roles.list.n = 0;
	const uint32 version = memory.version; // a change during the read makes the next call read again
	pg::ExtensionFacts facts;
	if (!pg::extension_facts(db.extension, &facts))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("extension \"tq\" does not exist")));
	memory.acl_table = get_relname_relid("acl", get_namespace_oid("tq", false));
	roles.everywhere = pg::may_set_role(login, facts.owner) ? facts.owner : InvalidOid;
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("SELECT a.queue_id, r.oid AS role FROM tq.acl a JOIN pg_roles r ON r.oid = a.role"
			" WHERE a.privilege = 'consume' ORDER BY a.queue_id, r.rolname",
			{}, true, 0);
	for (uint64 i = 0; i < SPI_processed; ++i)
	{
		bool no_role = false;
		const int32 of = pg::spi_int4(i, "queue_id", -1);
		const Oid role = DatumGetObjectId(pg::spi_value(i, "role", OIDOID, &no_role));
		const bool known = of == kAllQueues ? OidIsValid(roles.everywhere)
											: roles.list.n > 0 && roles.list.last().queue_id == of;
		if (no_role || known || !pg::may_set_role(login, role))
			continue;
		if (of == kAllQueues)
			roles.everywhere = role;
		else
			roles.list.append(TopMemoryContext, LoginRoles::Consumer{of, role});
	}
	pg::leave_owner(scope);
	roles.login = login;
	roles.extension = db.extension;
	roles.version = version;
	return roles;
}

bool role_may(const Db &db, Oid role, uint16_t slot, uint8 any_of)
{
	const Queue &q = engine.queue(slot);
	const auto may = [&] {
		return SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role)) && look_up(db, role, &q.id).may(q, any_of);
	};
	if (may())
		return true;
	AcceptInvalidationMessages();
	return may();
}

void require_right_to_name(const Db &db, const char *name, uint8 any_of)
{
	if (!has_right_everywhere(db, any_of))
		raise_denied(db, name, any_of);
}

void require_right_to_make(const Db &db, const char *name, uint8 any_of)
{
	const uint8 everywhere = rights_on(db, kAllQueues).everywhere;
	if ((everywhere & kCreate) != 0)
		return;
	if (any_of != 0 && (everywhere & any_of) == 0)
		raise_denied(db, name, any_of, true);
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE), errmsg("permission denied to create queue \"%s\"", name),
			 errdetail("%sThe privilege needed is create.", any_of != 0 ? "There is no such queue. " : ""),
			 errhint("%sA role that may manage all queues can grant it with tq_grant, queue => '*', or create the "
					 "queue.",
					 any_of != 0 ? perhaps_queue(db, name) : "")));
}

void require_right_to_await(const Db &db, const char *name, uint8 any_of)
{
	if (!has_right_everywhere(db, any_of | kCreate))
		raise_denied(db, name, any_of);
}

uint16_t queue_with_right(Db &db, const char *name, uint8 any_of)
{
	const uint16_t slot = find_or_read(db, name); // before the first load, a queue may have only its row
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
	const uint32 generation = generation_of(db, slot, name);
	ensure_queue_row(db, slot); // may wait
	const int32 id = engine.queue(slot).id;
	check_still_there(slot, generation, name); // else it is the number of another queue
	return id;
}

void lock_queue_row(const Db &db, int32 queue_id)
{
	const Oid types[] = {INT4OID};
	const Datum values[] = {Int32GetDatum(queue_id)};
	static_cast<void>(
		pg::sql_as_owner(db.extension, "SELECT FROM tq.queue WHERE id = $1 FOR KEY SHARE", {types, values}));
}

void require_right_everywhere(const Db &db, const char *what, uint8 any_of)
{
	if (!has_right_everywhere(db, any_of))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE), errmsg("permission denied for %s", what),
						errdetail("The privilege needed is %s on all queues.", names_of(any_of)),
						errhint("A role that may manage all queues can grant it with tq_grant, queue => '*'.")));
}

void require_testing(const Db &db, const char *what)
{
	pg::ExtensionFacts facts;
	if (!pg::extension_facts(db.extension, &facts) || !has_privs_of_role(GetUserId(), facts.owner))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE), errmsg("permission denied for %s", what),
						errdetail("Only superusers and the owner of the extension may call it.")));
	if (!guc::testing)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg("%s is for tests only", what),
						errdetail("The setting tq.testing is off."),
						errhint("In a database that exists for tests, use ALTER DATABASE ... SET tq.testing = on, and "
								"connect again.")));
}

void grant_to_creator(const Queue &q)
{
	if (q.creator == InvalidOid)
		return;
	const Oid types[] = {INT4OID, OIDOID};
	const Datum values[] = {Int32GetDatum(q.id), ObjectIdGetDatum(q.creator)};
	begin_grants_of(q.id);
	pg::sql("INSERT INTO tq.acl (queue_id, role, privilege)"
			" SELECT $1, $2::regrole, p FROM unnest('{produce,consume,manage,monitor}'::text[]) p"
			" WHERE EXISTS (SELECT FROM pg_roles WHERE oid = $2) ON CONFLICT DO NOTHING",
			{types, values}, false, 0);
	end_grants_of();
	if (records_creators())
		pg::sql("INSERT INTO tq.creator (queue_id, role) SELECT $1, $2::regrole"
				" WHERE EXISTS (SELECT FROM pg_roles WHERE oid = $2) ON CONFLICT DO NOTHING",
				{types, values}, false, 0);
}

bool records_creators() { return OidIsValid(get_relname_relid("creator", get_namespace_oid("tq", false))); }

const char *names_of(uint8 any_of)
{
	StringInfoData s;
	initStringInfo(&s);
	for (const Privilege &p : kPrivileges)
		if ((p.rights & any_of) != 0)
			appendStringInfo(&s, "%s%s", s.len > 0 ? " or " : "", p.name);
	return s.data;
}

uint8 parse_right(const char *name)
{
	const uint8 rights = rights_named(name);
	if (rights == 0)
	{
		const char *words[lengthof(kPrivileges) + 1] = {};
		for (Size i = 0; i < lengthof(kPrivileges); ++i)
			words[i] = kPrivileges[i].name;
		pg::unknown_word(psprintf("unknown privilege \"%s\"", name), name, "Known privileges are", words);
	}
	return rights;
}

} // namespace tq
