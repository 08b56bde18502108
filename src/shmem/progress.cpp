#include "shmem/progress.hpp"

#include "guc.hpp"

namespace tq
{

namespace
{

struct Text
{
	uint16 length;
	char bytes[kProgressMax + 1];
};

constexpr uint32 kBits = 64;

struct Table
{
	uint32 slots;
	std::atomic<uint32> used;
	std::atomic<uint32> turn; // where the next search starts
};

Table *table = nullptr;
std::atomic<uint64> *taken = nullptr; // a bit for each slot
Text *texts = nullptr;

uint32 words(uint32 slots) noexcept { return (slots + kBits - 1) / kBits; }

// A free slot, now taken; -1 if there is none.
int32 take_slot() noexcept
{
	const uint32 n = words(table->slots);
	const uint32 from = n > 0 ? table->turn.load(std::memory_order_relaxed) : 0;
	for (uint32 i = 0; i < n; ++i)
	{
		const uint32 w = (from + i) % n;
		uint64 bits = taken[w].load(std::memory_order_relaxed);
		while (~bits != 0)
		{
			const auto b = static_cast<uint32>(__builtin_ctzll(~bits));
			if (w * kBits + b >= table->slots)
				break;
			if (taken[w].compare_exchange_weak(bits, bits | uint64{1} << b, std::memory_order_acquire))
			{
				table->turn.store(w, std::memory_order_relaxed);
				return static_cast<int32>(w * kBits + b);
			}
		}
	}
	return -1;
}

} // namespace

Size progress_size()
{
	const auto n = static_cast<uint32>(guc::max_progress);
	Size size = MAXALIGN(sizeof(Table));
	size = add_size(size, MAXALIGN(mul_size(sizeof(uint64), words(n))));
	return add_size(size, mul_size(sizeof(Text), n));
}

void init_progress()
{
	bool found = false;
	const auto n = static_cast<uint32>(guc::max_progress);
	char *base = static_cast<char *>(ShmemInitStruct("tq progress", progress_size(), &found));
	table = reinterpret_cast<Table *>(base);
	taken = reinterpret_cast<std::atomic<uint64> *>(base + MAXALIGN(sizeof(Table)));
	texts = reinterpret_cast<Text *>(base + MAXALIGN(sizeof(Table)) + MAXALIGN(sizeof(uint64) * words(n)));
	if (!found)
	{
		memset(static_cast<void *>(base), 0, progress_size());
		table->slots = n;
	}
}

bool set_progress(Entry &e, const char *text, Size length) noexcept
{
	if (e.progress == 0)
	{
		constexpr uint32 kFactor = 4; // one queue, or all queues that a role created, can have four of five slots
		core::Queue &q = engine.queue(e.queue);
		const core::Share share{0, table->slots, kFactor};
		const uint32 used = table->used.load(std::memory_order_relaxed);
		const bool may = share.left(used, used) > 0 || share.left(engine.held_by_creator(q).progress, used) > 0;
		const int32 slot = may ? take_slot() : -1;
		if (slot < 0)
			return false;
		e.progress = static_cast<uint16_t>(slot + 1);
		++q.progress;
		table->used.fetch_add(1);
	}
	Text &t = texts[e.progress - 1];
	t.length = static_cast<uint16>(std::min(length, kProgressMax));
	memcpy(t.bytes, text, t.length);
	return true;
}

bool copy_progress(const Entry &e, char *out) noexcept
{
	if (e.progress == 0)
		return false;
	const Text &t = texts[e.progress - 1];
	memcpy(out, t.bytes, t.length);
	out[t.length] = '\0';
	return true;
}

void clear_progress(Entry &e) noexcept
{
	if (e.progress == 0)
		return;
	end_progress(static_cast<uint16_t>(e.progress - 1));
	--engine.queue(e.queue).progress;
	e.progress = 0;
}

void end_progress(uint16_t slot) noexcept
{
	taken[slot / kBits].fetch_and(~(uint64{1} << slot % kBits), std::memory_order_release);
	table->used.fetch_sub(1);
}

} // namespace tq
