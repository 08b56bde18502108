#include "core/series.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

namespace tq::core
{

namespace
{

constexpr uint32_t kCoarsest = 32; // minutes per point; a page then covers more than a day
constexpr size_t kAlign = 64;
constexpr size_t kCounts = sizeof(SeriesCounts) / sizeof(uint32_t);

constexpr size_t aligned(size_t n) noexcept { return (n + kAlign - 1) / kAlign * kAlign; }

// The counts as one array.
const uint32_t *numbers(const SeriesCounts &c) noexcept { return c.totals; }
uint32_t *numbers(SeriesCounts &c) noexcept { return c.totals; }
static_assert(offsetof(SeriesCounts, totals) == 0 &&
			  kCounts == SeriesCounts::kTotals + 2 * static_cast<size_t>(Histogram::kBuckets));

int64_t window(const SeriesPage &p, uint32_t step) noexcept
{
	return p.first / (SeriesPage::kPoints * static_cast<int64_t>(step));
}

} // namespace

void SeriesCounts::add(const SeriesCounts &n) noexcept
{
	for (size_t i = 0; i < kCounts; ++i)
	{
		uint32_t &to = numbers(*this)[i];
		to += std::min(numbers(n)[i], UINT32_MAX - to);
	}
}

SeriesCounts SeriesCounts::since(const SeriesCounts &before) const noexcept
{
	SeriesCounts diff{};
	for (size_t i = 0; i < kCounts; ++i)
	{
		numbers(diff)[i] = numbers(*this)[i] - numbers(before)[i]; // also across a wrap
		if (numbers(diff)[i] > UINT32_MAX / 2)
			return *this;
	}
	return diff;
}

bool SeriesCounts::empty() const noexcept
{
	return std::all_of(numbers(*this), numbers(*this) + kCounts, [](uint32_t n) noexcept { return n == 0; });
}

size_t Series::size(uint32_t queues, uint32_t pages) noexcept
{
	return aligned(sizeof(Header)) + aligned(sizeof(Head) * queues) + sizeof(SeriesPage) * pages;
}

void Series::create(void *memory, uint32_t queues, uint32_t pages) noexcept
{
	auto *header = static_cast<Header *>(memory);
	*header = Header{queues, pages, kNil};
	attach(memory);
	for (uint32_t i = 0; i < queues; ++i)
		heads_[i] = Head{{}, kNil, {}};
	for (uint32_t i = pages; i-- > 0;)
		release(i);
}

void Series::attach(void *memory) noexcept
{
	char *base = static_cast<char *>(memory);
	header_ = reinterpret_cast<Header *>(base);
	base += aligned(sizeof(Header));
	heads_ = reinterpret_cast<Head *>(base);
	base += aligned(sizeof(Head) * header_->queues);
	pages_ = reinterpret_cast<SeriesPage *>(base);
}

void Series::sample(uint32_t slot, const SeriesOwner &owner, int64_t minute, const SeriesCounts &now) noexcept
{
	own(slot, owner);
	Head &h = heads_[slot];
	const SeriesCounts n = now.since(h.last);
	h.last = now;
	if (n.empty())
		return;
	if (h.newest == kNil || pages_[h.newest].end() <= minute)
	{
		const Ref r = take(minute);
		if (r == kNil)
			return;
		SeriesPage &p = pages_[r];
		p.owner = owner;
		p.step = 1;
		p.first = minute / SeriesPage::kPoints * SeriesPage::kPoints;
		std::fill_n(p.points, SeriesPage::kPoints, SeriesCounts{});
		link(slot, r);
	}
	SeriesPage &p = pages_[h.newest];
	p.points[std::max<int64_t>(minute - p.first, 0) / p.step].add(n); // before `first`: the clock went back
}

void Series::restore(const SeriesPage &saved) noexcept
{
	const Ref r = header_->free;
	if (r == kNil)
		return;
	header_->free = pages_[r].older;
	pages_[r] = saved;
	pages_[r].older = kNil;
	pages_[r].linked = false;
}

uint32_t Series::free_pages() const noexcept
{
	uint32_t n = 0;
	for (Ref r = header_->free; r != kNil; r = pages_[r].older)
		++n;
	return n;
}

// Makes the slot this queue's. Pages of the queue that had it before become free.
void Series::own(uint32_t slot, const SeriesOwner &owner) noexcept
{
	Head &h = heads_[slot];
	if (h.owner == owner)
		return;
	while (h.newest != kNil)
		release(std::exchange(h.newest, pages_[h.newest].older));
	h.owner = owner;
	h.last = SeriesCounts{};
}

// Puts a page before the pages of its queue; frees it if the queue has counts for its time.
void Series::link(uint32_t slot, Ref r) noexcept
{
	SeriesPage &p = pages_[r];
	own(slot, p.owner);
	Head &h = heads_[slot];
	if (h.newest != kNil && pages_[h.newest].end() > p.first)
		return release(r);
	p.older = h.newest;
	p.linked = true;
	h.newest = r;
}

void Series::release(Ref r) noexcept
{
	pages_[r].step = 0;
	pages_[r].linked = false;
	pages_[r].older = header_->free;
	header_->free = r;
}

// Frees the pages for which drop(page) holds. A queue's pages older than such a page go with it.
template <class Drop> void Series::drop_if(Drop &&drop) noexcept
{
	for (uint32_t slot = 0; slot < header_->queues; ++slot)
	{
		Ref *at = &heads_[slot].newest;
		while (*at != kNil && !drop(pages_[*at]))
			at = &pages_[*at].older;
		for (Ref r = std::exchange(*at, kNil); r != kNil;)
			release(std::exchange(r, pages_[r].older));
	}
	for (uint32_t i = 0; i < header_->pages; ++i)
		if (pages_[i].step > 0 && !pages_[i].linked && drop(pages_[i]))
			release(i);
}

// A free page. Each pass over all pages frees many, so that few passes are needed.
Ref Series::take(int64_t minute) noexcept
{
	if (header_->free == kNil)
		drop_if([minute](const SeriesPage &p) noexcept { return !p.linked || p.end() <= minute - kDayMinutes; });
	for (uint32_t step = 2; header_->free == kNil && step <= kCoarsest; step *= 2)
		coarsen(step);
	if (header_->free == kNil)
	{
		int64_t oldest = INT64_MAX;
		for (uint32_t i = 0; i < header_->pages; ++i)
			oldest = std::min(oldest, pages_[i].end());
		drop_if([oldest](const SeriesPage &p) noexcept { return p.end() == oldest; });
	}
	const Ref r = header_->free;
	if (r != kNil)
		header_->free = pages_[r].older;
	return r;
}

// Merges neighbouring pages of a queue whose points fit into one page of points of `step` minutes; never the newest.
void Series::coarsen(uint32_t step) noexcept
{
	for (uint32_t slot = 0; slot < header_->queues; ++slot)
		for (Ref r = heads_[slot].newest == kNil ? kNil : pages_[heads_[slot].newest].older; r != kNil;)
		{
			SeriesPage &p = pages_[r];
			const Ref next = p.older;
			if (next == kNil || p.step > step || pages_[next].step > step ||
				window(p, step) != window(pages_[next], step))
			{
				r = next;
				continue;
			}
			SeriesPage &other = pages_[next];
			rescale(p, step);
			rescale(other, step);
			for (int i = 0; i < SeriesPage::kPoints; ++i)
				p.points[i].add(other.points[i]);
			p.older = other.older;
			release(next);
		}
}

void Series::rescale(SeriesPage &p, uint32_t step) noexcept
{
	if (p.step == step)
		return;
	SeriesCounts points[SeriesPage::kPoints] = {};
	const int64_t first = window(p, step) * SeriesPage::kPoints * step;
	for (int i = 0; i < SeriesPage::kPoints; ++i)
		points[(p.first + i * static_cast<int64_t>(p.step) - first) / step].add(p.points[i]);
	memcpy(p.points, points, sizeof(points));
	p.first = first;
	p.step = step;
}

Micros quantile(const uint64_t (&counts)[Histogram::kBuckets], double q) noexcept
{
	uint64_t all = 0;
	for (const uint64_t n : counts)
		all += n;
	if (all == 0)
		return -1;
	double left = q * static_cast<double>(all);
	Micros low = 0;
	for (int i = 0; i < Histogram::kBuckets - 1; ++i)
	{
		const auto n = static_cast<double>(counts[i]);
		const Micros high = Histogram::kBounds[i];
		if (n > 0 && left <= n)
			return low + static_cast<Micros>(static_cast<double>(high - low) * left / n);
		left -= n;
		low = high;
	}
	return low;
}

} // namespace tq::core
