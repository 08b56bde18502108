#include "live/clock.hpp"

#include <time.h>

#include "guc.hpp"
#include "live/shared.hpp"

namespace tq::live
{

namespace
{

struct Clock
{
	std::atomic<Micros> wall_offset;
	std::atomic<Micros> mono_offset;
	std::atomic<Micros> fake; // the tq.fake_now that was applied last, 0: none
};

Clock *shared_clock = nullptr;

// Only the postmaster applies tq.fake_now: it reads the files before it tells anybody to, so each change is applied once, and whoever
// sees the new value also sees the new time. It then sends SIGHUP to every process, which wakes workers and those who wait for jobs. Two
// stores into memory is all it does there.
//
// A step forward takes the monotonic clock along, so leases and limits run out as if the time had passed. That clock never goes back.
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
						  errhint("This is for tests only: jobs are started, taken back and deleted by that clock.")));
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

Micros wall_now() noexcept { return GetCurrentTimestamp() + shared_clock->wall_offset.load(std::memory_order_relaxed); }

Micros mono_now() noexcept { return steady_now() + shared_clock->mono_offset.load(std::memory_order_relaxed); }

Micros steady_now() noexcept
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return static_cast<Micros>(t.tv_sec) * 1000000 + t.tv_nsec / 1000;
}

Micros commit_time() noexcept
{
	return GetCurrentTransactionStopTimestamp() + shared_clock->wall_offset.load(std::memory_order_relaxed);
}

bool clock_is_fake(Micros *ahead) noexcept
{
	*ahead = shared_clock->wall_offset.load();
	return shared_clock->fake.load() != 0;
}

void set_clock_offsets(Micros wall, Micros mono) noexcept
{
	shared_clock->wall_offset.store(wall);
	shared_clock->mono_offset.store(mono);
	for (int i = 0; i < guc::max_databases; ++i)
		wake_scheduler(db_at(i));
}

} // namespace tq::live
