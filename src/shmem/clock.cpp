#include "shmem/clock.hpp"

#include <time.h>

#include "guc.hpp"
#include "shmem/shared.hpp"

namespace tq
{

namespace
{

struct Clock
{
	std::atomic<Micros> wall_offset;
	std::atomic<Micros> mono_offset;
	std::atomic<Micros> fake; // the last applied tq.fake_now; 0: none
};

Clock *shared_clock = nullptr;

// Only the postmaster applies tq.fake_now. It reads the configuration files before it signals other processes, so each
// change is applied once, and a process that sees the new value also sees the new time. The postmaster's SIGHUP then
// wakes workers and waiting sessions. In the postmaster this only stores into memory and logs.
//
// A step forward also advances the monotonic clock, so leases and limits expire as if the time had passed. That clock
// never goes back.
void follow_fake_now()
{
	if (IsUnderPostmaster || shared_clock == nullptr)
		return;
	const Micros fake = guc::fake_now;
	if (shared_clock->fake.load() == fake)
		return;
	const Micros offset = fake != 0 ? fake - GetCurrentTimestamp() : 0;
	const Micros step = offset - shared_clock->wall_offset.load();
	if (step > 0)
		shared_clock->mono_offset.fetch_add(step);
	shared_clock->wall_offset.store(offset);
	shared_clock->fake.store(fake);
	if (fake != 0)
		ereport(WARNING, (errmsg("tq: the clock was set to %s by tq.fake_now", timestamptz_to_str(fake)),
						  errhint("This is for tests only: jobs start, lose their leases and are deleted by that "
								  "clock.")));
	else
		ereport(LOG, (errmsg("tq: the clock shows the server's time again")));
}

} // namespace

Size clock_size() { return sizeof(Clock); }

void init_clock()
{
	bool found = false;
	shared_clock = static_cast<Clock *>(ShmemInitStruct("tq clock", clock_size(), &found));
	if (!found)
		memset(static_cast<void *>(shared_clock), 0, clock_size());
	guc::fake_now_assigned = follow_fake_now;
	follow_fake_now();
}

namespace
{

Micros wall_offset() noexcept
{
	const Db *db = current_db();
	return shared_clock->wall_offset.load(std::memory_order_relaxed) +
		   (db != nullptr ? db->wall_offset.load(std::memory_order_relaxed) : 0);
}

} // namespace

Micros wall_now() noexcept { return GetCurrentTimestamp() + wall_offset(); }

Micros mono_now() noexcept
{
	const Db *db = current_db();
	return db != nullptr ? mono_now_in(*db) : steady_now() + shared_clock->mono_offset.load(std::memory_order_relaxed);
}

Micros mono_now_in(const Db &db) noexcept
{
	return steady_now() + shared_clock->mono_offset.load(std::memory_order_relaxed) +
		   db.mono_offset.load(std::memory_order_relaxed);
}

Micros steady_now() noexcept
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return static_cast<Micros>(t.tv_sec) * 1000000 + t.tv_nsec / 1000;
}

Micros commit_time() noexcept { return GetCurrentTransactionStopTimestamp() + wall_offset(); }

bool clock_is_fake(Micros *ahead) noexcept
{
	*ahead = wall_offset();
	return shared_clock->fake.load() != 0 || *ahead != shared_clock->wall_offset.load();
}

void set_database_clock(Db &db, Micros wall) noexcept
{
	const Micros server = GetCurrentTimestamp() + shared_clock->wall_offset.load();
	const Micros offset = wall != 0 ? wall - server : 0;
	const Micros step = offset - db.wall_offset.exchange(offset);
	if (step > 0)
		db.mono_offset.fetch_add(step);
	wake_scheduler(db);
}

void set_clock_offsets(Micros wall, Micros mono) noexcept
{
	shared_clock->wall_offset.store(wall);
	shared_clock->mono_offset.store(mono);
	for (int i = 0; i < guc::max_databases; ++i)
		wake_scheduler(db_at(i));
}

} // namespace tq
