#include "shmem/asked_kinds.hpp"

namespace tq
{

namespace
{

constexpr Micros kAgain = 10 * core::kSecond; // a session looks again for the same queue and kinds after this time
constexpr Micros kForgotten = 600 * core::kSecond;
constexpr uint32 kPerProc = 4;

struct Asked
{
	std::atomic<uint16_t> queue; // kNoQueue: none
	uint32 generation;
	Micros at; // mono_now
	char kind[core::kNameMax];
};

Asked *table = nullptr;

bool is_missing(const Queue &q, const char *kind) noexcept { return engine.find_lane(q, kind) == core::kNoLane; }

// The entry of this process for a kind, or the one to replace: a free one, or else the oldest.
Asked &entry_for(uint16_t queue, const char *kind) noexcept
{
	Asked *const own = table + my_proc * kPerProc;
	Asked *oldest = own;
	for (Asked *a = own; a < own + kPerProc; ++a)
	{
		if (a->queue.load() == queue && strcmp(a->kind, kind) == 0)
			return *a;
		if (a->queue.load() == kNoQueue || (oldest->queue.load() != kNoQueue && a->at < oldest->at))
			oldest = a;
	}
	return *oldest;
}

void note(uint16_t queue, uint32 generation, const char *kind) noexcept
{
	Asked &a = entry_for(queue, kind);
	const uint16_t former = a.queue.load();
	if (former != kNoQueue)
	{
		lock_queue(former);
		a.queue.store(kNoQueue);
		unlock_queue(former);
	}
	lock_queue(queue);
	if (is_missing(engine.queue(queue), kind))
	{
		a.generation = generation;
		a.at = mono_now();
		strlcpy(a.kind, kind, sizeof(a.kind));
		a.queue.store(queue);
	}
	unlock_queue(queue);
}

} // namespace

Size asked_kinds_size(uint32 procs) { return mul_size(sizeof(Asked), mul_size(procs, kPerProc)); }

void init_asked_kinds(uint32 procs)
{
	bool found = false;
	table = static_cast<Asked *>(ShmemInitStruct("tq asked kinds", asked_kinds_size(procs), &found));
	for (uint32 i = 0; !found && i < procs * kPerProc; ++i)
		new (table + i) Asked{kNoQueue, 0, 0, ""};
}

void note_asked_kinds(uint16_t queue, uint32 generation, const char *const *kinds, int n) noexcept
{
	struct Noted
	{
		uint64 what;
		Micros at;
	};
	static Noted noted[8]; // by hash; a collision only looks once more
	uint64 what = core::hash_name(kinds[0]) + (static_cast<uint64>(generation) << 16) + queue;
	for (int i = 1; i < n; ++i)
		what = what * 31 + core::hash_name(kinds[i]);
	Noted &last = noted[what % lengthof(noted)];
	const Micros now = mono_now();
	if (last.what == what && now - last.at < kAgain)
		return;
	last = Noted{what, now};
	for (int i = 0; i < n; ++i)
	{
		lock_queue(queue);
		const Queue &q = engine.queue(queue);
		const bool missing = q.generation == generation && is_missing(q, kinds[i]);
		unlock_queue(queue);
		if (missing)
			note(queue, generation, kinds[i]);
	}
}

void copy_asked_kinds(const Queue &q, AskedKinds *out) noexcept
{
	const uint16_t queue = engine.index_of(q);
	const Micros since = mono_now() - kForgotten;
	for (const Asked *a = table; a < table + engine.limits().procs * kPerProc && out->n < kMostAskedKinds; ++a)
	{
		if (a->queue.load() != queue || a->generation != q.generation || a->at < since || !is_missing(q, a->kind))
			continue;
		const auto same = [a](const char *kind) noexcept { return strcmp(kind, a->kind) == 0; };
		if (std::none_of(out->kinds, out->kinds + out->n, same))
			strlcpy(out->kinds[out->n++], a->kind, core::kNameMax);
	}
}

} // namespace tq
