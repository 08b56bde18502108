// Explores every interleaving of a scenario's actors, depth first, each state once. At the end of each path the same
// programs deliver all committed jobs one after the other. Each job must end exactly once.
// Regime: core tests, one thread.
#pragma once

#include <functional>
#include <unordered_set>
#include <utility>

#include "model/actors.hpp"

namespace tq::model
{

// Skipped under ThreadSanitizer: a single thread has no races, and the exploration would take ten times as long.
#if defined(__SANITIZE_THREAD__)
constexpr bool kThorough = false;
#else
constexpr bool kThorough = true;
#endif

struct Outcome
{
	std::string violation; // empty: none
	std::string trace;	   // the steps that lead to the violation
	size_t states = 0;
	size_t ends = 0;
	size_t depth = 0;
};

class Explorer
{
public:
	using Begin = std::function<void(Actors &)>;

	// `wanted`: look for this violation and ignore others (empty: any violation).
	Explorer(const Scenario &scenario, uint32_t protections, const Begin &begin, const std::string &wanted)
		: stage_(scenario, protections), bytes_(Engine::size(stage_.e().limits())), wanted_(wanted)
	{
		begin(stage_);
	}

	Outcome run()
	{
		visit(0);
		out_.states = seen_.size();
		return out_;
	}

private:
	struct HashOf
	{
		size_t operator()(const Stage::Hash &h) const { return static_cast<size_t>(h.a ^ h.b); }
	};
	struct Frame
	{
		World world;
		std::vector<char> memory;
	};
	struct Move
	{
		int actor;
		uint8_t pc;
		int choice;
		Role role;
	};

	Actors stage_;
	size_t bytes_;
	std::string wanted_;
	std::unordered_set<Stage::Hash, HashOf> seen_;
	std::vector<Frame> frames_;
	std::vector<Move> path_;
	Outcome out_;

	void save(size_t depth)
	{
		if (frames_.size() <= depth)
			frames_.push_back(Frame{{}, std::vector<char>(bytes_)});
		frames_[depth].world = stage_.w;
		std::memcpy(frames_[depth].memory.data(), stage_.rig.memory(), bytes_);
	}
	void restore(size_t depth)
	{
		stage_.w = frames_[depth].world;
		std::memcpy(stage_.rig.memory(), frames_[depth].memory.data(), bytes_);
	}

	// Returns false if a violation was found.
	bool visit(size_t depth)
	{
		if (!seen_.insert(stage_.hash()).second)
			return true;
		out_.depth = std::max(out_.depth, depth);
		save(depth);
		bool moved = false;
		for (int i = 0; i < kMaxActors; ++i)
			for (int choice = 0; choice < 2; ++choice)
			{
				const Actor &a = stage_.w.actors[i];
				path_.push_back(Move{i, a.sinking != kNever ? uint8_t{100} : a.pc, choice, a.role});
				if (stage_.step(i, choice))
				{
					moved = true;
					if (stage_.violation.empty() ? !visit(depth + 1) : found())
						return false;
					restore(depth);
				}
				path_.pop_back();
			}
		if (moved)
			return true;
		++out_.ends;
		if (!end() && found())
			return false;
		restore(depth);
		return true;
	}

	bool end()
	{
		for (const Actor &a : stage_.w.actors)
			if (!Actors::idle(a))
				stage_.fail("an actor is stuck");
		const std::string wrong = test::verify(stage_.e());
		if (!wrong.empty())
			stage_.fail(wrong);
		promptness();
		drain();
		for (int j = 0; j < stage_.jobs(); ++j)
			if (stage_.w.rows[j].visible && stage_.w.rows[j].closed == 0)
				stage_.fail("a job was lost");
		return stage_.violation.empty();
	}

	// The timer loader will find a delayed job that is only on disk.
	void promptness()
	{
		for (int j = 0; j < stage_.jobs(); ++j)
		{
			const Row &row = stage_.w.rows[j];
			if (row.alive() && row.due != kNever && row.due > stage_.w.now && stage_.entry_of(j) == kNil &&
				row.due < stage_.db().timer_watermark.load())
				stage_.fail("a delayed job would be late");
		}
	}

	// Delivers all jobs. A job whose holder gave up has a lost lease.
	void drain()
	{
		World &w = stage_.w;
		w.now = 10 * kLater;
		for (bool progress = true; progress && stage_.violation.empty();)
		{
			progress = false;
			for (const Role role : {Role::timer_loader, Role::firer, Role::loader, Role::reaper, Role::worker})
			{
				const auto before = stage_.hash();
				Actor &a = w.actors[kMaxActors - 1];
				a = actor(role);
				while (stage_.step(kMaxActors - 1, 0) && stage_.violation.empty())
				{}
				if (!Actors::idle(a))
					stage_.fail("no actor can continue");
				a = actor(Role::clock, 0);
				a.done = true;
				progress |= !(stage_.hash() == before);
			}
		}
	}

	std::string dump()
	{
		auto text = [](Micros t) { return t == kNever ? std::string("never") : std::to_string(t); };
		std::string d = "watermark " + text(stage_.lane().watermark.id) + ", timers " +
						text(stage_.db().timer_watermark.load()) + "\n";
		for (int j = 0; j < stage_.jobs(); ++j)
		{
			const Row &r = stage_.w.rows[j];
			d += "job " + std::to_string(j) + (r.visible ? " committed" : "") + ", ended " + std::to_string(r.closed) +
				 ", due " + text(r.due);
			if (const Ref x = stage_.entry_of(j); x != kNil)
				d += ", entry in state " + std::to_string(static_cast<int>(stage_.e().entry(x).state)) + " marked " +
					 std::to_string(static_cast<int>(stage_.e().entry(x).mark));
			d += "\n";
		}
		return d;
	}

	// Returns true if this is the wanted violation.
	bool found()
	{
		out_.violation = std::exchange(stage_.violation, "");
		out_.trace = dump();
		if (!wanted_.empty() && out_.violation != wanted_)
			return false;
		static const char *const kRoles[] = {"producer",  "bulk",  "worker", "loader", "timer loader", "evictor",
											 "canceller", "mover", "firer",	 "reaper", "clock"};
		for (const Move &m : path_)
			out_.trace += std::string(kRoles[static_cast<int>(m.role)]) + "#" + std::to_string(m.actor) +
						  (m.pc == 100 ? " sinks the timers" : " step " + std::to_string(m.pc)) +
						  (m.choice != 0 ? " choice " + std::to_string(m.choice) : "") + "\n";
		return true;
	}
};

inline Outcome explore(const Scenario &scenario, uint32_t protections, const Explorer::Begin &begin,
					   const std::string &wanted = "")
{
	return Explorer(scenario, protections, begin, wanted).run();
}

} // namespace tq::model
