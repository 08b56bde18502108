#include "live/waiting.hpp"

namespace tq::live
{

namespace
{

uint16_t registered[core::kWaitersPerProc];
int nregistered = 0;

Ref node(int i) noexcept { return my_proc * core::kWaitersPerProc + static_cast<Ref>(i); }

uint32 wait_event()
{
	static uint32 event = 0;
	if (event == 0)
		event = pg::wait_event("TqWaitForJob");
	return event;
}

} // namespace

void wait_begin(const uint16_t *queues, int n, const Filter &filter) noexcept
{
	wait_end();
	for (int i = 0; i < n && i < static_cast<int>(core::kWaitersPerProc); ++i)
	{
		lock_queue(queues[i]);
		engine.wait_enter(engine.queue(queues[i]), node(i), my_proc, filter.kinds, filter.nkinds);
		unlock_queue(queues[i]);
		registered[nregistered++] = queues[i];
	}
}

bool wait_check(const uint16_t *queues, int n, const Filter &filter) noexcept
{
	bool found = false;
	for (int i = 0; i < n && !found; ++i)
	{
		Key key{};
		lock_queue(queues[i]);
		found = engine.claimable(engine.queue(queues[i]), filter.kinds, filter.nkinds, &key);
		unlock_queue(queues[i]);
	}
	return found;
}

bool has_backlog(const uint16_t *queues, int n, const Filter &filter) noexcept
{
	bool found = false;
	for (int i = 0; i < n && !found; ++i)
	{
		lock_queue(queues[i]);
		const Queue &q = engine.queue(queues[i]);
		for (uint16_t k = q.lanes; k != core::kNoLane && !found; k = engine.lane(k).next)
		{
			const Lane &l = engine.lane(k);
			const bool wanted = filter.nkinds == 0 ||
								std::find(filter.kinds, filter.kinds + filter.nkinds, l.kind_hash) != filter.kinds + filter.nkinds;
			found = wanted && (engine.runs_dry(q, l) || (q.paused_until == 0 && engine.reads_groups(q)));
		}
		unlock_queue(queues[i]);
	}
	return found;
}

void wait_end(bool pass) noexcept
{
	for (int i = 0; i < nregistered; ++i)
	{
		lock_queue(registered[i]);
		engine.wait_leave(engine.queue(registered[i]), node(i), pass);
		unlock_queue(registered[i]);
	}
	nregistered = 0;
}

bool wait_sleep(Micros deadline)
{
	const Micros left = deadline - steady_now();
	if (left <= 0)
		return false;
	TQ_WAIT_POINT("waiter-after-register");
	const long ms = static_cast<long>(std::min<Micros>((left + 999) / 1000, 3600000));
	static_cast<void>(WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, wait_event()));
	ResetLatch(MyLatch);
	TQ_WAIT_POINT("woken-before-claim");
	// no job for a client that has gone away while it waited
	if (MyProcPort != nullptr && !pq_check_connection())
		ereport(FATAL, (errcode(ERRCODE_CONNECTION_FAILURE), errmsg("connection to client lost")));
	CHECK_FOR_INTERRUPTS(); // after it: it resets the latch of whoever interrupts us just then
	return true;
}

} // namespace tq::live
