#include "shmem/grant_changes.hpp"

#include "guc.hpp"
#include "shmem/shared.hpp"

namespace tq
{

namespace
{

// Times only grow. After another queue takes a slot, the slot's time makes sessions read its rights once too often.
struct Times
{
	std::atomic<uint64> clock; // the last commit that changed rights, in any database
	std::atomic<uint64> all;   // the last commit about all queues or an unknown one
	std::atomic<uint64> of_slot[FLEXIBLE_ARRAY_MEMBER];
};
Times *times = nullptr;

constexpr int kMost = 8;
constexpr int32 kUnknown = -1;

// What this transaction has changed.
struct Open
{
	int32 about = kUnknown; // set by begin_grants_of
	uint16_t slots[kMost] = {};
	int nslots = 0;
	bool noted = false;
	bool noted_all = false;
};
Open tx;

void later(std::atomic<uint64> &time, uint64 to) noexcept
{
	uint64 was = time.load();
	while (was < to && !time.compare_exchange_weak(was, to))
		;
}

} // namespace

void begin_grants_of(int32 queue_id) noexcept { tx.about = queue_id; }
void end_grants_of() noexcept { tx.about = kUnknown; }

void note_grants() noexcept
{
	tx.noted = true;
	const Db *db = preloaded() ? current_db() : nullptr;
	const uint16_t slot = tx.about > 0 && db != nullptr ? queue_of_id(*db, tx.about) : kNoQueue;
	if (std::find(tx.slots, tx.slots + tx.nslots, slot) != tx.slots + tx.nslots)
		return;
	if (slot == kNoQueue || tx.nslots == kMost)
		tx.noted_all = true;
	else
		tx.slots[tx.nslots++] = slot;
}

bool grants_noted() noexcept { return tx.noted; }

void publish_grants() noexcept
{
	if (!tx.noted || times == nullptr)
		return;
	const uint64 now = times->clock.fetch_add(1) + 1;
	for (int i = 0; i < tx.nslots; ++i)
		later(times->of_slot[tx.slots[i]], now);
	if (tx.noted_all)
		later(times->all, now);
}

void forget_grants() noexcept
{
	tx = Open{};
}

uint64 grant_clock() noexcept { return tx.noted || times == nullptr ? 0 : times->clock.load(); }

bool grants_unchanged_since(uint64 then) noexcept { return then > 0 && !tx.noted && times->all.load() <= then; }

bool grants_unchanged_since(uint64 then, uint16_t slot) noexcept
{
	return grants_unchanged_since(then) && times->of_slot[slot].load() <= then;
}

Size grants_size() noexcept
{
	return offsetof(Times, of_slot) + sizeof(std::atomic<uint64>) * static_cast<Size>(guc::max_queues);
}

void init_grants()
{
	bool found = false;
	times = static_cast<Times *>(ShmemInitStruct("tq changes of rights", grants_size(), &found));
	if (!found)
	{
		memset(static_cast<void *>(times), 0, grants_size());
		times->clock.store(1);
	}
}

} // namespace tq
