// Counts of each queue by minute, over the last day, in memory of fixed size.
//
// A queue's counts are in pages of 60 points; minutes without events need no page. When no page is free, neighbouring
// pages of a queue are merged, and the points of the merged page cover two minutes each, then four, up to 32. When
// nothing is left to merge, the oldest pages are dropped. So recent counts stay the finest.
// Regime: core. Locks: the caller's, exclusive for everything but visit().
#pragma once

#include "core/histogram.hpp"

namespace tq::core
{

constexpr int64_t kDayMinutes = 1440;

struct SeriesCounts
{
	static constexpr int kTotals = 6; // enqueued, claimed, succeeded, failed, lost, dead
	uint32_t totals[kTotals];
	uint32_t waits[Histogram::kBuckets]; // see Queue::waits
	uint32_t runs[Histogram::kBuckets];

	void add(const SeriesCounts &n) noexcept; // saturates
	// The events since `before`; all events if a counter was reset since then. Counters wrap at 2^32. A difference of
	// more than half of that is a reset.
	SeriesCounts since(const SeriesCounts &before) const noexcept;
	bool empty() const noexcept;
};

// Identifies a queue across restarts.
struct SeriesOwner
{
	uint32_t database, extension;
	int32_t queue;
	bool operator==(const SeriesOwner &) const = default;
};

struct SeriesPage
{
	static constexpr int kPoints = 60;
	SeriesOwner owner;
	uint32_t step;	// minutes per point; 0: the page is free
	int64_t first;	// minute of the first point, a multiple of kPoints * step
	Ref older;		// the queue's next older page, or the next free one
	bool linked;	// in its queue's list; false: saved before a restart, and not adopted yet
	SeriesCounts points[kPoints];

	int64_t end() const noexcept { return first + kPoints * static_cast<int64_t>(step); }
};

class Series
{
public:
	static size_t size(uint32_t queues, uint32_t pages) noexcept;
	void create(void *memory, uint32_t queues, uint32_t pages) noexcept;
	void attach(void *memory) noexcept;

	// Records the queue's counters: what came since the last call counts for this minute.
	void sample(uint32_t slot, const SeriesOwner &owner, int64_t minute, const SeriesCounts &now) noexcept;

	// Calls fn(first minute, minutes, counts) for each point that ends after `from`, the newest page first, then for
	// what the queue has counted since the last sample.
	template <class Fn>
	void visit(uint32_t slot, const SeriesOwner &owner, int64_t from, int64_t minute, const SeriesCounts &now,
			   Fn &&fn) const
	{
		const Head &h = heads_[slot];
		const bool known = h.owner == owner;
		for (Ref r = known ? h.newest : kNil; r != kNil && pages_[r].end() > from; r = pages_[r].older)
		{
			const SeriesPage &p = pages_[r];
			for (int i = 0; i < SeriesPage::kPoints; ++i)
				if (const int64_t at = p.first + i * static_cast<int64_t>(p.step);
					at + p.step > from && !p.points[i].empty())
					fn(at, p.step, p.points[i]);
		}
		if (const SeriesCounts rest = now.since(known ? h.last : SeriesCounts{}); !rest.empty())
			fn(minute, uint32_t{1}, rest);
	}

	// Pages in use, the oldest of each queue first, to be saved; and their return after a restart. Pages of an earlier
	// restart that no queue has adopted yet are still in the order in which they were restored.
	template <class Fn> void visit_pages(Fn &&fn) const
	{
		for (uint32_t slot = 0; slot < header_->queues; ++slot)
			visit_from(heads_[slot].newest, fn);
		for (uint32_t i = 0; i < header_->pages; ++i)
			if (pages_[i].step > 0 && !pages_[i].linked)
				fn(pages_[i]);
	}
	void restore(const SeriesPage &saved) noexcept;
	// Gives a restored page's queue its pages: slot_of(owner) is the slot, or -1 if the queue is not this caller's.
	template <class SlotOf> void adopt(SlotOf &&slot_of) noexcept
	{
		for (uint32_t i = 0; i < header_->pages; ++i)
			if (SeriesPage &p = pages_[i]; p.step > 0 && !p.linked)
				if (const int64_t slot = slot_of(p.owner); slot >= 0)
					link(static_cast<uint32_t>(slot), i);
	}

	uint32_t pages() const noexcept { return header_->pages; }
	uint32_t free_pages() const noexcept;

private:
	struct Header
	{
		uint32_t queues, pages;
		Ref free;
	};
	struct Head
	{
		SeriesOwner owner;
		Ref newest;
		SeriesCounts last; // the queue's counters when it was last sampled
	};

	template <class Fn> void visit_from(Ref r, Fn &fn) const
	{
		if (r == kNil)
			return;
		visit_from(pages_[r].older, fn); // at most one page for each hour since the queue began
		fn(pages_[r]);
	}
	void own(uint32_t slot, const SeriesOwner &owner) noexcept;
	void link(uint32_t slot, Ref r) noexcept;
	void release(Ref r) noexcept;
	Ref take(int64_t minute) noexcept;
	template <class Drop> void drop_if(Drop &&drop) noexcept;
	void coarsen(uint32_t step) noexcept;
	void rescale(SeriesPage &p, uint32_t step) noexcept;

	Header *header_ = nullptr;
	Head *heads_ = nullptr;
	SeriesPage *pages_ = nullptr;
};

// The time that a share `q` (0 to 1) of the counted durations do not exceed, interpolated within its bucket. Times
// beyond the last bound count as that bound. -1: none were counted.
Micros quantile(const uint64_t (&counts)[Histogram::kBuckets], double q) noexcept;

} // namespace tq::core
