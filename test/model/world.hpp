// The model's world: a journal of a few rows, the real engine, and actors. An actor's program is cut into steps where
// other processes can run in between: one lock, one commit, or one snapshot per step. All mutable state is plain data,
// so that the explorer can save and restore it.
// Regime: core tests, one thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "unit/rig.hpp"
#include "unit/verify.hpp"

namespace tq::model
{

using namespace tq::core;

constexpr int kMaxJobs = 4;
constexpr int kMaxActors = 8;	 // the last one delivers the remaining jobs
constexpr Micros kLater = 1'000; // once the clock has moved, every delayed job is due

// The protections. Each can be switched off, and then some exploration must fail.
enum Protection : uint32_t
{
	kPlaceholders = 1U << 0,	   // a loader reserves a job's identity before it reads the journal
	kFreshSnapshot = 1U << 1,	   // ... and reads with a snapshot taken after that
	kCommitting = 1U << 2,		   // a job to be published as an entry gets the entry before its commit
	kLimit = 1U << 3,			   // a loader stops before keys that sank during its read
	kVisibleFirst = 1U << 4,	   // an entry is dropped after its end is visible, not before
	kSinkBulk = 1U << 5,		   // jobs published without entries sink the watermark
	kSinkEvicted = 1U << 6,		   // an eviction sinks the watermark
	kGate = 1U << 7,			   // nothing at or above the watermark is claimed
	kMarks = 1U << 8,			   // a verb marks the entry when it is called
	kOneLoader = 1U << 9,		   // one loader at a time reads a lane
	kSinkAbandoned = 1U << 10,	   // a failed loader sinks the watermark to its abandoned placeholders
	kSinkTimerSkipped = 1U << 11,  // a lane loader that leaves a job to the timers sinks their watermark
	kTimerLimit = 1U << 12,		   // the timer loader checks its limit after raising
	kTimerRaiseChecked = 1U << 13, // ... and raises only if the watermark has not sunk since it began
	kTimerSinkLast = 1U << 14,	   // a sink lowers the limit, then the watermark
	kLeaseChecked = 1U << 15,	   // a finish needs the live lease
	kEvictWhenFull = 1U << 16,	   // a loader that finds memory full evicts later jobs
	kSinkLaneHanded = 1U << 17,	   // a timer loader that leaves a due job to its lane sinks the lane's watermark
	kOneTimerLoader = 1U << 18,	   // one loader at a time reads delayed jobs
	kLeastId = 1U << 19,		   // jobs published without entries report their least id
	kAll = (1U << 20) - 1,
};

// The journal's record of a job.
struct Row
{
	bool visible;
	uint8_t closed; // terminal events
	uint8_t place;	// 1: moved to another segment
	Micros due;		// kNever: ready
	bool alive() const { return visible && closed == 0; }
};

enum class Role : uint8_t
{
	producer,
	bulk,
	worker,
	loader,
	timer_loader,
	evictor,
	canceller,
	mover,
	firer,
	reaper,
	clock,
};

struct Actor
{
	Role role;
	uint8_t pc;
	int8_t budget; // how many more rounds it may begin
	int8_t job;
	bool done;
	bool failing; // worker: this attempt fails
	bool cand[kMaxJobs];
	bool mine[kMaxJobs]; // placeholders that it owns
	Row seen[kMaxJobs];
	Ref ref;
	LeaseNo lease;
	Key from, last, resume;
	JobId floor;
	Micros tfrom, tlast;
	Micros sinking; // the timer sink under way, kNever if none
	uint8_t sink_phase;
};

struct World
{
	Row rows[kMaxJobs];
	bool published[kMaxJobs]; // the commit callback of its enqueue has run
	Actor actors[kMaxActors];
	Micros now;
	int8_t locked_by; // the queue's lock, -1: free
	int8_t timer_loader; // the actor that is, -1: none
};

struct Scenario
{
	std::string name;
	std::vector<Key> keys; // of the jobs 0, 1, ...; their ids are unique
	std::vector<Actor> actors;
	uint32_t entries = 8;
	int batch = 2; // rows a loader reads at a time
	bool claims_abort = false;
	bool jobs_fail = false;
	bool enqueues_abort = false;
	bool loads_fail = false;
};

inline Actor actor(Role role, int budget = 1, int job = -1)
{
	Actor a{};
	a.role = role;
	a.budget = static_cast<int8_t>(budget);
	a.job = static_cast<int8_t>(job);
	a.ref = kNil;
	a.sinking = kNever;
	return a;
}

class Stage
{
public:
	test::Rig rig;
	const Scenario &sc;
	const uint32_t on;
	World w{};
	std::string violation;

	Stage(const Scenario &scenario, uint32_t protections)
		: rig({scenario.entries, 1, 1, 1, 1, 1, 0}, test::Locks::none), sc(scenario), on(protections)
	{
		rig.lane();
		w.locked_by = w.timer_loader = -1;
		for (auto &r : w.rows)
			r.due = kNever;
		for (auto &a : w.actors)
		{
			a = actor(Role::clock, 0);
			a.done = true;
		}
		std::copy(sc.actors.begin(), sc.actors.end(), w.actors);
	}

	Engine &e() { return rig.engine; }
	Queue &q() { return rig.q(); }
	Lane &lane() { return rig.engine.lane(0); }
	DbCore &db() { return rig.engine.db(0); }
	int jobs() const { return static_cast<int>(sc.keys.size()); }
	Key key(int j) const { return sc.keys[static_cast<size_t>(j)]; }
	bool has(Protection p) const { return (on & p) != 0; }
	int job_of(Ref r)
	{
		for (int j = 0; j < jobs(); ++j)
			if (key(j).id == e().entry(r).id)
				return j;
		return -1;
	}
	Ref entry_of(int j)
	{
		uint16_t qi;
		return e().find(0, key(j).id, &qi);
	}
	void fail(const std::string &what)
	{
		if (violation.empty())
			violation = what;
	}

	// --- how a scenario begins
	void on_disk(int j, Micros due = kNever)
	{
		w.rows[j].visible = w.published[j] = true;
		w.rows[j].due = due;
	}
	void in_memory(int j, Micros due = kNever)
	{
		on_disk(j, due);
		rig.engine.change(q(), insert(j, State::placeholder), [due](Entry &x) noexcept {
			x.state = due == kNever ? State::ready : State::delayed;
			x.timer = due;
		});
	}
	Ref insert(int j, State state, bool reserve = false, Ref *existing = nullptr)
	{
		Ref other;
		const Ref r = e().insert(
			q(), {.lane = 0, .id = key(j).id, .priority = key(j).priority, .state = state, .reserve = reserve}, 0, &other);
		if (existing != nullptr)
			*existing = other;
		return r;
	}

	// --- the state as a number, independent of the order of allocations
	struct Hash
	{
		uint64_t a = 0x9e3779b97f4a7c15ULL, b = 0xc2b2ae3d27d4eb4fULL;
		void add(uint64_t x)
		{
			a = (a ^ x) * 0x100000001b3ULL;
			a ^= a >> 29;
			b = (b + x) * 0xff51afd7ed558ccdULL;
			b ^= b >> 32;
		}
		void add(Key k)
		{
			add(static_cast<uint64_t>(k.id));
			add(static_cast<uint64_t>(k.priority));
		}
		void add(const Row &r)
		{
			add(static_cast<uint64_t>(r.due));
			add(static_cast<uint64_t>(r.visible) << 16 | static_cast<uint64_t>(r.closed) << 8 | r.place);
		}
		friend bool operator==(const Hash &, const Hash &) = default;
	};

	Hash hash()
	{
		Hash h;
		h.add(lane().watermark);
		h.add(lane().limit);
		h.add(lane().resume);
		h.add(static_cast<uint64_t>(lane().floor));
		h.add(lane().loader);
		h.add(static_cast<uint64_t>(db().timer_watermark.load()));
		h.add(static_cast<uint64_t>(db().timer_limit.load()));
		h.add(static_cast<uint64_t>(w.now));
		h.add(static_cast<uint64_t>(w.locked_by));
		h.add(static_cast<uint64_t>(w.timer_loader));
		for (int j = 0; j < jobs(); ++j)
		{
			h.add(w.rows[j]);
			h.add(w.published[j]);
			const Ref r = entry_of(j);
			if (r == kNil)
			{
				h.add(0);
				continue;
			}
			const Entry &x = e().entry(r);
			h.add(static_cast<uint64_t>(x.state) | static_cast<uint64_t>(x.mark) << 8 |
				  static_cast<uint64_t>(x.pending) << 16 | static_cast<uint64_t>(x.segment) << 24 |
				  static_cast<uint64_t>(x.flags) << 40);
			h.add(x.mark == Verb::none ? 0 : x.owner);
			h.add(x.state == State::delayed ? static_cast<uint64_t>(x.timer) : 0);
		}
		for (const Actor &a : w.actors)
		{
			h.add(static_cast<uint64_t>(a.pc) | static_cast<uint64_t>(a.done) << 8 |
				  static_cast<uint64_t>(a.failing) << 9 | static_cast<uint64_t>(a.sink_phase) << 10 |
				  static_cast<uint64_t>(static_cast<uint8_t>(a.budget)) << 16 |
				  static_cast<uint64_t>(static_cast<uint8_t>(a.job)) << 24);
			for (int j = 0; j < jobs(); ++j)
			{
				h.add(static_cast<uint64_t>(a.cand[j]) | static_cast<uint64_t>(a.mine[j]) << 1);
				h.add(a.seen[j]);
			}
			h.add(a.from);
			h.add(a.resume);
			h.add(static_cast<uint64_t>(a.floor));
			h.add(a.last);
			h.add(static_cast<uint64_t>(a.tfrom));
			h.add(static_cast<uint64_t>(a.tlast));
			h.add(static_cast<uint64_t>(a.sinking));
			const bool ours = a.ref != kNil && a.job >= 0 && e().is(q(), a.ref, key(a.job).id);
			h.add(static_cast<uint64_t>(a.ref != kNil) | static_cast<uint64_t>(ours) << 1 |
				  static_cast<uint64_t>(ours && e().entry(a.ref).lease == a.lease) << 2);
		}
		return h;
	}
};

} // namespace tq::model
