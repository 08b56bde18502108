#include "live/dependencies.hpp"

#include "guc.hpp"
#include "journal/endings.hpp"
#include "live/attach.hpp"
#include "live/loader.hpp"
#include "live/segments.hpp"
#include "pg/function.hpp"

extern "C"
{
#include "commands/trigger.h"
#include "common/hashfn.h"
}

namespace tq::live
{

namespace
{

// What this transaction owes. In TopTransactionContext, forgotten when it ends. A savepoint that is rolled back leaves its part: that costs
// the resolver a look.
JobId *awaited = nullptr; // parents
int nawaited = 0;
int awaited_room = 0;
JobId *notes = nullptr;
int nnotes = 0;
int notes_room = 0;
bool all_at_commit = false;
Db *opened_in = nullptr; // in whose Awaited::openers it is counted
Oid opened_extension = InvalidOid; // ... if that is still the same
SubTransactionId writing = InvalidSubTransactionId; // in which a statement of our own is under way
uint32 emptied_before = 0;

void add(JobId **list, int *n, int *room, JobId id)
{
	if (*n > 0 && (*list)[*n - 1] == id)
		return;
	if (*n == *room)
	{
		*room = std::max(*room * 2, 64);
		const Size bytes = sizeof(JobId) * static_cast<Size>(*room);
		*list = static_cast<JobId *>(*list == nullptr ? MemoryContextAllocHuge(TopTransactionContext, bytes)
													  : repalloc_huge(*list, bytes));
	}
	(*list)[(*n)++] = id;
}

uint32 bit_of_parent(JobId id) noexcept { return murmurhash32(static_cast<uint32>(id ^ (id >> 32))) % kAwaitedBits; }

const char *name_of_end(journal::FoldState state) noexcept
{
	for (const journal::Ending &e : journal::kEndings)
		if (e.state == state)
			return e.name;
	return nullptr;
}

// Of one segment; false if the job is not there, or lives on in segment 0.
bool outcome_in(const journal::Segment &tables, JobId id, Snapshot snapshot, Outcome *out)
{
	journal::JobRow row;
	ItemPointerData tid;
	if (!journal::find_job(tables, id, snapshot, false, &row, &tid))
		return false;
	journal::EventRow *events = nullptr;
	const int n = journal::job_events(tables, id, snapshot, &events, false); // it may have written a thousand checkpoints
	journal::Fold fold;
	journal::EventRow last{};
	*out = Outcome{};
	out->exists = true;
	out->queue_id = row.queue_id;
	for (int i = 0; i < n; ++i)
	{
		const bool ended = fold.terminal();
		journal::fold_event(fold, events[i]);
		// whoever purges the record of a job does not change how it has ended
		if (fold.terminal() && !(ended && fold.state == journal::FoldState::purged))
		{
			last = events[i];
			out->state = name_of_end(fold.state);
		}
	}
	if (fold.state == journal::FoldState::moved)
		return false;
	out->ended = fold.terminal();
	out->succeeded = out->ended && last.type == journal::EventType::succeeded;
	static_cast<void>(out->ended && journal::find_event(tables, id, last.step, snapshot, &last));
	if (out->succeeded)
		out->result = last.detail;
	else if (out->ended)
		out->error = last.reason;
	pfree(events);
	return true;
}

} // namespace

Outcome outcome_of(const Db &db, JobId id)
{
	Outcome out{};
	int slots[kMostSlots];
	const int n = slots_of_id(db, id, slots);
	Snapshot snapshot = committed_snapshot();
	bool found = false;
	for (int i = 0; i < n && !found; ++i)
	{
		journal::Segment tables;
		found = tables_at(db, slots[i], &tables) && outcome_in(tables, id, snapshot, &out);
	}
	UnregisterSnapshot(snapshot);
	return found ? out : Outcome{};
}

pg::OwnerScope enter_registry(const Db &db)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	// plans are kept, and may be made when a table is small that grows at once
	static_cast<void>(set_config_option("enable_seqscan", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false));
	writing = GetCurrentSubTransactionId();
	return scope;
}

void leave_registry(const pg::OwnerScope &scope)
{
	writing = InvalidSubTransactionId;
	pg::leave_owner(scope);
}

// --- the transaction that enqueues a child -------------------------------------------------------------------------

void look_at_parents(Db &db) noexcept
{
	if (opened_in == nullptr)
	{
		db.awaited.openers.fetch_add(1);
		opened_in = &db;
		opened_extension = db.extension;
	}
}

void await_parent(JobId parent) { add(&awaited, &nawaited, &awaited_room, parent); }

void note_at_commit(JobId parent_or_minus_child) { add(&notes, &nnotes, &notes_room, parent_or_minus_child); }

bool dependencies_pending() noexcept { return nawaited > 0 || nnotes > 0 || all_at_commit; }

void await_before_commit() noexcept
{
	if (nawaited == 0)
		return;
	Db &db = *current_db();
	emptied_before = db.awaited.emptied.load();
	for (int i = 0; i < nawaited; ++i)
		await_now(db, awaited[i]);
	TQ_WAIT_POINT_NOFAIL("precommit-awaited");
}

void note_after_commit() noexcept
{
	if (!dependencies_pending())
		return;
	// rows may have been written by a session that has not used tq
	for (int i = 0; all_at_commit && preloaded() && i < guc::max_databases; ++i)
		if (db_at(i).used && db_at(i).database == MyDatabaseId)
		{
			db_at(i).outside_changed_at.store(wall_now()); // before: the jobs of these rows may come after them
			note_all(db_at(i));
		}
	if (nawaited + nnotes == 0)
		return;
	Db &db = *current_db();
	if (nawaited > 0 && (emptied_before % 2 != 0 || db.awaited.emptied.load() != emptied_before))
		note_all(db); // the bits may be gone again
	for (int i = 0; i < nnotes; ++i)
		note_for_resolver(db, notes[i]);
}

void end_dependencies() noexcept
{
	awaited = notes = nullptr;
	nawaited = awaited_room = nnotes = notes_room = 0;
	all_at_commit = false;
	writing = InvalidSubTransactionId;
	if (opened_in != nullptr && opened_in->used && opened_in->extension == opened_extension)
		opened_in->awaited.openers.fetch_sub(1);
	opened_in = nullptr;
}

void note_if_awaited(Db &db, JobId id) noexcept
{
	const uint32 bit = bit_of_parent(id);
	if ((db.awaited.filter[bit / 64].load() >> (bit % 64) & 1) != 0)
		note_for_resolver(db, id);
}

// --- what everybody shares -------------------------------------------------------------------------------------------

void await_now(Db &db, JobId parent) noexcept
{
	const uint32 bit = bit_of_parent(parent);
	const uint64 mask = uint64{1} << (bit % 64);
	if ((db.awaited.filter[bit / 64].load() & mask) != 0)
		return;
	db.awaited.bits.fetch_add(1); // before: whoever sees a bit set must not think that there are none
	if ((db.awaited.filter[bit / 64].fetch_or(mask) & mask) != 0)
		db.awaited.bits.fetch_sub(1);
}

void note_for_resolver(Db &db, JobId what) noexcept
{
	constexpr uint32 kTries = 16;
	const uint32 start = murmurhash32(static_cast<uint32>(what));
	bool done = false;
	for (uint32 i = 0; i < kTries && !done; ++i)
	{
		int64 there = 0;
		done = db.awaited.noted[(start + i) % kNoted].compare_exchange_strong(there, what) || there == what;
	}
	if (!done)
		db.awaited.all.store(true);
	if (!db.awaited.some.exchange(true))
		wake_scheduler(db);
}

void note_all(Db &db) noexcept
{
	db.awaited.all.store(true);
	db.awaited.complete.store(false);
	if (!db.awaited.some.exchange(true))
		wake_scheduler(db);
}

int take_noted(Db &db, JobId *out) noexcept
{
	int n = 0;
	if (!db.awaited.some.exchange(false))
		return 0;
	for (std::atomic<int64> &slot : db.awaited.noted)
		if (slot.load() != 0)
			out[n++] = slot.exchange(0);
	return n;
}

void empty_filter(Db &db) noexcept
{
	db.awaited.emptied.fetch_add(1);
	for (std::atomic<uint64> &word : db.awaited.filter)
		db.awaited.bits.fetch_sub(static_cast<uint32>(std::popcount(word.exchange(0))));
	db.awaited.emptied.fetch_add(1);
}

void forget_awaited(Db &db) noexcept
{
	for (std::atomic<uint64> &word : db.awaited.filter)
		word.store(0);
	for (std::atomic<int64> &slot : db.awaited.noted)
		slot.store(0);
	db.awaited.bits.store(0);
	db.awaited.emptied.store(0);
	db.awaited.openers.store(0);
	db.awaited.some.store(true);
	db.awaited.all.store(true);
	db.awaited.complete.store(false);
}

bool are_awaited(const Db &db, JobId first, JobId last, const journal::Segment *within)
{
	if (db.awaited.openers.load() > 0)
		return true;
	if (db.awaited.complete.load() && db.awaited.bits.load() == 0)
		return false;
	static pg::Statement any = {
		"SELECT FROM tq.dependency WHERE parent_id BETWEEN $1 AND $2 AND state IS NULL LIMIT 1", 2, {INT8OID, INT8OID}};
	const pg::OwnerScope scope = enter_registry(db);
	Datum values[] = {Int64GetDatum(first), Int64GetDatum(last)};
	bool yes = pg::run(any, values, nullptr) > 0;
	// other segments may have most of these ids
	if (yes && within != nullptr)
	{
		const char *there = psprintf("SELECT FROM tq.dependency d WHERE parent_id BETWEEN $1 AND $2 AND state IS NULL"
									 " AND (EXISTS (SELECT FROM tq.job_%d j WHERE j.id = d.parent_id)"
									 " OR EXISTS (SELECT FROM tq.event_%d e WHERE e.job_id = d.parent_id)) LIMIT 1",
									 within->number, within->number);
		pg::sql(there, any.nargs, any.types, values, nullptr, true, 1);
		yes = SPI_processed > 0;
	}
	leave_registry(scope);
	return yes;
}

} // namespace tq::live

using namespace tq::live;

// On tq.dependency and tq.batch: whoever writes there past tq makes the resolver look through them.
TQ_FUNCTION(tq_dependencies_changed)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED), errmsg("tq.dependencies_changed() is a trigger function")));
	if (writing != GetCurrentSubTransactionId()) // one that was rolled back has left it
		all_at_commit = true;
	return PointerGetDatum(nullptr);
}
