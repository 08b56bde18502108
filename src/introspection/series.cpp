// tq_series: what queues did, by minute, over the last day. The scheduler records the counters of each queue once a
// minute; what came after the last record is read from the counters themselves.
// Regime: PG; raises 22023, 42501, TQ002. Locks: queue locks and "tq series", one at a time.
#include "introspection/series.hpp"

#include "api/args.hpp"
#include "database/attach.hpp"
#include "queues/rights.hpp"
#include "shmem/series.hpp"
#include "pg/function.hpp"
#include "pg/rows.hpp"

namespace tq
{

namespace
{

using core::Histogram;
using core::SeriesCounts;
using core::SeriesOwner;

constexpr Micros kMinute = 60 * core::kSecond, kDay = core::kDayMinutes * kMinute;

int64 current_minute() noexcept { return std::max<Micros>(wall_now(), 0) / kMinute; }

// What a queue has counted since the server started. Queue lock held. The lower halves suffice for differences.
SeriesCounts counters_of(const Queue &q) noexcept
{
	SeriesCounts n{};
	const uint64 totals[] = {q.enqueued, q.claimed, q.succeeded, q.failed, q.lost, q.dead};
	static_assert(lengthof(totals) == SeriesCounts::kTotals);
	std::transform(std::begin(totals), std::end(totals), n.totals,
				   [](uint64 total) noexcept { return static_cast<uint32>(total); });
	std::copy_n(q.waits.counts, Histogram::kBuckets, n.waits);
	std::copy_n(q.runs.counts, Histogram::kBuckets, n.runs);
	return n;
}

SeriesOwner owner_of(const Db &db, const Queue &q) noexcept { return {db.database, db.extension, q.id}; }

// The queue's identity and counters; false if the slot is no queue of this database with a row.
bool look(const Db &db, uint16_t slot, SeriesOwner *owner, SeriesCounts *now) noexcept
{
	const Queue &q = engine.queue(slot);
	lock_queue(slot);
	const bool ours = q.state != core::QueueState::free && q.db == index_of(db) && q.id != 0;
	if (ours)
	{
		*owner = owner_of(db, q);
		*now = counters_of(q);
	}
	unlock_queue(slot);
	return ours;
}

// The counts of one minute, of any number of queues.
struct Point
{
	uint64 totals[SeriesCounts::kTotals];
	uint64 waits[Histogram::kBuckets];
	uint64 runs[Histogram::kBuckets];

	template <class From> void add(const From &n) noexcept
	{
		for (int i = 0; i < SeriesCounts::kTotals; ++i)
			totals[i] += n.totals[i];
		for (int i = 0; i < Histogram::kBuckets; ++i)
		{
			waits[i] += n.waits[i];
			runs[i] += n.runs[i];
		}
	}
};

// The minutes of `from` to `to`. A point of several minutes is in its first one.
struct Minutes
{
	int64 from, to;
	uint32 coarsest; // minutes of the coarsest point
	Point *points;

	void add(int64 at, uint32 span, const SeriesCounts &n) noexcept
	{
		coarsest = std::max(coarsest, span);
		points[std::clamp(at, from, to) - from].add(n);
	}
};

void collect(const Db &db, uint16_t slot, Minutes *m)
{
	SeriesOwner owner{};
	SeriesCounts now{};
	if (!look(db, slot, &owner, &now))
		return;
	LWLockAcquire(series_lock(), LW_SHARED);
	series.visit(slot, owner, m->from, m->to, now,
				 [m](int64 at, uint32 span, const SeriesCounts &n) { m->add(at, span, n); });
	LWLockRelease(series_lock());
}

constexpr pg::ColumnSpec kSeries[] = {
	{"at", TIMESTAMPTZOID},	 {"span", INTERVALOID},		{"enqueued", INT8OID},	   {"claimed", INT8OID},
	{"succeeded", INT8OID},	 {"failed", INT8OID},		{"lost", INT8OID},		   {"dead", INT8OID},
	{"wait_p50", INTERVALOID}, {"wait_p99", INTERVALOID}, {"run_p50", INTERVALOID}, {"run_p99", INTERVALOID},
};

void add_interval(pg::RowValues *row, Micros length)
{
	if (length < 0)
		return row->add_null();
	auto *interval = static_cast<Interval *>(palloc0(sizeof(Interval)));
	interval->time = length;
	row->add_pointer(interval);
}

void put_point(const pg::RowSet &rows, int64 minute, int64 minutes, const Point &p)
{
	pg::RowValues row;
	row.add(TimestampTzGetDatum(minute * kMinute));
	add_interval(&row, minutes * kMinute);
	for (const uint64 n : p.totals)
		row.add_int8(static_cast<int64>(n));
	for (const auto *counts : {&p.waits, &p.runs})
		for (const double q : {0.5, 0.99})
			add_interval(&row, core::quantile(*counts, q));
	rows.put(row);
}

} // namespace

void sample_series(const Db &db) noexcept
{
	static int64 sampled = -1; // minute of the last call that recorded; of this process
	const int64 minute = current_minute();
	if (minute == sampled)
		return;
	if (sampled < 0)
	{
		LWLockAcquire(series_lock(), LW_EXCLUSIVE);
		series.adopt([&db](const SeriesOwner &owner) noexcept -> int64 {
			const bool ours = owner.database == db.database && owner.extension == db.extension;
			const uint16_t slot = ours ? queue_of_id(db, owner.queue) : kNoQueue;
			return slot == kNoQueue ? -1 : slot;
		});
		LWLockRelease(series_lock());
	}
	const int64 at = sampled < 0 ? minute : std::min(sampled, minute); // earlier only if the clock went back
	for_queues(db, [&db, at](uint16_t slot, const Queue &) {
		SeriesOwner owner{};
		SeriesCounts now{};
		if (!look(db, slot, &owner, &now))
			return;
		LWLockAcquire(series_lock(), LW_EXCLUSIVE);
		series.sample(slot, owner, at, now);
		LWLockRelease(series_lock());
	});
	sampled = minute;
}

TQ_FUNCTION(tq_series)
{
	Db &db = loaded_database(fcinfo);
	const char *queue = text_or_null(fcinfo, 0, "queue");
	const Micros since = interval_or(fcinfo, 1, "since", kDay, kMinute, kDay);
	const Micros step = interval_or(fcinfo, 2, "step", kMinute, kMinute, kDay);
	const pg::RowSet rows = pg::begin_rows(fcinfo, pg::row_shape(kSeries));
	Minutes m{};
	m.to = current_minute();
	m.from = std::max<int64>(m.to - (since + kMinute - 1) / kMinute + 1, 0);
	m.coarsest = 1;
	m.points = static_cast<Point *>(palloc0(sizeof(Point) * static_cast<Size>(m.to - m.from + 1)));
	if (queue != nullptr)
		collect(db, queue_with_right(db, queue, kMayCount), &m);
	else
	{
		const Rights &mine = rights(db);
		for_queues(db, [&db, &mine, &m](uint16_t slot, const Queue &q) {
			if (mine.may(q, kMayCount))
				collect(db, slot, &m);
		});
	}
	// the points of one row do not overlap those of the next
	const int64 coarsest = m.coarsest;
	const int64 minutes = ((step + kMinute - 1) / kMinute + coarsest - 1) / coarsest * coarsest;
	for (int64 at = m.from / minutes * minutes; at <= m.to; at += minutes)
	{
		Point sum{};
		for (int64 i = std::max(at, m.from); i < std::min(at + minutes, m.to + 1); ++i)
			sum.add(m.points[i - m.from]);
		put_point(rows, at, minutes, sum);
	}
	return static_cast<Datum>(0);
}

} // namespace tq
