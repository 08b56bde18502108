#include "live/unique.hpp"

#include "live/attach.hpp"
#include "live/loader.hpp"
#include "live/segments.hpp"
#include "live/verbs.hpp"
#include "pg/owner.hpp"
#include "pg/relation.hpp"

namespace tq::live
{

namespace
{

enum Column : int
{
	kQueueId,
	kKey,
	kJobId,
	kUntil,
	kColumns
};

constexpr pg::ColumnSpec kColumnSpecs[kColumns] = {
	{"queue_id", INT4OID},
	{"key", TEXTOID},
	{"job_id", INT8OID},
	{"until", TIMESTAMPTZOID},
};
constexpr pg::IndexSpec kByKey = {2, {kQueueId, kKey}, true};
const pg::TableShape kShape = {"unique key", kColumns, kColumnSpecs, 1, &kByKey};

// The statements that write.
enum class Statement : uint8
{
	insert,
	insert_many,
	pass,
	page,
	lock,
	erase,
};
pg::Statement statements[] = {
	{"INSERT INTO tq.unique_key (queue_id, key, job_id, until) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
	 4,
	 {INT4OID, TEXTOID, INT8OID, TIMESTAMPTZOID}},
	{"INSERT INTO tq.unique_key (queue_id, key, job_id, until)"
	 " SELECT $1, n.key, n.job, n.until FROM unnest($2, $3, $4) AS n (key, job, until)"
	 // which locks the row that is there, and does not touch it
	 " ON CONFLICT (queue_id, key) DO UPDATE SET until = excluded.until WHERE false RETURNING job_id",
	 4,
	 {INT4OID, TEXTARRAYOID, INT8ARRAYOID, TIMESTAMPTZARRAYOID}},
	{"UPDATE tq.unique_key SET job_id = $4, until = $5 WHERE queue_id = $1 AND key = $2 AND job_id = $3",
	 5,
	 {INT4OID, TEXTOID, INT8OID, INT8OID, TIMESTAMPTZOID}},
	{"SELECT queue_id, key, job_id, until FROM tq.unique_key WHERE (queue_id, key) > ($1, $2) ORDER BY queue_id, key LIMIT $3",
	 3,
	 {INT4OID, TEXTOID, INT8OID}},
	{"SELECT FROM tq.unique_key WHERE queue_id = $1 AND key = $2 AND job_id = $3 FOR UPDATE SKIP LOCKED",
	 3,
	 {INT4OID, TEXTOID, INT8OID}},
	{"DELETE FROM tq.unique_key WHERE queue_id = $1 AND key = $2 AND job_id = $3", 3, {INT4OID, TEXTOID, INT8OID}},
};

// Runs a statement as the extension's owner, who is in charge already.
uint64 run(Statement which, Datum *values, const char *nulls)
{
	return pg::run(statements[static_cast<int>(which)], values, nulls);
}

Oid key_table()
{
	const Oid schema = get_namespace_oid("tq", false);
	const Oid table = get_relname_relid("unique_key", schema);
	if (!OidIsValid(table))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE), errmsg("table tq.unique_key does not exist"),
						errhint("Update the extension: ALTER EXTENSION tq UPDATE.")));
	return table;
}

char null_if(bool null) { return null ? 'n' : ' '; }

// Nobody can claim a job that nobody has started in time, though it may be long until it is read in and ends as expired.
Standing waiting_unless_overdue(int attempt, Micros expires_at) noexcept
{
	return is_overdue(attempt, expires_at, wall_now()) ? Standing::ended : Standing::waiting;
}

// What memory says of a job; false if it does not know.
bool standing_in_memory(Db &db, JobId id, Standing *out) noexcept
{
	uint16_t queue = 0;
	const Ref ref = engine.find(index_of(db), id, &queue);
	if (ref == kNil)
		return false;
	bool known = false;
	lock_queue(queue);
	const Entry &e = engine.entry(ref);
	if (engine.is(engine.queue(queue), ref, id))
	{
		const bool ours = e.mark != Verb::none && e.owner == my_proc;
		const State state = ours ? e.pending : e.state;
		known = ours || state != State::placeholder;
		*out = state == State::terminal	 ? Standing::ended
			   : state == State::running ? Standing::running
										 : ours					 ? Standing::waiting
										 : waiting_unless_overdue(e.attempt, e.expires_at);
	}
	unlock_queue(queue);
	return known;
}

// What a segment says; false if the job is not there, or was moved.
bool standing_in_segment(const journal::Segment &tables, JobId id, Snapshot snapshot, Standing *out)
{
	journal::JobRow row;
	ItemPointerData tid;
	if (!journal::find_job(tables, id, snapshot, false, &row, &tid))
		return false;
	journal::Fold fold;
	journal::fold_job(tables, id, snapshot, &fold);
	*out = fold.terminal()								? Standing::ended
		   : fold.state == journal::FoldState::running ? Standing::running
														: waiting_unless_overdue(fold.attempt, fold.new_life ? journal::kNoTime : row.expires_at);
	return fold.state != journal::FoldState::moved;
}

// What one snapshot of the journal says; false if the job is not there.
bool standing_in_journal(const Db &db, JobId id, Standing *out)
{
	int slots[kMostSlots];
	const int n = slots_of_id(db, id, slots);
	bool found = false;
	Snapshot snapshot = committed_snapshot();
	for (int i = 0; i < n && !found; ++i)
	{
		journal::Segment tables;
		found = tables_at(db, slots[i], &tables) && standing_in_segment(tables, id, snapshot, out);
	}
	UnregisterSnapshot(snapshot);
	return found;
}

// The same for segments that a restore has brought and the janitor has not adopted yet. What is in one that has no indexes yet nobody can
// say: the job counts as one that nobody can replace, for a day after the last sign of a restore.
bool standing_in_new_segments(const Db &db, JobId id, Standing *out)
{
	if (db.outside_changes.load() == db.outside_adopted.load())
		return false;
	journal::SegmentTables *list = nullptr;
	const int n = journal::list_segments(&list);
	constexpr Micros kDay = 86400 * Micros{1000000};
	const Micros since = db.outside_changed_at.load(), now = wall_now();
	const bool comes = since <= now && now < since + kDay;
	bool found = false, whole = true;
	Snapshot snapshot = committed_snapshot();
	for (int i = 0; i < n && !found; ++i)
	{
		found = list[i].complete && standing_in_segment(list[i].tables, id, snapshot, out);
		whole = whole && (list[i].complete || is_mapped(db, list[i].tables.job));
	}
	UnregisterSnapshot(snapshot);
	if (!found && !whole && comes)
		*out = Standing::running;
	return found || (!whole && comes);
}

// Enqueued by this transaction, and only summed since (xact.hpp)?
bool is_in_bulk(const Db &db, JobId id)
{
	int slots[kMostSlots];
	const int n = has_bulks() ? slots_of_id(db, id, slots) : 0;
	for (int i = 0; i < n; ++i)
	{
		journal::Segment tables;
		journal::JobRow row;
		ItemPointerData tid;
		if (tables_at(db, slots[i], &tables) && journal::find_own_job(tables, id, &row, &tid))
			return true;
	}
	return false;
}

} // namespace

bool read_key(const Db &, int32 queue_id, text *key, KeyRow *row)
{
	Relation rel = table_open(key_table(), AccessShareLock);
	const pg::TableInfo *info = pg::table_info(rel, kShape);
	Relation index = index_open(pg::lookup_index(info, rel, 0), AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, nullptr);
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyData keys[2];
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(queue_id));
	ScanKeyEntryInitialize(&keys[1], 0, 2, BTEqualStrategyNumber, InvalidOid, index->rd_indcollation[1], F_TEXTEQ,
						   PointerGetDatum(key));
	IndexScanDesc scan = pg::index_beginscan(rel, index, snapshot, 2);
	index_rescan(scan, keys, 2, nullptr, 0);
	const bool found = index_getnext_slot(scan, ForwardScanDirection, slot);
	if (found)
	{
		bool null = false;
		row->job = DatumGetInt64(slot_getattr(slot, info->attnum[kJobId], &null));
		const Datum until = slot_getattr(slot, info->attnum[kUntil], &null);
		row->until = null ? kNoWindow : DatumGetTimestampTz(until);
	}
	index_endscan(scan);
	UnregisterSnapshot(snapshot);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
	return found;
}

bool insert_key(Db &db, int32 queue_id, text *key, const KeyRow &row)
{
	db.keys_clean.store(false);
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	Datum values[] = {Int32GetDatum(queue_id), PointerGetDatum(key), Int64GetDatum(row.job), TimestampTzGetDatum(row.until)};
	const char nulls[] = {' ', ' ', ' ', null_if(row.until == kNoWindow), '\0'};
	const bool inserted = run(Statement::insert, values, nulls) > 0;
	pg::leave_owner(scope);
	return inserted;
}

void insert_keys(Db &db, int32 queue_id, text *const *keys, const KeyRow *rows, int n, bool *made)
{
	if (n == 0)
		return;
	const auto room = static_cast<Size>(n);
	auto *texts = static_cast<Datum *>(palloc(sizeof(Datum) * room));
	auto *jobs = static_cast<Datum *>(palloc(sizeof(Datum) * room));
	auto *untils = static_cast<Datum *>(palloc(sizeof(Datum) * room));
	auto *no_until = static_cast<bool *>(palloc(sizeof(bool) * room));
	for (int i = 0; i < n; ++i)
	{
		texts[i] = PointerGetDatum(keys[i]);
		jobs[i] = Int64GetDatum(rows[i].job);
		untils[i] = TimestampTzGetDatum(rows[i].until);
		no_until[i] = rows[i].until == kNoWindow;
		made[i] = false;
	}
	int dims[] = {n}, bounds[] = {1};
	Datum values[] = {
		Int32GetDatum(queue_id),
		PointerGetDatum(construct_array(texts, n, TEXTOID, -1, false, TYPALIGN_INT)),
		PointerGetDatum(construct_array(jobs, n, INT8OID, sizeof(int64), true, TYPALIGN_DOUBLE)),
		PointerGetDatum(construct_md_array(untils, no_until, 1, dims, bounds, TIMESTAMPTZOID, sizeof(int64), true, TYPALIGN_DOUBLE)),
	};
	db.keys_clean.store(false);
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const auto done = static_cast<int>(run(Statement::insert_many, values, nullptr));
	// in the order of the input, some left out
	for (int i = 0, r = 0; i < n && r < done; ++i)
	{
		bool null = false;
		const Datum job = SPI_getbinval(SPI_tuptable->vals[r], SPI_tuptable->tupdesc, 1, &null);
		made[i] = DatumGetInt64(job) == rows[i].job;
		r += made[i];
	}
	pg::leave_owner(scope);
	pfree(texts);
	pfree(jobs);
	pfree(untils);
	pfree(no_until);
}

bool pass_key(Db &db, int32 queue_id, text *key, JobId from, const KeyRow &to)
{
	db.keys_clean.store(false);
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	Datum values[] = {Int32GetDatum(queue_id), PointerGetDatum(key), Int64GetDatum(from), Int64GetDatum(to.job),
					  TimestampTzGetDatum(to.until)};
	const char nulls[] = {' ', ' ', ' ', ' ', null_if(to.until == kNoWindow), '\0'};
	const bool passed = run(Statement::pass, values, nulls) > 0;
	pg::leave_owner(scope);
	return passed;
}

// A finish is visible before its entry goes, so a job without an entry shows its end in a snapshot taken after this look; and what is on
// disk only is there for it as well.
Standing standing_of_job(Db &db, JobId id)
{
	if (const Op *own = pending_enqueue(id))
		return own->revoked ? Standing::ended : Standing::waiting;
	Standing s = Standing::gone;
	if (standing_in_memory(db, id, &s))
		return s;
	// a job that is moved to segment 0 meanwhile is missed by a snapshot from before, once
	if (standing_in_journal(db, id, &s) || standing_in_journal(db, id, &s) || standing_in_new_segments(db, id, &s))
		return s;
	return is_in_bulk(db, id) ? Standing::waiting : Standing::gone;
}

Standing standing_of_key(Db &db, const KeyRow &row)
{
	const Standing s = standing_of_job(db, row.job);
	return is_free(s) && row.until != kNoWindow && row.until > wall_now() ? Standing::kept : s;
}

bool key_of_job(const Db &db, JobId id, int32 *queue_id, text **key)
{
	int slots[kMostSlots];
	const int n = slots_of_id(db, id, slots);
	for (int i = 0; i < n; ++i)
	{
		journal::Segment tables;
		journal::JobRow row;
		ItemPointerData tid;
		// rows of this transaction show, too
		if (!tables_at(db, slots[i], &tables) || !journal::find_job(tables, id, SnapshotSelf, false, &row, &tid))
			continue;
		*queue_id = row.queue_id;
		*key = row.unique_key;
		return row.unique_key != nullptr;
	}
	return false;
}

int delete_stale_keys(Db &db, int32 *queue_id, text **key, MemoryContext keys, bool gone_too, int64 *kept, int64 *deleted)
{
	auto stale = [&](const KeyRow &row) {
		const Standing s = standing_of_key(db, row);
		return s == Standing::ended || (s == Standing::gone && gone_too);
	};
	constexpr int kBatch = 200; // few enough that who waits for a row of them does not wait long
	struct Found
	{
		int32 queue_id;
		text *key;
		KeyRow row;
	};
	auto *found = static_cast<Found *>(palloc(sizeof(Found) * kBatch));
	const MemoryContext caller = CurrentMemoryContext;
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	Datum from[] = {Int32GetDatum(*queue_id), PointerGetDatum(*key), Int64GetDatum(kBatch)};
	const auto n = static_cast<int>(run(Statement::page, from, nullptr));
	for (int i = 0; i < n; ++i)
	{
		HeapTuple tuple = SPI_tuptable->vals[i];
		TupleDesc desc = SPI_tuptable->tupdesc;
		bool null = false;
		Found &f = found[i];
		f.queue_id = DatumGetInt32(SPI_getbinval(tuple, desc, 1, &null));
		const MemoryContext spi = MemoryContextSwitchTo(i + 1 < n ? caller : keys);
		f.key = DatumGetTextPCopy(SPI_getbinval(tuple, desc, 2, &null));
		MemoryContextSwitchTo(spi);
		f.row.job = DatumGetInt64(SPI_getbinval(tuple, desc, 3, &null));
		const Datum until = SPI_getbinval(tuple, desc, 4, &null);
		f.row.until = null ? kNoWindow : DatumGetTimestampTz(until);
	}
	for (int i = 0; i < n; ++i)
	{
		const Found &f = found[i];
		if (!stale(f.row))
		{
			++*kept;
			continue;
		}
		// under the lock once more: nobody can bring the job back then
		Datum values[] = {Int32GetDatum(f.queue_id), PointerGetDatum(f.key), Int64GetDatum(f.row.job)};
		if (run(Statement::lock, values, nullptr) == 1 && stale(f.row))
			*deleted += static_cast<int64>(run(Statement::erase, values, nullptr));
		else
			++*kept;
	}
	pg::leave_owner(scope);
	MemoryContextSwitchTo(caller);
	if (n > 0)
	{
		*queue_id = found[n - 1].queue_id;
		*key = found[n - 1].key;
	}
	pfree(found);
	return n;
}

} // namespace tq::live
