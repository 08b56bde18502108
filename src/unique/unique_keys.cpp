#include "unique/unique_keys.hpp"

#include "residency/loader.hpp"
#include "segments/segments.hpp"
#include "transaction/bulks.hpp"
#include "transaction/pending.hpp"
#include "pg/owner.hpp"
#include "pg/relation.hpp"
#include "pg/spi.hpp"

namespace tq
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

// The statements that write, and those that the janitor uses.
enum class Statement : uint8
{
	insert,
	insert_many,
	transfer,
	read_batch,
	lock,
	erase,
};
pg::Statement statements[] = {
	{"INSERT INTO tq.unique_key (queue_id, key, job_id, until) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
	 4,
	 {INT4OID, TEXTOID, INT8OID, TIMESTAMPTZOID}},
	{"INSERT INTO tq.unique_key (queue_id, key, job_id, until)"
	 " SELECT $1, n.key, n.job, n.until FROM unnest($2, $3, $4) AS n (key, job, until)"
	 // WHERE false locks the existing row without a change
	 " ON CONFLICT (queue_id, key) DO UPDATE SET until = excluded.until WHERE false RETURNING job_id",
	 4,
	 {INT4OID, TEXTARRAYOID, INT8ARRAYOID, TIMESTAMPTZARRAYOID}},
	{"UPDATE tq.unique_key SET job_id = $4, until = $5 WHERE queue_id = $1 AND key = $2 AND job_id = $3",
	 5,
	 {INT4OID, TEXTOID, INT8OID, INT8OID, TIMESTAMPTZOID}},
	{"SELECT queue_id, key, job_id, until FROM tq.unique_key WHERE (queue_id, key) > ($1, $2) ORDER BY queue_id, key "
	 "LIMIT $3",
	 3,
	 {INT4OID, TEXTOID, INT8OID}},
	{"SELECT FROM tq.unique_key WHERE queue_id = $1 AND key = $2 AND job_id = $3 FOR UPDATE SKIP LOCKED",
	 3,
	 {INT4OID, TEXTOID, INT8OID}},
	{"DELETE FROM tq.unique_key WHERE queue_id = $1 AND key = $2 AND job_id = $3", 3, {INT4OID, TEXTOID, INT8OID}},
};

// Runs a statement; the caller has entered the extension owner's scope.
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

// Whether an open transaction may have written rows, which nobody else sees yet.
bool is_being_written()
{
	const Oid table = key_table();
	if (!ConditionalLockRelationOid(table, ShareLock))
		return true;
	UnlockRelationOid(table, ShareLock);
	return false;
}

char null_if(bool null) { return null ? 'n' : ' '; }

// An overdue job cannot be claimed, so its key is free. It ends as expired once it is in memory, perhaps much later.
KeyState waiting_unless_overdue(int attempt, Micros expires_at) noexcept
{
	return is_overdue(attempt, expires_at, wall_now()) ? KeyState::ended : KeyState::waiting;
}

// The state in memory; false if memory does not have the job.
bool state_in_memory(Db &db, JobId id, KeyState *out) noexcept
{
	bool known = false;
	static_cast<void>(with_entry(db, id, [&known, out](const Entry &e) noexcept {
		const bool ours = e.mark != Verb::none && e.owner == my_proc;
		const State state = ours ? e.pending : e.state;
		known = ours || state != State::placeholder; // a loader has not read that job yet
		*out = state == State::terminal	 ? KeyState::ended
			   : state == State::running ? KeyState::running
										 : ours					 ? KeyState::waiting
										 : waiting_unless_overdue(e.attempt, e.expires_at);
	}));
	return known;
}

// The state in a segment; false if the job is missing, or was moved.
bool state_in_segment(const journal::Segment &tables, JobId id, Snapshot snapshot, KeyState *out)
{
	journal::JobRow row;
	ItemPointerData tid;
	if (!journal::find_job(tables, id, snapshot, false, &row, &tid))
		return false;
	journal::Fold fold;
	journal::fold_job(tables, id, snapshot, &fold);
	*out = fold.terminal() ? KeyState::ended
		   : fold.state == journal::FoldState::running
			   ? KeyState::running
			   : waiting_unless_overdue(fold.attempt, fold.expires_at(row.expires_at));
	return fold.state != journal::FoldState::moved;
}

// Searches the segments, and keeps no row in memory: a call may enqueue a million jobs with keys.
template <class Visit>
bool search_segments(const Db &db, JobId id, Snapshot (*take)(), Visit &&visit)
{
	const MemoryContext rows = AllocSetContextCreate(CurrentMemoryContext, "tq row", ALLOCSET_SMALL_SIZES);
	const MemoryContext old = MemoryContextSwitchTo(rows);
	const bool found = find_in_segments(db, id, take, visit);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(rows);
	return found;
}

// The state in one snapshot of the journal; false if the job is missing.
bool state_in_journal(const Db &db, JobId id, KeyState *out)
{
	return search_segments(db, id, committed_snapshot, [&](const journal::Segment &tables, Snapshot snapshot) {
		return state_in_segment(tables, id, snapshot, out);
	});
}

// Whether the job was cancelled, expired or purged before its first attempt. A crash may have lost the claim of an
// attempt; a request to stop or a newer job beside it shows that there was one. False if the job is missing.
bool ended_unstarted(const Db &db, JobId id)
{
	using journal::FoldState;
	journal::Fold fold;
	if (op_count() > 0)
		CommandCounterIncrement(); // this transaction may have ended the job
	const bool found = search_segments(db, id, latest_snapshot, [&](const journal::Segment &tables, Snapshot s) {
		journal::JobRow row;
		ItemPointerData tid;
		if (!journal::find_job(tables, id, s, false, &row, &tid))
			return false;
		fold = journal::Fold{};
		journal::fold_job(tables, id, s, &fold);
		return fold.state != FoldState::moved;
	});
	const bool unstarted = fold.lease == 0 && fold.ended_lease == 0 && !fold.cancel_asked && !fold.superseded;
	return found && unstarted &&
		   (fold.state == FoldState::cancelled || fold.state == FoldState::expired || fold.state == FoldState::purged);
}

} // namespace

bool read_key(int32 queue_id, text *key, KeyRow *row)
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
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	Datum values[] = {Int32GetDatum(queue_id), PointerGetDatum(key), Int64GetDatum(row.job),
					  TimestampTzGetDatum(row.until)};
	const char nulls[] = {' ', ' ', ' ', null_if(row.until == kNoWindow), '\0'};
	const bool inserted = run(Statement::insert, values, nulls) > 0;
	db.keys_clean.store(false);
	pg::leave_owner(scope);
	return inserted;
}

void insert_keys(Db &db, int32 queue_id, text *const *keys, const KeyRow *rows, int n, bool *made)
{
	if (n == 0)
		return;
	const auto capacity = static_cast<Size>(n);
	auto *texts = static_cast<Datum *>(palloc(sizeof(Datum) * capacity));
	auto *jobs = static_cast<Datum *>(palloc(sizeof(Datum) * capacity));
	auto *untils = static_cast<Datum *>(palloc(sizeof(Datum) * capacity));
	auto *no_until = static_cast<bool *>(palloc(sizeof(bool) * capacity));
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
		PointerGetDatum(construct_md_array(untils, no_until, 1, dims, bounds, TIMESTAMPTZOID, sizeof(int64), true,
										   TYPALIGN_DOUBLE)),
	};
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const auto done = static_cast<int>(run(Statement::insert_many, values, nullptr));
	db.keys_clean.store(false);
	// The rows are in the order of the input, with gaps.
	for (int i = 0, r = 0; i < n && r < done; ++i)
	{
		made[i] = pg::spi_int8(static_cast<uint64>(r), "job_id") == rows[i].job;
		r += made[i];
	}
	pg::leave_owner(scope);
	pfree(texts);
	pfree(jobs);
	pfree(untils);
	pfree(no_until);
}

bool transfer_key(Db &db, int32 queue_id, text *key, JobId from, const KeyRow &to)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	Datum values[] = {Int32GetDatum(queue_id), PointerGetDatum(key), Int64GetDatum(from), Int64GetDatum(to.job),
					  TimestampTzGetDatum(to.until)};
	const char nulls[] = {' ', ' ', ' ', ' ', null_if(to.until == kNoWindow), '\0'};
	const bool passed = run(Statement::transfer, values, nulls) > 0;
	db.keys_clean.store(false);
	pg::leave_owner(scope);
	return passed;
}

// A finish is visible before its entry is dropped. So a job without an entry shows its end in a snapshot taken after
// this check, and so does a job that is only on disk.
KeyState key_state_of_job(Db &db, JobId id)
{
	if (const Op *own = pending_enqueue(id))
		return own->to == State::terminal ? KeyState::ended : KeyState::waiting;
	KeyState s = KeyState::gone;
	if (state_in_memory(db, id, &s))
		return s;
	// A snapshot may miss a job that is moved to segment 0 meanwhile. It stays there, so the second search finds it.
	if (state_in_journal(db, id, &s) || state_in_journal(db, id, &s))
		return s;
	return is_in_bulk(db, id) ? KeyState::waiting : KeyState::gone;
}

bool is_window_open(const KeyRow &row) noexcept { return row.until != kNoWindow && row.until > wall_now(); }

KeyState key_state(Db &db, const KeyRow &row)
{
	const KeyState s = key_state_of_job(db, row.job);
	return is_free(s) && is_window_open(row) && !ended_unstarted(db, row.job) ? KeyState::kept : s;
}

bool key_of_job(const Db &db, JobId id, int32 *queue_id, text **key)
{
	journal::JobRow row;
	// Rows of this transaction are visible, too.
	const bool found = find_in_segments(db, id, [&](const journal::Segment &tables, int) {
		ItemPointerData tid;
		return journal::find_job(tables, id, SnapshotSelf, false, &row, &tid);
	});
	if (!found)
		return false;
	*queue_id = row.queue_id;
	*key = row.unique_key;
	return row.unique_key != nullptr;
}

int delete_stale_keys(Db &db, KeyPass *pass)
{
	if (pass->queue_id == PG_INT32_MIN) // the first batch
		pass->kept += is_being_written();
	auto stale = [&db](const KeyRow &row) { return is_free(key_state(db, row)); };
	// Small, so that a session that waits for one of these rows does not wait long.
	constexpr int kBatch = 200;
	struct Found
	{
		int32 queue_id;
		text *key;
		KeyRow row;
	};
	auto *found = static_cast<Found *>(palloc(sizeof(Found) * kBatch));
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	Datum from[] = {Int32GetDatum(pass->queue_id), PointerGetDatum(pass->key), Int64GetDatum(kBatch)};
	const auto n = static_cast<int>(run(Statement::read_batch, from, nullptr));
	for (int i = 0; i < n; ++i)
	{
		const auto row = static_cast<uint64>(i);
		Found &f = found[i];
		f.queue_id = pg::spi_int4(row, "queue_id");
		// the next batch begins after the last key, so this one outlives the transaction
		const MemoryContext spi = MemoryContextSwitchTo(i + 1 < n ? scope.outside : pass->keys);
		f.key = DatumGetTextPCopy(pg::spi_required(row, "key", TEXTOID));
		MemoryContextSwitchTo(spi);
		f.row.job = pg::spi_int8(row, "job_id");
		f.row.until = pg::spi_time(row, "until", kNoWindow);
	}
	for (int i = 0; i < n; ++i)
	{
		const Found &f = found[i];
		if (!stale(f.row))
		{
			++pass->kept;
			continue;
		}
		// Checked again under the row's lock: no transaction can revive the job then.
		Datum values[] = {Int32GetDatum(f.queue_id), PointerGetDatum(f.key), Int64GetDatum(f.row.job)};
		if (run(Statement::lock, values, nullptr) == 1 && stale(f.row))
			run(Statement::erase, values, nullptr);
		else
			++pass->kept;
	}
	pg::leave_owner(scope);
	if (n > 0)
	{
		pass->queue_id = found[n - 1].queue_id;
		pass->key = found[n - 1].key;
	}
	pfree(found);
	return n;
}

} // namespace tq
