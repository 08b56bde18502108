#include "workers/refiring.hpp"

#include "api/change.hpp"
#include "live/attach.hpp"
#include "live/retention.hpp"
#include "live/segments.hpp"
#include "live/unique.hpp"
#include "live/verbs.hpp"
#include "pg/owner.hpp"
#include "workers/attempt.hpp"
#include "workers/transaction.hpp"

namespace tq::workers
{

namespace
{

using live::Db;

struct LastFire
{
	Micros fire_at;
	core::JobId job;
	Micros at;
};

// The last job that a schedule itself has made, if the journal must still have it by what was known when it was made.
bool last_fire(const Db &db, const char *name, Micros now, LastFire *out)
{
	const Oid types[] = {TEXTOID, TIMESTAMPTZOID};
	const Datum values[] = {CStringGetTextDatum(name), TimestampTzGetDatum(now)};
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("SELECT fire_at, job_id, at FROM (SELECT * FROM tq.schedule_fire WHERE schedule = $1 AND outcome = 'fired' AND fire_at <= $2"
			" ORDER BY fire_at DESC LIMIT 1) f WHERE job_id IS NOT NULL AND kept_until > $2",
			2, types, values, nullptr, true, 1);
	const bool found = SPI_processed > 0;
	if (found)
	{
		bool isnull = true;
		HeapTuple tuple = SPI_tuptable->vals[0];
		TupleDesc desc = SPI_tuptable->tupdesc;
		out->fire_at = DatumGetTimestampTz(SPI_getbinval(tuple, desc, 1, &isnull));
		out->job = DatumGetInt64(SPI_getbinval(tuple, desc, 2, &isnull));
		out->at = DatumGetTimestampTz(SPI_getbinval(tuple, desc, 3, &isnull));
	}
	pg::leave_owner(scope);
	return found;
}

// Somebody may have deleted the row of a job after it had ended; then its events say so.
bool ended_all_the_same(const Db &db, core::JobId job)
{
	int slots[2];
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
	return !live::job_exists(db, job) && !live::job_exists(db, job) && live::standing_of_job(db, job) != live::Standing::running &&
		   !ended_all_the_same(db, job);
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
	*job = api::put_job(db, s, f.fire_at, now);
	if (*job == 0 || live::pending_enqueue(*job) == nullptr)
		return false;
	const Micros kept_until = now + live::retention_of_queue(live::find_queue(db, s.queue)).finished;
	const Oid types[] = {TEXTOID, TIMESTAMPTZOID, INT8OID, INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID};
	const Datum values[] = {CStringGetTextDatum(s.name), TimestampTzGetDatum(f.fire_at), Int64GetDatum(f.job), Int64GetDatum(*job),
							TimestampTzGetDatum(now), TimestampTzGetDatum(kept_until)};
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("UPDATE tq.schedule_fire SET job_id = $4, at = $5, kept_until = $6 WHERE schedule = $1 AND fire_at = $2 AND job_id = $3", 6,
			types, values, nullptr, false, 0);
	const bool written = SPI_processed > 0;
	pg::leave_owner(scope);
	return written;
}

void look_at(Db &db, Planned *p, Micros now)
{
	const api::Schedule &s = p->schedule;
	LastFire f{};
	if (!last_fire(db, s.name, now, &f) || f.at + live::retention_of_queue(live::find_queue(db, s.queue)).finished <= now ||
		!is_gone(db, f.job))
		return;
	core::JobId job = 0;
	ErrorData *error = nullptr;
	const Tried tried = attempt([&] { return make_again(db, s, f, now, &job); }, &error);
	const auto former = static_cast<long long>(f.job);
	if (tried == Tried::done)
	{
		db.fires_again.fetch_add(1);
		p->last_job = p->last_job == f.job ? job : p->last_job;
		ereport(LOG, (errmsg("tq: job %lld of schedule \"%s\" for %s was gone; it is enqueued again as job %lld", former, s.name,
							 timestamptz_to_str(f.fire_at), static_cast<long long>(job))));
	}
	else
		ereport(LOG, (errmsg("tq: job %lld of schedule \"%s\" for %s is gone, and cannot be enqueued again", former, s.name,
							 timestamptz_to_str(f.fire_at)),
					  error != nullptr ? errdetail_internal("%s", error->message) : 0));
}

} // namespace

bool fire_lost_again(const WorkerContext &context, Db &db, const ScheduleList &schedules, Micros now)
{
	constexpr int kBatch = 50; // fewer than the queues that one transaction may enqueue to
	for (int i = 0; i < schedules.n; i += kBatch)
	{
		if (!begin_work(context, "tq: looking for jobs of schedules"))
			return false;
		for (int k = i; k < std::min(schedules.n, i + kBatch); ++k)
			look_at(db, &schedules.list[k], now);
		end_work();
	}
	return true;
}

} // namespace tq::workers
