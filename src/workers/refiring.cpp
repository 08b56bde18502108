#include "workers/refiring.hpp"

#include "api/change.hpp"
#include "live/attach.hpp"
#include "live/retention.hpp"
#include "live/segments.hpp"
#include "live/unique.hpp"
#include "live/verbs.hpp"
#include "pg/id_array.hpp"
#include "pg/owner.hpp"
#include "workers/attempt.hpp"
#include "workers/transaction.hpp"

namespace tq::workers
{

namespace
{

using live::Db;

// The last job that a schedule itself has made.
struct LastFire
{
	const char *name;
	Micros fire_at;
	core::JobId job;
	Micros at;
};

// Of each schedule, if the journal must still have that job by what was known when it was made.
LastFire *last_fires(const Db &db, Micros now, uint64 *n)
{
	const MemoryContext caller = CurrentMemoryContext;
	const Oid types[] = {TIMESTAMPTZOID};
	const Datum values[] = {TimestampTzGetDatum(now)};
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql(
		"SELECT s.name, f.fire_at, f.job_id, f.at FROM tq.schedule s CROSS JOIN LATERAL (SELECT * FROM tq.schedule_fire"
		" WHERE schedule = s.name AND outcome = 'fired' AND fire_at <= $1 ORDER BY fire_at DESC LIMIT 1) f"
		" WHERE f.job_id IS NOT NULL AND f.kept_until > $1",
		1, types, values, nullptr, true, 0);
	*n = SPI_processed;
	auto *list =
		static_cast<LastFire *>(MemoryContextAllocHuge(caller, mul_size(sizeof(LastFire), std::max<Size>(*n, 1))));
	for (uint64 i = 0; i < *n; ++i)
	{
		bool isnull = true;
		HeapTuple tuple = SPI_tuptable->vals[i];
		TupleDesc desc = SPI_tuptable->tupdesc;
		const char *name = TextDatumGetCString(SPI_getbinval(tuple, desc, 1, &isnull));
		list[i].name = MemoryContextStrdup(caller, name);
		list[i].fire_at = DatumGetTimestampTz(SPI_getbinval(tuple, desc, 2, &isnull));
		list[i].job = DatumGetInt64(SPI_getbinval(tuple, desc, 3, &isnull));
		list[i].at = DatumGetTimestampTz(SPI_getbinval(tuple, desc, 4, &isnull));
	}
	pg::leave_owner(scope);
	return list;
}

// Somebody may have deleted the row of a job after it had ended; then its events say so.
bool ended_all_the_same(const Db &db, core::JobId job)
{
	int slots[live::kMostSlots];
	const int n = live::slots_of_id(db, job, slots);
	bool ended = false;
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	for (int i = 0; i < n && !ended; ++i)
	{
		journal::Segment tables;
		journal::Fold fold;
		if (live::tables_at(db, slots[i], &tables))
			journal::fold_job(tables, job, snapshot, &fold);
		ended = fold.terminal() && fold.state != journal::FoldState::moved;
	}
	UnregisterSnapshot(snapshot);
	return ended;
}

// A job on its way to segment 0 may be missed once. One that is running now has been claimed before its row went.
bool is_gone(Db &db, core::JobId job)
{
	return !live::job_exists(db, job) && !live::job_exists(db, job) &&
		   live::standing_of_job(db, job) != live::Standing::running && !ended_all_the_same(db, job);
}

// Refused: it is gone. Failed: the journal cannot be asked now, as when somebody has a segment locked; said once in each look at all of them.
Tried find(Db &db, const LastFire &f, bool say, int *locked)
{
	ErrorData *error = nullptr;
	const Tried found = attempt([&] { return !is_gone(db, f.job); }, &error);
	if (error == nullptr)
		return found;
	*locked += error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE;
	if (say)
		ereport(LOG, (errmsg("tq: cannot see whether job %lld of schedule \"%s\" is there: %s", static_cast<long long>(f.job), f.name,
							 error->message)));
	return found;
}

// False if another job has its unique key, or the row has changed.
bool make_again(Db &db, const api::Schedule &s, const LastFire &f, Micros now, core::JobId *job)
{
	// memory may not know yet that it is gone
	api::Request old;
	old.id = f.job;
	old.verb = live::Verb::cancel;
	old.reason = "its row is gone";
	old.only_waiting = true;
	static_cast<void>(api::change(db, old));
	bool made = false;
	*job = api::put_job(db, s, f.fire_at, now, &made);
	if (!made)
		return false;
	const Micros kept_until = now + live::retention_of_queue(live::find_queue(db, s.queue)).finished;
	const Oid types[] = {TEXTOID, TIMESTAMPTZOID, INT8OID, INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID};
	const Datum values[] = {CStringGetTextDatum(s.name), TimestampTzGetDatum(f.fire_at),
							Int64GetDatum(f.job),		 Int64GetDatum(*job),
							TimestampTzGetDatum(now),	 TimestampTzGetDatum(kept_until)};
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("UPDATE tq.schedule_fire SET job_id = $4, at = $5, kept_until = $6"
			" WHERE schedule = $1 AND fire_at = $2 AND job_id = $3 AND kept_until > $5",
			6, types, values, nullptr, false, 0);
	const bool written = SPI_processed > 0;
	pg::leave_owner(scope);
	return written;
}

// True if there is one now.
bool replace(Db &db, Planned *p, const LastFire &f, Micros now)
{
	const api::Schedule &s = p->schedule;
	core::JobId job = 0;
	ErrorData *error = nullptr;
	const Tried tried = attempt([&] { return make_again(db, s, f, now, &job); }, &error);
	const auto former = static_cast<long long>(f.job);
	if (tried != Tried::done)
	{
		ereport(LOG, (errmsg("tq: job %lld of schedule \"%s\" for %s is gone, and cannot be enqueued again", former,
							 s.name, timestamptz_to_str(f.fire_at)),
					  error != nullptr ? errdetail_internal("%s", error->message) : 0));
		return false;
	}
	db.fires_again.fetch_add(1);
	p->last_job = p->last_job == f.job ? job : p->last_job;
	ereport(LOG, (errmsg("tq: job %lld of schedule \"%s\" for %s was gone; it is enqueued again as job %lld", former,
						 s.name, timestamptz_to_str(f.fire_at), static_cast<long long>(job))));
	return true;
}

} // namespace

Looked fire_lost_again(const WorkerContext &context, Db &db, const ScheduleList &schedules, Micros now)
{
	constexpr int kMost = 50;	 // in one transaction
	constexpr int kPatience = 3; // so many locks are waited for, since what is due waits meanwhile
	if (!begin_work(context, "tq: looking for jobs of schedules"))
		return Looked::refused;
	uint64 n = 0;
	const LastFire *list = last_fires(db, now, &n);
	int tried = 0, made = 0, failed = 0, locked = 0;
	for (uint64 i = 0; i < n && tried < kMost && locked < kPatience; ++i)
	{
		Planned *p = find_schedule(schedules, list[i].name);
		if (p == nullptr || list[i].at + live::retention_of_queue(live::find_queue(db, p->schedule.queue)).finished <= now)
			continue;
		const Tried found = find(db, list[i], failed == 0, &locked);
		failed += found == Tried::failed;
		if (found != Tried::refused)
			continue;
		++tried;
		made += replace(db, p, list[i], now);
	}
	end_work();
	if (failed > 0)
		return Looked::failed;
	return tried < kMost || made == 0 ? Looked::at_all : Looked::at_some;
}

namespace
{

// Rows of jobs, by a condition on $1 and perhaps $2. One that somebody else is changing is left alone: the janitor waits for nobody.
void let_go(const Db &db, const char *which, int n, const Oid *types, const Datum *values)
{
	// the scheduler's clock was read before this one
	const char *before = timestamptz_to_str(live::wall_now() - 60 * USECS_PER_SEC);
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql(psprintf("UPDATE tq.schedule_fire u SET kept_until = '-infinity' FROM (SELECT schedule, fire_at FROM tq.schedule_fire f"
					 " WHERE %s AND kept_until > '%s' FOR NO KEY UPDATE SKIP LOCKED) g"
					 " WHERE u.schedule = g.schedule AND u.fire_at = g.fire_at",
					 which, before),
			n, types, values, nullptr, false, 0);
	pg::leave_owner(scope);
}

} // namespace

void let_fires_of_segment_go(const Db &db, const journal::Segment &segment)
{
	const char *which = psprintf("EXISTS (SELECT FROM tq.job_%d j WHERE j.id = f.job_id)"
								 " AND NOT EXISTS (SELECT FROM tq.job_0 j WHERE j.id = f.job_id)",
								 segment.number);
	let_go(db, which, 0, nullptr, nullptr);
}

void let_fires_of_range_go(const Db &db, core::JobId first, core::JobId last)
{
	const Oid types[] = {INT8OID, INT8OID};
	const Datum values[] = {Int64GetDatum(first), Int64GetDatum(last)};
	let_go(db, "job_id BETWEEN $1 AND $2 AND NOT EXISTS (SELECT FROM tq.job_0 j WHERE j.id = f.job_id)", 2, types, values);
}

void let_fires_go(const Db &db, const core::JobId *ids, int n)
{
	const Oid types[] = {INT8ARRAYOID};
	const Datum values[] = {PointerGetDatum(pg::id_array(ids, n))};
	let_go(db, "job_id = ANY ($1)", 1, types, values);
}

} // namespace tq::workers
