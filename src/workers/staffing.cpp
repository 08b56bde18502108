#include "workers/staffing.hpp"

#include "guc.hpp"
#include "workers/handlers.hpp"
#include "workers/slots.hpp"
#include "workers/transaction.hpp"

extern "C"
{
#include "catalog/pg_authid.h"
}

namespace tq::workers
{

namespace
{

using live::Db;
using live::engine;
using live::Micros;

constexpr Micros kSecond = 1000000;
// An executor has this long before it makes room for one of another role.
constexpr Micros kTurn = kSecond;
// One that ignores an interrupt is terminated after so long.
constexpr Micros kPatience = 5 * kSecond;

Handlers handlers;

// What this process remembers of a place.
struct Place
{
	ExecutorView now;
	bool woken;			  // in this look
	int64 lease;		  // that it was interrupted for
	Micros interrupted;	  // monotonic
	bool terminated;
	Micros dismissed; // live::steady_now
};
Place *places = nullptr;
int nplaces = 0;

// A role whose executors do not start, or there is no room for: later each time.
struct Pause
{
	Oid role;
	Micros until; // monotonic
	Micros length;
};
constexpr int kMaxPauses = 32;
Pause pauses[kMaxPauses];

Pause *pause_of(Oid role, bool make) noexcept
{
	Pause *free = &pauses[0];
	for (Pause &p : pauses)
	{
		if (p.role == role)
			return &p;
		if (p.until < free->until)
			free = &p;
	}
	if (!make)
		return nullptr;
	*free = Pause{role, 0, 0};
	return free;
}

bool is_paused(Oid role, Micros mono) noexcept
{
	const Pause *p = pause_of(role, false);
	return p != nullptr && p->until > mono;
}

bool is_there(const Place &p) noexcept { return p.now.worker.stage != Stage::none; }
bool is_coming(const Place &p) noexcept { return is_there(p) && p.now.worker.stage != Stage::ready; }
bool is_idle(const Place &p) noexcept
{
	return p.now.worker.stage == Stage::ready && !p.now.worker.stopping && p.now.handler == 0;
}

template <class Which> int count(Which &&which) noexcept
{
	return static_cast<int>(std::count_if(places, places + nplaces, which));
}

int present(Oid role) noexcept
{
	return count([role](const Place &p) noexcept { return is_there(p) && p.now.role == role; });
}

// Why no session of this role can be had; null if nothing is known against it. In a transaction.
const char *against(Oid role)
{
	HeapTuple tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(role));
	if (!HeapTupleIsValid(tuple))
		return psprintf("role %u does not exist", role);
	const auto *form = reinterpret_cast<Form_pg_authid>(GETSTRUCT(tuple));
	const char *why = nullptr;
	if (!form->rolcanlogin && pg::kMayNotLogin == 0)
		why = psprintf("role \"%s\" is not permitted to log in", NameStr(form->rolname));
	ReleaseSysCache(tuple);
	return why;
}

// Writes down for all handlers of a role what keeps them from being run. False if the extension is gone.
bool blame(const WorkerContext &context, Db &db, Oid role, bool only_if_known, bool *blamed)
{
	if (!begin_work(context, "tq: looking at the roles of handlers"))
		return false;
	const char *why = against(role);
	*blamed = why != nullptr || !only_if_known;
	for (int i = 0; *blamed && i < handlers.n; ++i)
		if (handlers.list[i].role == role)
			write_problem(db, handlers.list[i], why != nullptr ? why : "an executor of its role could not be started; the server log says why");
	end_work();
	return true;
}

// What has become of those that ended.
bool settle(const WorkerContext &context, Db &db, int slot, Micros mono)
{
	for (int n = 0; n < nplaces; ++n)
	{
		const ExecutorView &e = places[n].now;
		if (e.worker.stage != Stage::none || e.worker.outcome == Outcome::none)
			continue;
		bool blamed = false;
		switch (take_outcome(slot, Kind::executor, n))
		{
			case Outcome::failed: {
				Pause *p = pause_of(e.role, true);
				p->length = e.worker.healthy_ms >= 60000 ? kSecond : std::clamp<Micros>(p->length * 2, kSecond, 60 * kSecond);
				p->until = mono + p->length;
				if (e.worker.healthy_ms == 0 && !blame(context, db, e.role, false, &blamed))
					return false;
			}
			break;
			case Outcome::no_room:
				pause_of(e.role, true)->until = mono + std::max<Micros>(kSecond, guc::naptime * Micros{1000});
				break;
			case Outcome::done:
			case Outcome::stopped:
				if (Pause *p = pause_of(e.role, false); p != nullptr && e.worker.healthy_ms > 0)
					p->length = 0; // it has been well: the next failure is a first one
				break;
			default:
				break;
		}
	}
	return true;
}

// Is the attempt still its holder's, and not asked to stop?
enum class Standing : uint8
{
	good,
	asked,
	lost,
};

Standing standing(const Db &db, int64 job, int64 lease) noexcept
{
	uint16_t queue = 0;
	const core::Ref ref = engine.find(live::index_of(db), job, &queue);
	if (ref == core::kNil)
		return Standing::lost;
	Standing s = Standing::lost;
	live::lock_queue(queue);
	const core::Entry &e = engine.entry(ref);
	if (engine.is(engine.queue(queue), ref, job) && e.state == live::State::running && e.lease == lease)
		s = e.has(core::kCancelAsked) ? Standing::asked : Standing::good;
	live::unlock_queue(queue);
	return s;
}

// Interrupts handlers whose job was asked to stop, or is not theirs any more.
void interrupt(const Db &db, int slot, Micros mono) noexcept
{
	for (int n = 0; n < nplaces; ++n)
	{
		Place &p = places[n];
		if (p.now.worker.stage != Stage::ready || p.now.lease == 0)
			continue;
		const Standing s = standing(db, p.now.job, p.now.lease);
		if (s == Standing::good)
			continue;
		if (p.lease != p.now.lease)
		{
			p.lease = p.now.lease;
			p.interrupted = mono;
			p.terminated = false;
			signal_executor(slot, n, p.lease, SIGINT);
		}
		else if (s == Standing::lost && !p.terminated && mono - p.interrupted > kPatience)
		{
			p.terminated = true;
			signal_executor(slot, n, p.lease, SIGTERM);
		}
	}
}

void dismiss(int slot, int n) noexcept
{
	dismiss_executor(slot, n);
	if (!places[n].now.worker.stopping)
		places[n].dismissed = live::steady_now();
	places[n].now.worker.stopping = true;
}

// More than there may be: those without a job first.
void dismiss_surplus(int slot, int allowed) noexcept
{
	const auto stays = [](const Place &p) noexcept { return is_there(p) && !p.now.worker.stopping; };
	int surplus = count(stays) - allowed;
	for (int round = 0; round < 2; ++round)
		for (int n = 0; n < nplaces && surplus > 0; ++n)
			if (stays(places[n]) && (round == 1 || is_idle(places[n])))
			{
				--surplus;
				dismiss(slot, n);
			}
}

// All places are taken, and this role has none: somebody leaves, one who is idle, or of those who had their turn the one who came first. Who was
// told so a while ago may have a long job: then somebody else leaves as well.
void make_room(int slot)
{
	int victim = -1;
	const Micros turn_over = live::steady_now() - kTurn;
	if (count([turn_over](const Place &p) noexcept {
			return is_there(p) && p.now.worker.stopping && (p.now.handler == 0 || p.dismissed > turn_over);
		}) > 0)
		return; // on his way
	for (int n = 0; n < nplaces; ++n)
	{
		const Place &p = places[n];
		if (p.now.worker.stage != Stage::ready || p.now.worker.stopping || p.woken || (!is_idle(p) && p.now.worker.since > turn_over))
			continue;
		if (victim < 0 || (is_idle(p) && !is_idle(places[victim])) ||
			(is_idle(p) == is_idle(places[victim]) && p.now.worker.since < places[victim].now.worker.since))
			victim = n;
	}
	if (victim >= 0)
		dismiss(slot, victim);
}

// A handler has work: an idle executor takes it, or one more is started. False if the extension is gone.
bool serve(const WorkerContext &context, Db &db, int slot, const Handler &h, int allowed, Micros mono)
{
	for (int n = 0; n < nplaces; ++n)
		if (is_idle(places[n]) && places[n].now.role == h.role && !places[n].woken)
		{
			places[n].woken = true;
			wake_executor(slot, n);
			call_for(h); // it may find that a client was faster
			return true;
		}
	if (count([&h](const Place &p) noexcept { return is_coming(p) && p.now.role == h.role; }) > 0 || is_paused(h.role, mono))
		return true;
	if (count(is_there) >= allowed)
	{
		if (present(h.role) == 0)
			make_room(slot);
		return true;
	}
	bool blamed = false;
	if (!blame(context, db, h.role, true, &blamed))
		return false;
	if (blamed || !request_executor(slot, h.role))
		return true;
	for (int n = 0; n < nplaces; ++n)
		places[n].now = executor_view(slot, n);
	return true;
}

} // namespace

bool staff(const WorkerContext &context, Db &db)
{
	if (is_stale(handlers, db))
	{
		if (!begin_work(context, "tq: reading handlers"))
			return false;
		read_handlers(db, &handlers);
		end_work();
	}
	const int slot = find_slot(context.database);
	if (slot < 0)
		return true;
	if (places == nullptr)
	{
		nplaces = executor_places();
		places = static_cast<Place *>(MemoryContextAllocZero(TopMemoryContext, sizeof(Place) * static_cast<Size>(nplaces + 1)));
	}
	const Micros mono = live::mono_now();
	for (int n = 0; n < nplaces; ++n)
	{
		places[n].now = executor_view(slot, n);
		places[n].woken = false;
	}
	if (!settle(context, db, slot, mono))
		return false;
	interrupt(db, slot, mono);
	// a copy of a database does not run what the original runs (H33)
	const int allowed = db.dormant.load() ? 0 : std::min(guc::executors, nplaces);
	dismiss_surplus(slot, allowed);
	if (allowed == 0)
		return true;
	const Micros now = live::wall_now();
	// those whose role has no executor come first
	for (int round = 0; round < 2; ++round)
		for (int i = 0; i < handlers.n; ++i)
		{
			Handler &h = handlers.list[i];
			if ((present(h.role) == 0) != (round == 0) || is_held(h, now) || !find_queue(db, &h) || !has_work(h, true))
				continue;
			if (count([&h](const Place &p) noexcept { return p.now.handler == h.id; }) >= h.max ||
				count([&h](const Place &p) noexcept { return p.now.handler >> 32 == h.id >> 32; }) >= queue_limit(h))
				continue; // one of them takes the next
			if (!serve(context, db, slot, h, allowed, mono))
				return false;
		}
	return true;
}

} // namespace tq::workers
