// Drops a segment without blocking other sessions.
// Regime: PG. Locks: AccessExclusiveLock on both tables, their TOAST tables and all indexes, each only if it is free
// (H21): waiting would block all later sessions. Kept to the end of the transaction if the drop proceeds, else
// released. May raise what performDeletion raises, such as dependent_objects_still_exist for a user's view.
#include "journal/tables.hpp"
#include "pg/owner.hpp"

namespace tq::journal
{

namespace
{

constexpr int kMaxLocks = 64;

struct Locks
{
	int n;
	Oid oids[kMaxLocks];
};

bool try_lock(Locks *locks, Oid relation)
{
	if (locks->n == kMaxLocks || !ConditionalLockRelationOid(relation, AccessExclusiveLock))
		return false;
	locks->oids[locks->n++] = relation;
	return true;
}

void release(Locks *locks)
{
	while (locks->n > 0)
		UnlockRelationOid(locks->oids[--locks->n], AccessExclusiveLock);
}

bool exists(Oid relation) { return OidIsValid(relation) && SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relation)); }

// Indexes and TOAST of a locked table. A vacuum or amcheck may hold one of these without its table.
bool try_lock_parts(Locks *locks, Oid table)
{
	Relation rel = relation_open(table, NoLock);
	List *indexes = RelationGetIndexList(rel);
	const Oid toast = rel->rd_rel->reltoastrelid;
	bool locked = true;
	ListCell *cell;

	foreach (cell, indexes)
		locked = locked && try_lock(locks, lfirst_oid(cell));
	list_free(indexes);
	relation_close(rel, NoLock);
	return locked && (!OidIsValid(toast) || (try_lock(locks, toast) && try_lock_parts(locks, toast)));
}

} // namespace

DropResult drop_segment(const Segment &segment, bool (*verify)(void *arg), void *arg)
{
	Locks locks{};
	ObjectAddresses *targets = new_object_addresses();
	bool busy = false;
	bool any = false;

	for (const Oid table : {segment.job, segment.event})
	{
		if (!OidIsValid(table))
			continue;
		busy = busy || !try_lock(&locks, table);
		if (busy || !exists(table))
			continue;
		busy = !try_lock_parts(&locks, table);
		ObjectAddress target;
		ObjectAddressSet(target, RelationRelationId, table);
		add_exact_object_address(&target, targets);
		any = true;
	}
	if (busy || (any && !verify(arg)))
	{
		release(&locks);
		free_object_addresses(targets);
		return busy ? DropResult::busy : DropResult::refused;
	}
	if (any)
		performMultipleDeletions(targets, DROP_RESTRICT, PERFORM_DELETION_INTERNAL);
	free_object_addresses(targets);

	const Oid extension = get_extension_oid("tq", true);
	if (OidIsValid(extension))
	{
		const Oid types[] = {INT4OID};
		const Datum values[] = {Int32GetDatum(segment.number)};
		pg::sql_as_owner(extension, "DELETE FROM tq.segment WHERE number = $1", {types, values});
	}
	CommandCounterIncrement();
	return any ? DropResult::dropped : DropResult::gone;
}

} // namespace tq::journal
