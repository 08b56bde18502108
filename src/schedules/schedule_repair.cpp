#include "schedules/schedule_repair.hpp"

#include "jobs/job_control.hpp"
#include "jobs/verbs.hpp"
#include "queues/queue_names.hpp"
#include "queues/queue_retention.hpp"
#include "schedules/turns.hpp"
#include "segments/segments.hpp"
#include "unique/unique_keys.hpp"
#include "pg/attempt.hpp"
#include "pg/id_array.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

// The last job that a schedule itself has made. Manual fires do not count.
struct LastFire
{
	const char *name;
	Micros fire_at;
	core::JobId job;
	Micros at;
};

// Reads the last fire. False if there is none, or if its job may have been dropped by now: the row keeps the
// retention of that time.
bool last_fire(const Db &db, const Planned &p, Micros now, LastFire *f)
{
	static pg::Statement last{"SELECT f.fire_at, f.job_id, f.at FROM (SELECT * FROM tq.schedule_fire WHERE schedule = "
							  "$2 AND outcome = 'fired' AND fire_at <= $1"
							  " ORDER BY fire_at DESC LIMIT 1) f WHERE f.job_id IS NOT NULL AND f.kept_until > $1",
							  2,
							  {TIMESTAMPTZOID, TEXTOID}};
	Datum values[] = {TimestampTzGetDatum(now), CStringGetTextDatum(p.name)};
	const pg::OwnerScope scope = enter_schedules(db);
	const bool found = pg::run(last, values, nullptr) > 0;
	if (found)
		*f = LastFire{p.name, pg::spi_time(0, "fire_at", 0), pg::spi_int8(0, "job_id"), pg::spi_time(0, "at", 0)};
	pg::leave_owner(scope);
	return found && f->at + retention_of_queue(find_queue(db, p.lane->key.queue)).finished > now;
}

// The row of a job may have been deleted after the job had ended. Then its events still show the end.
bool ended_all_the_same(const Db &db, core::JobId job)
{
	return find_in_segments(db, job, latest_snapshot, [job](const journal::Segment &tables, Snapshot snapshot) {
		journal::Fold fold;
		journal::fold_job(tables, job, snapshot, &fold);
		return fold.terminal() && fold.state != journal::FoldState::moved;
	});
}

// One search may miss a job that is being moved to segment 0, so there are two. A running job was claimed before its
// row was deleted.
bool is_gone(Db &db, core::JobId job)
{
	return !job_exists(db, job) && !job_exists(db, job) && standing_of_job(db, job) != KeyState::running &&
		   !ended_all_the_same(db, job);
}

// Refused: the job is gone. Failed: the journal cannot be read now, for example because another session has locked a
// segment. The caller sets `say` for the first failure of each check of all schedules.
Tried find(Db &db, const LastFire &f, bool say, bool *locked)
{
	ErrorData *error = nullptr;
	const Tried found = attempt([&] { return !is_gone(db, f.job); }, &error);
	if (error == nullptr)
		return found;
	*locked = error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE;
	if (say)
		ereport(LOG, (errmsg("tq: cannot see whether job %lld of schedule \"%s\" is there: %s",
							 static_cast<long long>(f.job), f.name, error->message)));
	return found;
}

// False if another job has the unique key, or if the row has changed.
bool make_again(Db &db, const Schedule &s, const LastFire &f, Micros now, core::JobId *job)
{
	// memory may still have the job
	JobRequest old;
	old.id = f.job;
	old.verb = Verb::cancel;
	old.reason = "its row is gone";
	old.only_waiting = true;
	static_cast<void>(change(db, old));
	bool made = false;
	*job = put_job(db, s, f.fire_at, now, &made);
	if (!made)
		return false;
	const Micros kept_until = now + retention_of_queue(find_queue(db, s.queue)).finished;
	const Oid types[] = {TEXTOID, TIMESTAMPTZOID, INT8OID, INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID};
	const Datum values[] = {CStringGetTextDatum(s.name), TimestampTzGetDatum(f.fire_at),
							Int64GetDatum(f.job),		 Int64GetDatum(*job),
							TimestampTzGetDatum(now),	 TimestampTzGetDatum(kept_until)};
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("UPDATE tq.schedule_fire SET job_id = $4, at = $5, kept_until = $6"
			" WHERE schedule = $1 AND fire_at = $2 AND job_id = $3 AND kept_until > $5",
			{types, values}, false, 0);
	const bool written = SPI_processed > 0;
	pg::leave_owner(scope);
	return written;
}

void replace(Db &db, const Planned &p, const LastFire &f, Micros now)
{
	core::JobId job = 0;
	ErrorData *error = nullptr;
	const Tried tried = attempt(
		[&] {
			Schedule s{};
			core::JobId before = 0;
			return read_definition(db, p, &s, &before) && make_again(db, s, f, now, &job);
		},
		&error);
	const auto former = static_cast<long long>(f.job);
	if (tried != Tried::done)
	{
		ereport(LOG, (errmsg("tq: job %lld of schedule \"%s\" for %s is gone, and cannot be enqueued again", former,
							 f.name, timestamptz_to_str(f.fire_at)),
					  error != nullptr ? errdetail_internal("%s", error->message) : 0));
		return;
	}
	db.fires_again.fetch_add(1);
	ereport(LOG, (errmsg("tq: job %lld of schedule \"%s\" for %s was gone; it is enqueued again as job %lld", former,
						 f.name, timestamptz_to_str(f.fire_at), static_cast<long long>(job))));
}

} // namespace

bool replace_lost(Db &db, const Planned &p, Micros now, bool say, bool *locked)
{
	LastFire f{};
	if (!last_fire(db, p, now, &f))
		return true;
	const Tried found = find(db, f, say, locked);
	if (found == Tried::refused)
		replace(db, p, f, now);
	return found != Tried::failed;
}

namespace
{

// Updates rows of jobs, by a condition on $1 and perhaps $2. Skips rows that another transaction is changing, because
// the janitor never waits.
void let_go(const Db &db, const char *which, int n, const Oid *types, const Datum *values)
{
	// the scheduler's clock was read before this one
	const char *before = timestamptz_to_str(wall_now() - 60 * USECS_PER_SEC);
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql(psprintf("UPDATE tq.schedule_fire u SET kept_until = '-infinity' FROM (SELECT schedule, fire_at FROM "
					 "tq.schedule_fire f"
					 " WHERE %s AND kept_until > '%s' FOR NO KEY UPDATE SKIP LOCKED) g"
					 " WHERE u.schedule = g.schedule AND u.fire_at = g.fire_at",
					 which, before),
			{types, values, nullptr, n}, false, 0);
	pg::leave_owner(scope);
}

} // namespace

void let_fires_of_range_go(const Db &db, core::JobId first, core::JobId last)
{
	const Oid types[] = {INT8OID, INT8OID};
	const Datum values[] = {Int64GetDatum(first), Int64GetDatum(last)};
	let_go(db, "job_id BETWEEN $1 AND $2 AND NOT EXISTS (SELECT FROM tq.job_0 j WHERE j.id = f.job_id)", 2, types,
		   values);
}

void let_fires_go(const Db &db, const core::JobId *ids, int n)
{
	const Oid types[] = {INT8ARRAYOID};
	const Datum values[] = {PointerGetDatum(pg::id_array(ids, n))};
	let_go(db, "job_id = ANY ($1)", 1, types, values);
}

} // namespace tq
