// The two kinds of tables of a segment: their columns and the indexes that reads use. Shared by the files of src/journal only.
// Regime: PG. Locks: none of its own.
#pragma once

#include "journal/journal.hpp"
#include "pg/relation.hpp"

namespace tq::journal
{

// Positions in the shapes; never attribute numbers.
namespace job
{
enum Column : int
{
	id, enqueued_at, queue_id, priority, run_at, expires_at, timeout, lease, origin, max_attempts, weight, kind, group_key,
	unique_key, payload, headers, retry, options, depends_on, tags, kColumns
};
enum Lookup : int { by_id, by_lane, by_due };
} // namespace job

namespace event
{
enum Column : int
{
	job_id, at, lease, claimed_at, retry_at, lease_until, step, attempt, priority, type, bound, worker, reason, detail,
	kColumns
};
enum Lookup : int { by_step, by_due };
} // namespace event

extern const pg::TableShape kJobShape;
extern const pg::TableShape kEventShape;

// A row taken apart, read by column name.
struct Values
{
	const pg::TableInfo *info;
	const Datum *values; // by attnum - 1
	const bool *nulls;

	bool null(int column) const { return nulls[info->attnum[column] - 1]; }
	Datum at(int column) const { return values[info->attnum[column] - 1]; }
	int64 i64(int column, int64 otherwise = 0) const { return null(column) ? otherwise : DatumGetInt64(at(column)); }
	int32 i32(int column, int32 otherwise = 0) const { return null(column) ? otherwise : DatumGetInt32(at(column)); }
	float4 f4(int column) const { return null(column) ? 0 : DatumGetFloat4(at(column)); }
};

// The row in a slot: all its columns, good until the slot is cleared.
inline Values
slot_values(const pg::TableInfo *info, TupleTableSlot *slot)
{
	slot_getallattrs(slot);
	return Values{info, slot->tts_values, slot->tts_isnull};
}

// Copies a row's columns into `row`, detoasted. Needs an active or registered snapshot if a value is stored out of line, and
// pushes one if there is none.
void read_job(const Values &v, bool want_payload, JobRow *row);

// Copies an event; worker, reason and detail only if `with_texts`.
void read_event(const Values &v, bool with_texts, EventRow *row);

// What fold_event needs of an event, without allocating: the worker goes into the caller's buffer (cut if too long).
void read_fold_event(const Values &v, EventRow *row, char (&worker)[kWorkerMax]);

// A job's row without its payload.
void read_candidate(const Values &v, const ItemPointerData &tid, int segment, Candidate *out);

// One relation and one of its indexes, opened and locked AccessShare for an index scan.
struct IndexedTable
{
	Relation rel;
	Relation index;
	const pg::TableInfo *info;
};

// False if the table is gone.
bool open_indexed(Oid table, const pg::TableShape &shape, int lookup, IndexedTable *out);
void close_indexed(IndexedTable *table);

} // namespace tq::journal
