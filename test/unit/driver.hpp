// Random operations on an engine, each checked: what a claim must give, and that no job on disk lies below its watermark. Used
// by the random unit test and by the fuzzer.
// Regime: core tests, one thread.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "unit/rig.hpp"
#include "unit/verify.hpp"

namespace tq::test
{

// `Source`: uint32_t operator()(uint32_t n), a number below n.
template <class Source>
class Driver
{
public:
	Driver(const Limits &limits, Source source) : t_(limits, Locks::none), e_(t_.engine), next_(source) {}

	// Does one operation; what is wrong afterwards, or empty.
	std::string step()
	{
		operate(next_(25));
		if (wrong_.empty())
			wrong_ = verify(e_);
		if (wrong_.empty())
			disk();
		return wrong_.empty() ? wrong_ : wrong_ + " after " + did_;
	}

private:
	struct OnDisk
	{
		uint16_t queue, lane;
		Key key;
		Micros due; // kNever: ready
	};

	Rig t_;
	Engine &e_;
	Source next_;
	std::string wrong_, did_;
	std::map<JobId, OnDisk> disk_; // jobs that have no entry
	JobId last_id_ = 0;
	Micros now_ = 1'000;

	void operate(uint32_t op)
	{
		switch (op)
		{
			case 0:
			case 1:
			case 2:
				return enqueue();
			case 3:
				return end(State::committing);
			case 4:
				return pin();
			case 5:
				return end(State::placeholder);
			case 6:
			case 7:
			case 8:
				return claim();
			case 9:
			case 10:
				return commit_claim();
			case 11:
				return undo_claim();
			case 12:
				return mark();
			case 13:
				return end_mark();
			case 14:
				return sink();
			case 15:
				return raise();
			case 16:
				return evict();
			case 17:
				return pause();
			case 18:
				return fire();
			case 19:
				return reap();
			case 20:
				return wait();
			case 21:
				return log_claims();
			case 22:
				return heartbeat();
			case 23:
				return expire();
			default:
				now_ += next_(5'000);
				did_ = "time";
				if (next_(8) == 0)
					free_queue();
		}
	}

	Queue &queue_of(Ref r) { return e_.queue(e_.entry(r).queue); }
	uint16_t some_queue() { return static_cast<uint16_t>(next_(e_.limits().queues)); }
	const char *some_kind()
	{
		static const char *const kKinds[] = {nullptr, "a", "b"};
		return kKinds[next_(3)];
	}
	int32_t some_priority() { return static_cast<int32_t>(next_(5)) - 2; }

	// A used entry for which `which` holds.
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
		const Key key{some_priority(), ++last_id_};
		Ref existing;
		if (e_.insert(e_.queue(q), l, key.id, key.priority, State::committing, next_(kFreeLists), false, &existing) !=
			kNil)
			return;
		if (existing != kNil)
			wrong_ = "a new job has an entry";
		disk_[key.id] = OnDisk{q, l, key, kNever};
		e_.sink(e_.queue(q), e_.lane(l), key);
	}

	// A committing entry or a placeholder becomes ready, delayed or nothing.
	void end(State state)
	{
		did_ = "end of committing or placeholder";
		const Ref r = some([state](const Entry &e) { return e.state == state; });
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
		if (disk_.empty())
			return;
		auto job = disk_.begin();
		std::advance(job, next_(static_cast<uint32_t>(std::min<size_t>(disk_.size(), 64))));
		Ref existing;
		const OnDisk &d = job->second;
		const Ref r = e_.insert(e_.queue(d.queue), d.lane, d.key.id, d.key.priority, State::placeholder,
								next_(kFreeLists), true, &existing);
		if (r == kNil)
			return;
		if (next_(2) == 0)
			e_.change(e_.queue(d.queue), r, [&d](Entry &e) noexcept {
				e.state = d.due == kNever ? State::ready : State::delayed;
				e.timer = d.due;
			});
		disk_.erase(job);
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
		// by hand: the least of all that may start
		Ref best = kNil;
		for (Ref r = 0; r < e_.limits().entries; ++r)
		{
			const Entry &e = e_.entry(r);
			if (e.home != qi + 1 || e.state != State::ready || e.mark != Verb::none)
				continue;
			const Lane &l = e_.lane(e.lane);
			if (l.paused_until != 0 || q.paused_until != 0 || e.key() >= l.watermark)
				continue;
			if (terms.nkinds > 0 && std::find(kinds, kinds + terms.nkinds, l.kind_hash) == kinds + terms.nkinds)
				continue;
			if (best == kNil || e.key() < e_.entry(best).key())
				best = r;
		}
		Key key;
		const bool claimable = e_.claimable(q, kinds, terms.nkinds, &key);
		if (claimable != (best != kNil) || key != (best != kNil ? e_.entry(best).key() : kMaxKey))
			wrong_ = "claimable";
		if (e_.claim(q, terms) != best)
			wrong_ = "a claim got another job than it should";
	}

	// A claim sets expired jobs aside, or the scheduler takes them; what is still there afterwards has time left.
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
			if (e_.set_aside(q, now_, most) < most && q.expiry.min != kNil && e_.entry(q.expiry.min).expires_at <= now_)
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
		});
	}

	void mark()
	{
		did_ = "mark";
		const Ref r = some([](const Entry &) { return true; });
		if (r == kNil)
			return;
		const Entry before = e_.entry(r);
		const uint32_t owner = next_(3);
		const MarkResult got = e_.mark(queue_of(r), r, owner, Verb::cancel, State::terminal);
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
		const uint32_t how = next_(4);
		if (how == 0)
			return e_.drop(queue_of(r), r, next_(kFreeLists));
		e_.change(queue_of(r), r, [&](Entry &e) noexcept {
			e.mark = Verb::none;
			if (how == 1)
				return; // rolled back
			e.lease = 0;
			e.set_worker(kNil);
			e.aborts = 0;
			e.state = how == 2 ? State::ready : State::delayed;
			e.timer = how == 2 ? kNever : now_ + 500;
			e.flags = next_(4) == 0 ? kOverride : 0;
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
			e_.sink(e_.queue(l->queue), *l, Key{some_priority(), 0});
		if (next_(4) == 0)
			e_.sink_timer(0, now_ + next_(10'000));
	}

	// As a loader that has read all below a key, or to the first job it had no room for.
	void raise()
	{
		did_ = "raise";
		Lane *l = some_lane();
		if (l == nullptr)
			return;
		Key to = next_(2) == 0 ? kMaxKey : Key{some_priority(), 0};
		for (const auto &d : disk_)
			if (d.second.due == kNever && &e_.lane(d.second.lane) == l)
				to = std::min(to, d.second.key);
		if (next_(2) == 0)
			l->limit = kMaxKey;
		e_.raise(e_.queue(l->queue), *l, to);
		const Micros from = e_.start_timer_load(0);
		Micros due = now_ + next_(20'000);
		for (const auto &d : disk_)
			if (d.second.due != kNever)
				due = std::min(due, d.second.due);
		if (next_(2) == 0)
			e_.raise_timer(0, from, due);
	}

	void evict()
	{
		did_ = "evict";
		Lane *l = some_lane();
		if (l == nullptr)
			return;
		std::map<JobId, OnDisk> before;
		for (Ref r = 0; r < e_.limits().entries; ++r)
		{
			const Entry &e = e_.entry(r);
			if (e.home != 0)
				before[e.id] = OnDisk{e.queue, e.lane, e.key(), e.state == State::delayed ? e.timer : kNever};
		}
		Queue &q = e_.queue(l->queue);
		const int64_t free = e_.free_entries();
		const bool did = next_(2) == 0 ? e_.evict_ready(q, *l, Key{some_priority(), 0}, next_(kFreeLists))
									   : e_.evict_delayed(q, next_(kFreeLists));
		if (e_.free_entries() != free + did)
			wrong_ = "an eviction's answer";
		uint16_t qi;
		for (const auto &[id, d] : before)
			if (did && e_.find(0, id, &qi) == kNil)
				disk_[id] = d;
	}

	void pause()
	{
		did_ = "pause";
		Lane *l = some_lane();
		if (l == nullptr)
			return;
		e_.set_paused(e_.queue(l->queue), next_(3) == 0 ? nullptr : l, next_(3) == 0 ? kNever : 0);
	}

	void fire()
	{
		did_ = "fire";
		Ref out[4];
		int nout = 0;
		const uint16_t qi = some_queue();
		if (e_.queue(qi).state == QueueState::free)
			return;
		e_.fire_due(e_.queue(qi), now_, 4, 3, 2, out, &nout);
		const Queue &q = e_.queue(qi);
		if (q.due.size > 4 && q.due.min != kNil && e_.entry(q.due.min).timer < 0)
			wrong_ = "a timer stayed";
	}

	void reap()
	{
		did_ = "reap";
		Ref out[4];
		Engine::PrevMark prev[4];
		Queue &q = e_.queue(some_queue());
		if (q.state == QueueState::free)
			return;
		const Micros grace = next_(100);
		const int n = e_.collect_lost(q, now_, grace, 4, 2, out, prev);
		for (int i = 0; i < n; ++i)
		{
			const Entry &e = e_.entry(out[i]);
			if (std::min(e.deadline, e.has(kHardTimeout) ? e.hard_deadline : kNever) + grace > now_)
				wrong_ = "a lease was taken too early";
		}
		if (n < 4 && q.leases.min != kNil && e_.entry(q.leases.min).timer + grace <= now_)
			wrong_ = "a lost lease was left";
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
		for (Ref r = 0; r < e_.limits().entries; ++r)
			if (e_.entry(r).home == qi + 1)
				e_.drop(q, r, r);
		std::erase_if(disk_, [qi](const auto &d) { return d.second.queue == qi; });
		e_.free_queue(q);
		e_.init_queue(q, 0, 1, "again", QueueState::active);
	}

	void disk()
	{
		for (const auto &[id, d] : disk_)
		{
			if (d.due == kNever && d.key < e_.lane(d.lane).watermark)
				wrong_ = "a job on disk lies below its lane's watermark";
			if (d.due != kNever && d.due < e_.db(0).timer_watermark.load())
				wrong_ = "a timer on disk lies before the timers' watermark";
		}
	}
};

} // namespace tq::test
