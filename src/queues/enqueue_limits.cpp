#include "queues/enqueue_limits.hpp"

#include "database/attach.hpp"
#include "queues/policy.hpp"
#include "pg/array.hpp"
#include "pg/errors.hpp"

namespace tq
{

namespace
{

struct Admission
{
	uint16_t queue;
	uint32 generation;
	SubTransactionId sub;
	int64 n;
};

// In TopTransactionContext, forgotten (not freed) when the transaction ends.
pg::Array<Admission> admissions;

Admission &admission_here(uint16_t queue)
{
	const SubTransactionId sub = GetCurrentSubTransactionId();
	for (int64 i = admissions.n; i-- > 0 && admissions[i].sub == sub;)
		if (admissions[i].queue == queue && admissions[i].generation == engine.queue(queue).generation)
			return admissions[i];
	return admissions.append(TopTransactionContext, Admission{queue, engine.queue(queue).generation, sub, 0});
}

void take_back(const Admission &a) noexcept
{
	lock_queue(a.queue);
	if (engine.queue(a.queue).generation == a.generation)
		engine.queue(a.queue).admitted -= a.n;
	unlock_queue(a.queue);
}

} // namespace

void await_enqueue_limits(Db &db, uint16_t queue)
{
	if (max_depth_of(engine.queue(queue).settings).value > 0)
		ensure_loaded(db); // without a load the number of jobs is unknown
}

void charge_enqueues(uint16_t queue, int64 n, int64 replacing, bool overdraw)
{
	Queue &q = engine.queue(queue);
	const int64 most = max_depth_of(q.settings).value;
	if (n == 0 || (most == 0 && !q.settings.enqueue_rate.limits()))
		return;
	await_enqueue_limits(*current_db(), queue);
	Admission *a = most > 0 ? &admission_here(queue) : nullptr;
	lock_queue(queue);
	const core::Rate rate = q.settings.enqueue_rate;
	const Micros now = mono_now();
	const int64 live = most > 0 ? q.admitted + engine.live_jobs(q) : 0;
	const int64 more = n - replacing;
	const bool full = !overdraw && most > 0 && more > 0 && live + more > most;
	const bool fast = !full && !overdraw && !q.enqueues.open(rate, now);
	const Micros opens = fast ? q.enqueues.opens_at(rate) - now : 0;
	if (!full && !fast)
	{
		q.enqueues.take(rate, now, n);
		if (a != nullptr)
		{
			q.admitted += more;
			a->n += more;
		}
	}
	unlock_queue(queue);
	if (full)
		ereport(ERROR,
				(errcode(kErrQueueFull), errmsg("queue \"%s\" is full", q.name),
				 errdetail("It has %lld live jobs, including those of open transactions; max_depth is %lld, and this "
						   "call adds %lld.",
						   static_cast<long long>(live), static_cast<long long>(most), static_cast<long long>(more)),
				 errhint("Try again when workers have caught up, or raise max_depth with tq_alter_queue.")));
	if (fast)
		ereport(ERROR,
				(errcode(kErrQueueFull), errmsg("enqueue_rate of queue \"%s\" is exceeded", q.name),
				 errdetail("The next enqueue is accepted in %lld ms.", static_cast<long long>((opens + 999) / 1000)),
				 errhint("Try again then, or raise enqueue_rate with tq_alter_queue.")));
}

void refund_enqueues(uint16_t queue, int64 n) noexcept
{
	Queue &q = engine.queue(queue);
	lock_queue(queue);
	if (q.enqueues.full_at < PG_INT64_MAX)
		q.enqueues.take(q.settings.enqueue_rate, mono_now(), -n);
	unlock_queue(queue);
}

void publish_enqueue_charges(Queue &q, uint16_t queue, int64 n) noexcept
{
	for (Admission &a : admissions)
	{
		if (a.queue != queue || a.generation != q.generation)
			continue;
		n = std::min(n, a.n);
		a.n -= n;
		q.admitted -= n;
		return;
	}
}

void end_enqueue_charges() noexcept
{
	while (admissions.n > 0)
		take_back(admissions[--admissions.n]);
	admissions.forget();
}

void end_sub_enqueue_charges(bool commit, SubTransactionId sub, SubTransactionId parent) noexcept
{
	int64 first = admissions.n;
	while (first > 0 && admissions[first - 1].sub >= sub)
		--first;
	while (!commit && admissions.n > first)
		take_back(admissions[--admissions.n]);
	// Merges admissions into the parent's, so each queue has one, for any number of subtransactions.
	int64 end = first;
	for (int64 i = first; i < admissions.n; ++i)
	{
		const Admission a = admissions[i];
		int64 k = end;
		while (k > 0 && admissions[k - 1].sub == parent &&
			   (admissions[k - 1].queue != a.queue || admissions[k - 1].generation != a.generation))
			--k;
		if (k > 0 && admissions[k - 1].sub == parent)
			admissions[k - 1].n += a.n;
		else
			admissions[end++] = Admission{a.queue, a.generation, parent, a.n};
	}
	admissions.n = end;
}

} // namespace tq
