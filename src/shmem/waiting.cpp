#include "shmem/waiting.hpp"

#include "pg/array.hpp"

namespace tq
{

namespace
{

uint16_t registered[core::kWaitersPerProc];
int nregistered = 0;

pg::Array<uint32> rows; // in which this session has set its bit

Ref node(int i) noexcept { return my_proc * core::kWaitersPerProc + static_cast<Ref>(i); }

uint32 wait_event()
{
	static uint32 event = 0;
	if (event == 0)
		event = pg::wait_event("TqWaitForJob");
	return event;
}

void reserve_rows(int n) { rows.reserve(TopMemoryContext, n); }

void set_bit(uint32 row) noexcept
{
	rows.push(row);
	engine.watch(row, my_proc);
}

void set_bit_once(uint32 row) noexcept
{
	if (!engine.has_bit(row, my_proc))
		set_bit(row);
}

// Names share the rows of jobs. A row that stands for two of them wakes a session once too often.
uint32 name_row(const Db &db, const char *name) noexcept
{
	return engine.job_row(index_of(db), static_cast<JobId>(core::hash_name(name)));
}

// Sets the bits of the queues and registers; the order is the one that Engine::watch asks for.
void watch_queues(const Wanted *queues, int n) noexcept
{
	uint64 pairs[core::kWatcherPairs];
	uint32 npairs = 0;
	for (int i = 0; i < n; ++i)
	{
		set_bit(queues[i].queue);
		if (queues[i].nkinds > 0)
			pairs[npairs++] = core::watched_pair(queues[i].queue, core::kSomeKinds);
		for (int k = 0; k < queues[i].nkinds; ++k)
			pairs[npairs++] = core::watched_pair(queues[i].queue, queues[i].kinds[k]);
	}
	std::sort(pairs, pairs + npairs);
	engine.watch_begin(my_proc, pairs, npairs);
}

// For a session that has registered as a waiter: see Engine::any_startable.
bool is_claimable(uint16_t queue, const uint64_t *kinds, int nkinds) noexcept
{
	Key key{};
	if (!engine.may_start(queue))
		return false;
	lock_queue(queue);
	const bool found = engine.claimable(engine.queue(queue), kinds, nkinds, &key);
	unlock_queue(queue);
	return found;
}

bool is_claimable(const Wanted &w) noexcept { return is_claimable(w.queue, w.kinds, w.nkinds); }

} // namespace

void wait_begin(const Wanted *queues, int n, uint64 workers)
{
	wait_end();
	if (n > static_cast<int>(core::kWaitersPerProc))
	{
		reserve_rows(n);
		watch_queues(queues, n);
		return;
	}
	for (int i = 0; i < n; ++i)
	{
		const uint16_t queue = queues[i].queue;
		lock_queue(queue);
		engine.wait_enter(engine.queue(queue), node(i), my_proc, queues[i].kinds, queues[i].nkinds, workers);
		unlock_queue(queue);
		registered[nregistered++] = queue;
	}
}

void wait_begin_all(const Db &db)
{
	wait_end();
	reserve_rows(1);
	set_bit(engine.all_row(index_of(db)));
	engine.watch_begin(my_proc, nullptr, 0);
}

void wait_begin_jobs(const Db &db, const JobId *ids, int n)
{
	wait_end();
	reserve_rows(std::min(n, static_cast<int>(core::kJobRows)));
	for (int i = 0; i < n; ++i)
		set_bit_once(engine.job_row(index_of(db), ids[i]));
}

void wait_for_name(const Db &db, const char *name)
{
	reserve_rows(1);
	set_bit_once(name_row(db, name));
}

// A session that looked before the name was in place registered before that, so it is found here.
void wake_for_name(const Db &db, const char *name) noexcept { engine.wake_watchers(name_row(db, name), false); }

void wake_for_end(const Db &db, JobId id) noexcept
{
	const uint32 row = engine.job_row(index_of(db), id);
	if (engine.is_watched(row))
		engine.wake_watchers(row, false);
}

namespace
{

// Readers of changes share the rows of those that wait for jobs: ids of jobs are above zero.
JobId changes_of(uint16_t queue) noexcept { return queue == kNoQueue ? 0 : -1 - JobId{queue}; }

} // namespace

void wait_begin_changes(const Db &db, uint16_t queue)
{
	const JobId id = changes_of(queue);
	wait_begin_jobs(db, &id, 1);
}

void wake_for_changes(const Db &db, uint16_t queue) noexcept { wake_for_end(db, changes_of(queue)); }

bool wait_check(const Wanted *queues, int n) noexcept
{
	const uint16_t first = rows.n > 0 ? engine.token_of_watcher(my_proc) : kNoQueue;
	for (int i = 0; i < n && first != kNoQueue; ++i)
		if (queues[i].queue == first && is_claimable(queues[i]))
			return true;
	return std::any_of(queues, queues + n, [](const Wanted &w) noexcept { return is_claimable(w); });
}

bool wait_check_all(const Db &db) noexcept
{
	const uint16_t first = engine.token_of_watcher(my_proc);
	return (first != kNoQueue && is_claimable(first, nullptr, 0)) ||
		   any_startable_queue(db, [](uint16_t slot) noexcept { return is_claimable(slot, nullptr, 0); });
}

bool has_backlog(const Wanted *queues, int n) noexcept
{
	bool found = false;
	for (int i = 0; i < n && !found; ++i)
	{
		const uint64_t *end = queues[i].kinds + queues[i].nkinds;
		lock_queue(queues[i].queue);
		const Queue &q = engine.queue(queues[i].queue);
		for (uint16_t k = q.lanes; k != core::kNoLane && !found; k = engine.lane(k).next)
		{
			const Lane &l = engine.lane(k);
			const bool wanted =
				queues[i].nkinds == 0 || std::find(queues[i].kinds, end, l.kind_hash) != end;
			found = wanted && (engine.runs_dry(q, l) || (q.paused_until == 0 && engine.reads_groups(q)));
		}
		unlock_queue(queues[i].queue);
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
	if (rows.n == 0)
		return;
	const uint16_t token = engine.watch_end(my_proc);
	for (const uint32 row : rows)
		engine.unwatch(row, my_proc);
	rows.n = 0;
	if (token == kNoQueue)
		return;
	lock_queue(token);
	engine.return_token(engine.queue(token), my_proc, pass);
	unlock_queue(token);
}

bool has_token(uint16_t queue) noexcept
{
	for (int i = 0; i < nregistered; ++i)
		if (registered[i] == queue && engine.waiter(node(i)).granted)
			return true;
	return rows.n > 0 && engine.token_of_watcher(my_proc) == queue;
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
	// Claims no job for a disconnected client.
	if (MyProcPort != nullptr && !pq_check_connection())
		ereport(FATAL, (errcode(ERRCODE_CONNECTION_FAILURE), errmsg("connection to client lost")));
	// Last, because pq_check_connection resets this session's latch, which an interrupt may just have set.
	CHECK_FOR_INTERRUPTS();
	return true;
}

} // namespace tq
