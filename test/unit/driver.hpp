// Random operations on an engine, each checked: claims return the right entry, no job on disk is below its watermark,
// and no rate is exceeded. Used by the random unit test and by the fuzzer.
// Regime: core tests, one thread.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "unit/by_hand.hpp"
#include "unit/disk.hpp"
#include "unit/rig.hpp"
#include "unit/verify.hpp"

namespace tq::test
{

// `Source`: uint32_t operator()(uint32_t n), a number below n.
template <class Source>
class Driver
{
public:
	Driver(const Limits &limits, Source source)
		: t_(limits, Locks::none), e_(t_.engine), next_(source), disk_(e_), starts_(limits.queues)
	{
		tell_time();
	}

	// Does one operation. Returns an error, or an empty string.
	std::string step()
	{
		operate();
		if (wrong_.empty())
			wrong_ = verify(e_);
		if (wrong_.empty())
			wrong_ = disk_.wrong();
		if (wrong_.empty())
			wrong_ = audit();
		return wrong_.empty() ? wrong_ : wrong_ + " after " + did_;
	}

	// Continues without faults: are all jobs completed in the end?
	std::string finish()
	{
		for (Ref g = 0; g < e_.limits().groups; ++g)
			if (const Group &x = e_.group(g); x.home != 0)
				e_.set_group(e_.queue(x.queue), g, {});
		std::string wrong = disk_.drain(&now_);
		return wrong.empty() ? verify(e_) : wrong;
	}

private:
	Rig t_;
	Engine &e_;
	Source next_;
	std::string wrong_, did_;
	Disk disk_; // jobs that have no entry
	std::vector<Starts> starts_; // of each queue, since its settings changed
	std::map<std::pair<uint16_t, std::string>, Starts> group_starts_;
	std::vector<uint32_t> scratch_;
	JobId last_id_ = 0;
	Micros now_ = 1'000;

	// The engine's own recount, and its walks through the waiting jobs.
	std::string audit()
	{
		scratch_.resize(3 * e_.limits().groups);
		const auto priority = static_cast<int32_t>(last_id_ % 7) - 3;
		for (uint16_t qi = 0; qi < e_.limits().queues; ++qi)
		{
			const Queue &q = e_.queue(qi);
			if (q.state == QueueState::free)
				continue;
			if (e_.wrong_counts(q, scratch_.data()) != 0)
				return "the engine's recount";
			if (counted(e_, qi) != kept(e_, qi))
				return "the sums of limits";
			for (uint16_t l = q.lanes; l != kNoLane; l = e_.lane(l).next)
				if (walk(e_.lane(l), priority) != waiting(l, priority))
					return "a walk through a lane";
		}
		return {};
	}

	std::vector<Ref> walk(const Lane &l, int32_t priority)
	{
		std::vector<Ref> out;
		for (Ref r = e_.ready_from(l, priority); r != kNil; r = e_.next_in_tree(r))
			out.push_back(r);
		return out;
	}

	std::vector<Ref> waiting(uint16_t lane, int32_t priority)
	{
		std::vector<Ref> out;
		for (Ref r = 0; r < e_.limits().entries; ++r)
		{
			const Entry &e = e_.entry(r);
			if (e.home != 0 && e.lane == lane && e.group == kNil && e.state == State::ready && e.mark == Verb::none && e.priority >= priority)
				out.push_back(r);
		}
		std::sort(out.begin(), out.end(), [this](Ref a, Ref b) { return e_.entry(a).key() < e_.entry(b).key(); });
		return out;
	}

	// The relative frequency of each operation.
	struct Op
	{
		uint32_t weight;
		void (Driver::*does)();
	};

	void operate()
	{
		static constexpr Op kOps[] = { // here, where the members are known (clang)
			{8, &Driver::enqueue},		{7, &Driver::end_committing}, {1, &Driver::pin},	{2, &Driver::end_placeholder},
			{9, &Driver::claim},		{5, &Driver::commit_claim},	  {2, &Driver::undo_claim}, {5, &Driver::complete},
			{1, &Driver::mark},			{3, &Driver::end_mark},		  {1, &Driver::sink},	{4, &Driver::raise},
			{1, &Driver::evict},		{1, &Driver::pause},		  {4, &Driver::fire},	{1, &Driver::reap},
			{2, &Driver::wait},			{1, &Driver::log_claims},	  {1, &Driver::heartbeat}, {1, &Driver::expire},
			{3, &Driver::load},			{8, &Driver::load_on},		  {3, &Driver::search}, {1, &Driver::evict_from_group},
			{1, &Driver::settings},		{4, &Driver::scheduler},	  {5, &Driver::time},
		};
		constexpr uint32_t kAll = [] {
			uint32_t all = 0;
			for (const Op &op : kOps)
				all += op.weight;
			return all;
		}();
		uint32_t n = next_(kAll);
		for (const Op &op : kOps)
		{
			if (n < op.weight)
				return (this->*op.does)();
			n -= op.weight;
		}
	}

	void time()
	{
		now_ += next_(5'000);
		tell_time();
		did_ = "time";
		if (next_(64) == 0)
			free_queue();
	}
	void tell_time() { surroundings().mono = now_; }

	Queue &queue_of(Ref r) { return e_.queue(e_.entry(r).queue); }
	uint16_t some_queue() { return static_cast<uint16_t>(next_(e_.limits().queues)); }
	const char *some_kind()
	{
		static const char *const kKinds[] = {nullptr, "a", "b"};
		return kKinds[next_(3)];
	}
	const char *some_group()
	{
		static const char *const kGroups[] = {nullptr, nullptr, nullptr, "a", "b", "c", "d", "e"};
		return kGroups[next_(8)];
	}
	int32_t some_priority() { return static_cast<int32_t>(next_(5)) - 2; }

	// A used entry that satisfies `which`.
	template <class Which>
	Ref some(Which which)
	{
		const uint32_t n = e_.limits().entries, from = next_(n);
		for (uint32_t i = 0; i < n; ++i)
		{
			const Ref r = (from + i) % n;
			if (e_.entry(r).home != 0 && which(e_.entry(r)))
				return r;
		}
		return kNil;
	}

	void enqueue()
	{
		did_ = "enqueue";
		const uint16_t q = some_queue();
		if (e_.queue(q).state != QueueState::active)
			return;
		const uint16_t l = t_.lane(some_kind(), q);
		if (l == kNoLane)
			return;
		Queue &qq = e_.queue(q);
		if (next_(16) == 0)
			return bulk(qq, l);
		const Key key{some_priority(), ++last_id_};
		const char *name = some_group();
		Ref existing = kNil, r = kNil;
		// a job with an override can be in memory before the jobs on disk
		const bool wanted = name == nullptr || next_(4) == 0 || e_.takes(qq, name, key);
		const Ref g = wanted && name != nullptr ? e_.group_for(qq, name, true) : kNil;
		if (wanted && (name == nullptr || g != kNil))
			r = e_.insert(qq, {.lane = l, .id = key.id, .priority = key.priority, .state = State::committing, .group = g},
						  next_(kFreeLists), &existing);
		if (existing != kNil)
			wrong_ = "a new job has an entry";
		if (r == kNil)
			return disk_.put(key.id, OnDisk{q, l, key, kNever, name != nullptr ? name : ""});
		static constexpr uint16_t kWeights[] = {0, 50, 300};
		e_.entry(r).weight = kWeights[next_(3)];
	}

	// Many jobs at once that all stay on disk; only the least key is reported.
	void bulk(Queue &q, uint16_t l)
	{
		did_ = "bulk";
		const bool grouped = next_(3) != 0, each = next_(2) != 0;
		std::map<std::string, std::pair<Key, JobId>> sums; // per group: least key and id
		Key least = kMaxKey;
		const JobId first = last_id_ + 1;
		for (uint32_t n = 1 + next_(5); n > 0; --n)
		{
			const char *name = grouped ? some_group() : nullptr;
			if (grouped && name == nullptr)
				continue;
			const Key key{some_priority(), ++last_id_};
			disk_.jobs[key.id] = OnDisk{e_.index_of(q), l, key, kNever, grouped ? name : ""};
			least = std::min(least, key);
			if (grouped)
			{
				auto &sum = sums.try_emplace(name, key, key.id).first->second;
				sum.first = std::min(sum.first, key);
			}
		}
		if (!grouped)
			e_.lower_watermark(q, e_.lane(l), least, first);
		else if (!each)
			e_.lower_group_watermarks(q, least, first);
		for (const auto &[name, sum] : sums)
			if (each)
				e_.lower_job_watermark(q, e_.lane(l), name.c_str(), kNil, sum.first, sum.second);
	}

	void end_committing() { end(State::committing); }
	void end_placeholder() { end(State::placeholder); }

	// A committing entry or a placeholder becomes ready, delayed or nothing.
	void end(State state)
	{
		did_ = "end of committing or placeholder";
		const Ref r = some([state](const Entry &e) { return e.state == state && e.owner != kLoader; });
		if (r == kNil)
			return;
		const uint32_t how = next_(4);
		if (how == 0)
			return e_.drop(queue_of(r), r, next_(kFreeLists));
		const Micros due = how == 1 ? now_ + next_(10'000) : kNever;
		const Micros ends = next_(2) == 0 ? now_ + next_(20'000) : kNever;
		e_.change(queue_of(r), r, [&](Entry &e) noexcept {
			e.state = due == kNever ? State::ready : State::delayed;
			e.timer = due;
			e.expires_at = ends;
		});
	}

	void pin()
	{
		did_ = "pin";
		if (disk_.jobs.empty())
			return;
		auto job = disk_.jobs.begin();
		std::advance(job, next_(static_cast<uint32_t>(std::min<size_t>(disk_.jobs.size(), 64))));
		Ref existing;
		const OnDisk d = job->second;
		const Ref g = d.group.empty() ? kNil : e_.group_for(e_.queue(d.queue), d.group.c_str(), true);
		if (!d.group.empty() && g == kNil)
			return;
		const Ref r = e_.insert(e_.queue(d.queue),
								{.lane = d.lane, .id = d.key.id, .priority = d.key.priority, .state = State::placeholder,
								 .reserve = true, .group = g},
								next_(kFreeLists), &existing);
		if (r == kNil) // memory is full, or a loader holds it
			return;
		if (next_(2) == 0)
			e_.change(e_.queue(d.queue), r, [&d](Entry &e) noexcept {
				e.state = d.due == kNever ? State::ready : State::delayed;
				e.timer = d.due;
			});
		disk_.jobs.erase(job);
	}

	void claim()
	{
		did_ = "claim";
		const uint16_t qi = some_queue();
		Queue &q = e_.queue(qi);
		if (q.state == QueueState::free)
			return;
		uint64_t kinds[2];
		auto terms = Rig::terms(next_(3), now_, now_);
		terms.kinds = kinds;
		terms.nkinds = static_cast<int>(next_(3));
		for (int i = 0; i < terms.nkinds; ++i)
		{
			const char *k = some_kind();
			kinds[i] = k != nullptr ? hash_name(k) : 0;
		}
		terms.lease_ms = next_(10);
		terms.worker = next_(3) == 0 ? kNil : next_(e_.limits().workers);
		if (terms.worker != kNil && terms.worker % 2 == 1)
			terms.binding = Binding::worker;
		if (next_(2) == 0)
			e_.open_due(q, now_, 1 + static_cast<int>(next_(4)));
		const ByHand hand(e_, qi, kinds, terms.nkinds);
		const Ref best = hand.within_limits() ? hand.best() : kNil;
		Key key;
		const bool claimable = e_.claimable(q, kinds, terms.nkinds, &key);
		if (claimable != (best != kNil) || key != (hand.best() != kNil ? e_.entry(hand.best()).key() : kMaxKey))
			wrong_ = "claimable";
		const double vclock = q.vclock;
		const Ref got = e_.claim(q, terms);
		if (got != best)
			wrong_ = "a claim got another job than it should";
		else if (got != kNil)
		{
			started(q, qi, e_.entry(got), std::max(vclock, hand.turn()));
			limits_of_row(q, got);
		}
	}

	// Some rows have a lease length and a timeout of their own.
	void limits_of_row(Queue &q, Ref r)
	{
		const Entry before = e_.entry(r);
		const auto lease_ms = static_cast<uint32_t>(before.id % 3 * 7);
		const Micros timeout = before.id % 4 * 3'000;
		if (before.id % 5 == 0)
			return;
		e_.set_limits(q, r, lease_ms, timeout, now_);
		const Entry &e = e_.entry(r);
		const Micros lease_ends = lease_ms != 0 ? now_ + Micros{lease_ms} * 1'000 : before.deadline;
		const Micros ends = timeout != 0 ? now_ + timeout : before.hard_deadline;
		if (e.deadline != lease_ends || e.hard_deadline != ends || e.timer != std::min(lease_ends, ends))
			wrong_ = "the limits that a row names";
	}

	// The effects of a start.
	void started(const Queue &q, uint16_t qi, const Entry &e, double at)
	{
		const QueueSettings &s = q.settings;
		if (s.rate.limits() && !starts_[qi].add(s.rate, now_))
			wrong_ = "a rate is exceeded";
		if (e.group != kNil)
			if (const Rate &rate = e_.group_rate(q, e_.group(e.group));
				rate.limits() && !group_starts_[{qi, e_.group(e.group).key}].add(rate, now_))
				wrong_ = "a group's rate is exceeded";
		const double turn = e.group != kNil ? e_.group(e.group).turn : q.loose_turn;
		if (s.fair && q.vclock != at)
			wrong_ = "the virtual time";
		// (the group may have been offered again since, which adds nothing)
		if (s.fair && (turn < at + 100.0 / (e.weight != 0 ? e.weight : 100) - 1e-9 || turn > at + 2 + 1e-9))
			wrong_ = "the turn after a start";
	}

	// A claim sets expired jobs aside, or the scheduler takes them. Every remaining job has time left.
	void expire()
	{
		did_ = "expiry";
		const uint16_t qi = some_queue();
		Queue &q = e_.queue(qi);
		if (q.state == QueueState::free)
			return;
		if (next_(2) == 0)
		{
			const int most = 1 + static_cast<int>(next_(4));
			if (e_.set_aside(q, now_, most) < most && q.expiry.min != kNil && e_.entry(q.expiry.min).expires_at <= now_ && e_.pins_left(q) > 0)
				wrong_ = "an expired job is left for claims";
			return;
		}
		Ref out[4];
		const int n = e_.collect_expired(q, now_, 4, next_(3), out);
		for (int i = 0; i < n; ++i)
			if (e_.entry(out[i]).expires_at > now_ || e_.entry(out[i]).mark != Verb::expire)
				wrong_ = "a job expired that has time left";
		if (n < 4 && q.next_expiry.load() <= now_)
			wrong_ = "an expired job is left to the scheduler";
	}

	void commit_claim()
	{
		did_ = "commit of a claim";
		const Ref r = some([](const Entry &e) { return e.mark == Verb::claim; });
		if (r != kNil)
			e_.change(queue_of(r), r, [](Entry &e) noexcept { e.mark = Verb::none; });
	}

	void undo_claim()
	{
		did_ = "rollback of a claim";
		const Ref r = some([](const Entry &e) { return e.mark == Verb::claim; });
		if (r == kNil)
			return;
		const Micros pause = next_(2) == 0 ? 0 : next_(3'000);
		e_.change(queue_of(r), r, [&](Entry &e) noexcept {
			e.mark = Verb::none;
			e.lease = 0;
			e.set_worker(kNil);
			++e.aborts;
			e.state = pause == 0 ? State::ready : State::delayed;
			e.timer = pause == 0 ? kNever : now_ + pause;
			if (pause != 0)
				e.flags |= kHeld;
		});
	}

	void complete()
	{
		did_ = "completion";
		const Ref r = some([](const Entry &e) { return e.state == State::running && e.mark == Verb::none; });
		if (r == kNil)
			return;
		e_.mark(queue_of(r), r, 0, Verb::complete, State::terminal);
		if (next_(4) != 0)
			e_.drop(queue_of(r), r, next_(kFreeLists));
	}

	void mark()
	{
		did_ = "mark";
		const Ref r = some([](const Entry &) { return true; });
		if (r == kNil)
			return;
		const Entry before = e_.entry(r);
		const uint32_t owner = next_(3);
		const bool waits = before.state == State::ready || before.state == State::delayed;
		const bool move = waits && next_(3) == 0;
		const MarkResult got = e_.mark(queue_of(r), r, owner, move ? Verb::move : Verb::cancel,
									   move ? before.state : State::terminal);
		const bool busy = before.state == State::placeholder || before.state == State::committing ||
						  (before.mark != Verb::none && before.owner != owner);
		if ((got == MarkResult::busy) != busy)
			wrong_ = "a mark's answer";
	}

	void end_mark()
	{
		did_ = "end of a mark";
		const Ref r = some([](const Entry &e) { return e.mark != Verb::none && e.mark != Verb::claim; });
		if (r == kNil)
			return;
		const uint32_t how = e_.entry(r).mark == Verb::move ? 1 : next_(4);
		if (how == 0)
			return e_.drop(queue_of(r), r, next_(kFreeLists));
		e_.change(queue_of(r), r, [&](Entry &e) noexcept {
			e.mark = Verb::none;
			if (how == 1)
				return; // rolled back, or moved
			const bool ran = e.state == State::running;
			e.lease = 0;
			e.set_worker(kNil);
			e.aborts = 0;
			e.state = how == 2 ? State::ready : State::delayed;
			e.timer = how == 2 ? kNever : now_ + 500;
			e.flags = next_(4) == 0 ? kOverride : 0;
			if (ran && how == 3)
				e.flags |= kHeld;
			if (e.has(kOverride))
				e.priority = some_priority();
		});
	}

	Lane *some_lane()
	{
		const Ref r = some([](const Entry &) { return true; });
		return r == kNil ? nullptr : &e_.lane(e_.entry(r).lane);
	}

	void sink()
	{
		did_ = "sink";
		if (Lane *l = some_lane())
			e_.lower_watermark(e_.queue(l->queue), *l, Key{some_priority(), next_(static_cast<uint32_t>(last_id_ + 1))});
		if (next_(4) == 0)
			e_.lower_group_watermarks(e_.queue(some_queue()), Key{some_priority(), next_(static_cast<uint32_t>(last_id_ + 1))});
		if (next_(4) == 0)
			e_.lower_timer_watermark(0, now_ + next_(10'000));
	}

	// Acts as a loader that has read all keys below one key, or up to the first job that gets no entry.
	void raise()
	{
		did_ = "raise";
		Lane *l = some_lane();
		if (l == nullptr)
			return;
		Key to = next_(4) != 0 ? kMaxKey : Key{some_priority(), 0};
		for (const auto &d : disk_.jobs)
			if (d.second.due == kNever && d.second.group.empty() && &e_.lane(d.second.lane) == l)
				to = std::min(to, d.second.key);
		if (next_(4) != 0)
			l->limit = kMaxKey;
		e_.raise_watermark(e_.queue(l->queue), *l, to);
		const Micros from = e_.start_timer_load(0);
		Micros due = now_ + next_(20'000);
		for (const auto &d : disk_.jobs)
			if (d.second.due != kNever)
				due = std::min(due, d.second.due);
		if (next_(2) == 0)
			e_.raise_timer_watermark(0, from, due);
	}

	void evict()
	{
		did_ = "evict";
		Lane *l = some_lane();
		if (l == nullptr)
			return;
		const auto before = in_memory();
		Queue &q = e_.queue(l->queue);
		const int64_t free = e_.free_entries();
		const bool did = next_(2) == 0 ? e_.evict_ready(q, *l, Key{some_priority(), 0}, next_(kFreeLists))
									   : e_.evict_delayed(q, next_(kFreeLists));
		if (e_.free_entries() != free + did)
			wrong_ = "an eviction's answer";
		if (did)
			note_gone(before);
	}

	std::map<JobId, OnDisk> in_memory()
	{
		std::map<JobId, OnDisk> out;
		for (Ref r = 0; r < e_.limits().entries; ++r)
		{
			const Entry &e = e_.entry(r);
			if (e.home != 0)
				// a pause after rolled-back claims is in memory only
				out[e.id] = OnDisk{e.queue, e.lane, e.row_key(), e.state == State::delayed && e.aborts == 0 ? e.timer : kNever,
								   e.group != kNil ? e_.group(e.group).key : ""};
		}
		return out;
	}

	// Evicted entries are now on disk.
	void note_gone(const std::map<JobId, OnDisk> &before)
	{
		uint16_t qi;
		for (const auto &[id, d] : before)
			if (e_.find(0, id, &qi) == kNil)
				disk_.jobs[id] = d;
	}

	void evict_from_group()
	{
		did_ = "evict from a group";
		const Ref r = some([](const Entry &e) { return e.group != kNil; });
		if (r == kNil)
			return;
		const Ref g = e_.entry(r).group;
		const auto before = in_memory();
		const int64_t free = e_.free_entries();
		const bool did = e_.evict_from_group(queue_of(r), g, Key{some_priority(), 0}, next_(kFreeLists));
		if (e_.free_entries() != free + did)
			wrong_ = "an eviction's answer";
		if (did)
			note_gone(before);
	}

	void load()
	{
		did_ = "a group's load begins";
		const uint16_t qi = some_queue();
		if (e_.queue(qi).state == QueueState::free)
			return;
		const Ref g = e_.take_wanted(e_.queue(qi));
		if (g == kNil)
			return;
		if (e_.group(g).loader != kNil || e_.group(g).watermark == kMaxKey)
			wrong_ = "a group is wanted that needs nothing";
		disk_.start_load(qi, g, 1 + next_(4));
	}

	void load_on()
	{
		did_ = "a group's load";
		if (disk_.loads() > 0)
			disk_.step_load(next_(static_cast<uint32_t>(disk_.loads())), next_(16));
	}

	void search()
	{
		did_ = "search for groups";
		const uint16_t qi = some_queue();
		if (disk_.searches() > 0 && next_(4) != 0)
			disk_.step_search(next_(static_cast<uint32_t>(disk_.searches())));
		else if (e_.queue(qi).state != QueueState::free)
			disk_.start_search(qi);
	}

	void settings()
	{
		did_ = "settings";
		const uint16_t qi = some_queue();
		Queue &q = e_.queue(qi);
		if (q.state == QueueState::free)
			return;
		QueueSettings &s = q.settings;
		constexpr int32_t kMost[] = {kUnset, 0, 1, 2};
		constexpr Rate kRates[] = {{}, {}, {1'000'000, 1}, {700'001, 3}, {20'000'000, 2}};
		switch (next_(7))
		{
			case 6:
				return group_settings(q, {.paused_until = next_(2) == 0 ? kNever : 0,
										  .max_running = kMost[next_(4)],
										  .rate = kRates[next_(5)]});
			case 0:
				s.group_max_running = kMost[next_(4)];
				break;
			case 1:
				s.loose_groups = next_(2) == 0;
				s.by_readiness = next_(2) == 0;
				break;
			case 2:
				s.fair = next_(2) == 0;
				break;
			case 3:
				s.max_running = static_cast<int32_t>(next_(4));
				break;
			case 4:
				s.rate = kRates[next_(5)];
				break;
			default:
				s.group_rate = kRates[next_(5)];
		}
		e_.refresh_groups(q);
		starts_[qi] = {};
		std::erase_if(group_starts_, [qi](const auto &g) { return g.first.first == qi; });
	}

	// A group gets settings of its own, or loses them.
	void group_settings(Queue &q, const GroupSettings &own)
	{
		const char *name = some_group();
		const Ref g = name != nullptr ? e_.group_for(q, name, own.any()) : kNil;
		if (g == kNil)
			return;
		e_.hold_group(q, g, 1);
		if (next_(4) != 0) // otherwise rolled back
			e_.set_group(q, g, own, next_(4) == 0);
		e_.hold_group(q, g, -1);
		group_starts_.erase({e_.index_of(q), name});
	}

	// Periodic work of the scheduler.
	void scheduler()
	{
		did_ = "scheduler";
		const uint16_t qi = some_queue();
		Queue &q = e_.queue(qi);
		if (q.state == QueueState::free)
			return;
		if (q.next_open.load() <= now_)
			e_.open_due(q, now_, 1 + static_cast<int>(next_(4)));
		if (next_(3) != 0)
			return;
		e_.wake_for_startable(q);
		e_.want_groups_again(q);
		for (Ref g = 0; g < e_.limits().groups; ++g)
		{
			const Group &x = e_.group(g);
			if (e_.owns(q, g) && x.watermark != kMaxKey && x.loader == kNil && q.paused_until == 0 && x.head == kNil &&
				!x.wanted && (x.ready.min == kNil || !(e_.entry(x.ready.min).key() < x.watermark)))
				wrong_ = "a group has no jobs in memory, and requests none";
		}
	}

	void pause()
	{
		did_ = "pause";
		Lane *l = some_lane();
		if (l == nullptr)
			return;
		e_.set_paused(e_.queue(l->queue), next_(3) == 0 ? nullptr : l, next_(4) == 0 ? kNever : 0);
	}

	void fire()
	{
		did_ = "fire";
		const uint16_t qi = some_queue();
		if (e_.queue(qi).state == QueueState::free)
			return;
		Ref out[4];
		Doom doom{3, 2, out};
		e_.fire_due(e_.queue(qi), now_, 4, &doom);
		const Queue &q = e_.queue(qi);
		if (q.due.size > 4 && q.due.min != kNil && e_.entry(q.due.min).timer < 0)
			wrong_ = "a timer stayed";
	}

	void reap()
	{
		did_ = "reap";
		Ref out[4];
		PrevMark prev[4];
		Queue &q = e_.queue(some_queue());
		if (q.state == QueueState::free)
			return;
		const Micros grace = next_(100);
		worker_signs(q);
		const int n = e_.collect_lost(q, {now_ - grace, 4, 2}, out, prev);
		for (int i = 0; i < n; ++i)
		{
			const Entry &e = e_.entry(out[i]);
			if (std::min(e_.lease_end(e, false), e.has(kHardTimeout) ? e.hard_deadline : kNever) + grace > now_)
				wrong_ = "a lease was taken too early";
		}
		if (n < 4 && q.leases.min != kNil && e_.entry(q.leases.min).timer + grace <= now_)
			wrong_ = "a lost lease was left";
	}

	// A worker sends a heartbeat, is absent, or is released, depending on the time.
	void worker_signs(Queue &q)
	{
		Worker &w = e_.worker(1);
		w.beat.store(now_ % 3 == 0 ? now_ : w.beat.load());
		w.until.store(now_ % 3 == 0 ? kNever : now_ % 5 == 0 ? now_ + 50 : w.until.load());
		if (now_ % 7 != 0)
			return;
		w.revoked.store(e_.db(q.db).next_lease.load());
		LeasePosition at;
		while (e_.revoke_leases(q, &at, 2))
		{
		}
		w.revoked.store(0);
		for (Ref r = q.leases.min; r != kNil; r = e_.next_in_tree(r))
			if (e_.entry(r).has(kOfWorker) && e_.entry(r).worker() == 1 && e_.entry(r).deadline != 0)
				wrong_ = "a lease was not revoked";
	}

	void wait()
	{
		did_ = "wait";
		const Ref w = next_(e_.limits().procs * kWaitersPerProc);
		Waiter &x = e_.waiter(w);
		const uint16_t qi = some_queue();
		if (x.linked || x.granted)
			e_.wait_leave(e_.queue(x.queue), w);
		else if (e_.queue(qi).state == QueueState::active)
		{
			uint64_t kinds[9];
			const int n = next_(6) == 0 ? 9 : static_cast<int>(next_(3));
			for (int i = 0; i < n; ++i)
			{
				const char *k = some_kind();
				kinds[i] = k != nullptr ? hash_name(k) : 0;
			}
			e_.wait_enter(e_.queue(qi), w, w % kMaxProcs, kinds, n);
		}
	}

	void log_claims()
	{
		did_ = "claim log";
		Queue &q = e_.queue(some_queue());
		if (q.state == QueueState::free)
			return;
		for (uint32_t n = next_(3); n > 0 && q.claims_head != kNil; --n)
		{
			Entry &e = e_.entry(q.claims_head);
			e_.unlist_claim(q, e);
			e.flags |= kLogged;
		}
	}

	void heartbeat()
	{
		did_ = "heartbeat";
		const Ref r = some([](const Entry &e) { return e.state == State::running && e.mark == Verb::none; });
		if (r == kNil)
			return;
		Entry &e = e_.entry(r);
		e.deadline = std::max(e.deadline, now_ + next_(20'000));
		if (next_(4) == 0)
		{
			e.flags |= kHardTimeout;
			e.hard_deadline = e.timer + next_(1'000);
		}
	}

	void free_queue()
	{
		const uint16_t qi = some_queue();
		Queue &q = e_.queue(qi);
		did_ = "free queue";
		disk_.forget(qi);
		starts_[qi] = {};
		std::erase_if(group_starts_, [qi](const auto &g) { return g.first.first == qi; });
		for (Ref r = 0; r < e_.limits().entries; ++r)
			if (e_.entry(r).home == qi + 1)
				e_.drop(q, r, r);
		e_.free_queue(q);
		e_.init_queue(q, 0, 1, "again", QueueState::active);
	}
};

} // namespace tq::test
