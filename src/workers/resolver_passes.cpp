// What the resolver looks at, and when: notes, what was left, and now and then the whole table.
// Regime: PG. Locks: as resolver.hpp.
#include "workers/resolver.hpp"

#include "live/segments.hpp"
#include "workers/attempt.hpp"
#include "workers/held_up.hpp"
#include "workers/resolving.hpp"

namespace tq::workers
{

using core::JobId;
using core::Micros;
using live::Db;
using resolving::kChildren;
using resolving::kPage;
using resolving::look_later;
using resolving::Phase;
using resolving::progress;

namespace
{

constexpr int kAtOnce = 50;		  // notes in one transaction
constexpr Micros kAgain = 50000;  // until a job that somebody else is changing is looked at again,
constexpr Micros kAgainPart = 10; // and this many times as long as the last such look took, however many there are,
constexpr Micros kAgainMost = 30000000; // up to this
constexpr Micros kGaveUp = 1000000;		// until the look goes on after too many failures
constexpr Micros kStep = 100000;		// after which the scheduler's other work has its turn

// Children that somebody else was changing or that found no room, or batches that somebody was joining.
JobId again[kChildren];
int nagain = 0;
bool again_more = false;	// than fit there: all that wait are looked through
bool again_parents = false; // ... and whom they wait for
Micros again_at = 0;
bool looking_again = false; // or through the whole table
Micros looked_for = 0;		// so long now

bool some_again() noexcept { return nagain > 0 || again_more; }

// Where the look through the whole table is. One that is under way is not begun anew, or it might never come to its end.
Phase phase = Phase::none;
JobId looked_up_to = 0;
bool anew = false;		// another one after it
Micros look_on_at = 0;	// after failures

void look_through_again() noexcept
{
	if (!some_again())
		again_at = live::mono_now() + kAgain;
	again_more = again_parents = true;
}

} // namespace

void resolving::try_again(JobId child)
{
	if (!some_again()) // others do not put off who waits already
		again_at = live::mono_now() + kAgain;
	if (std::find(again, again + nagain, child) != again + nagain)
		return;
	if (nagain == kChildren)
		again_more = true;
	else
		again[nagain++] = child;
}

void resolving::look_later(JobId note) noexcept
{
	if (!put_off(note))
		look_through_again();
}

namespace
{

// --- a list, in few transactions ---------------------------------------------------------------------------------------

int problem = 0; // the last error's code
bool told = false;

struct List
{
	const JobId *items;
	int n;
	Phase in;
	int done;
};
JobId rest[2 * kChildren];
int nrest = 0; // left by the last transactions
JobId notes[lengthof(rest) + live::kNoted + kChildren];
List current{notes, 0, Phase::none, 0}; // more than one step may be needed for them

bool goes_on() noexcept { return current.done < current.n || nrest > 0; }

} // namespace

void resolving::go_on_with(JobId note) noexcept
{
	if (nrest == lengthof(rest))
		return look_through_again();
	rest[nrest++] = note;
}

namespace
{

// One transaction, for those up to `end` that fit. The step's error is one that all would have: a lock on the tables of dependencies.
Tried look_at_some(const WorkerContext &context, Db &db, List *list, int end, bool later)
{
	const bool alone = end == list->done + 1;
	told = false;
	const auto run = [&] {
		pg::OwnerScope scope{};
		if (!resolving::begin(context, db, &scope))
			return false;
		int i = list->done;
		for (; i < end && !resolving::is_full(); ++i)
			resolving::look_at(db, list->items[i], list->in);
		resolving::finish(db, scope, later);
		list->done = i;
		return true;
	};
	const auto mine = [] {
		problem = geterrcode();
		const bool locked = problem == ERRCODE_LOCK_NOT_AVAILABLE;
		if (locked && progress.at != kNoSegment)
			shut(progress.at);
		return progress.begun && (!locked || progress.at != kNoSegment);
	};
	return guard(run, mine, [alone] { return told = (alone || progress.at >= 0) && is_news(problem); });
}

void report(const Db &db, JobId what)
{
	journal::Segment tables{};
	if (!told)
		return;
	if (progress.at >= 0 && live::tables_at(db, progress.at, &tables))
		ereport(LOG, (errmsg("tq: jobs that wait for others are held up by segment %d", tables.number),
					  errdetail("The error before this one says why. They are tried again.")));
	else
		ereport(LOG, (errmsg("tq: jobs that wait for others are held up by job %lld",
							 static_cast<long long>(std::abs(what))),
					  errdetail("The error before this one says why. They are tried again.")));
}

// Where some fail together, each by itself, until too much has failed or that is enough for one step. False if the extension is gone.
bool look_at_all(const WorkerContext &context, Db &db, List *list, int at_once)
{
	const Micros began = live::mono_now();
	for (bool first = true; list->done < list->n && !gave_up() && (first || live::mono_now() < began + kStep); first = false)
	{
		const int end = std::min(list->done + at_once, list->n);
		Tried went = look_at_some(context, db, list, end, false);
		if (went == Tried::refused)
			return false;
		if (went == Tried::done)
			continue;
		bool tried = end == list->done + 1;
		if (!tried)
			report(db, list->items[list->done]);
		for (; list->done < end && !gave_up(); tried = false)
		{
			const JobId what = list->items[list->done];
			if (!tried)
				went = look_at_some(context, db, list, list->done + 1, false);
			if (went == Tried::failed)
				report(db, what);
			// one of its children, perhaps
			if (went == Tried::failed && progress.looked && resolving::children_met() > 1)
				went = look_at_some(context, db, list, list->done + 1, true);
			if (went == Tried::refused)
				return false;
			if (went == Tried::done)
				continue;
			note_failed(list->in == Phase::children || list->in == Phase::batches ? -what : what);
			++list->done;
		}
	}
	return true;
}

// A page of the whole table: after a start, or when more was to be noted than there was room for.
bool look_through(const WorkerContext &context, Db &db)
{
	static JobId page[kPage];
	const int n = resolving::read_page(context, db, phase, looked_up_to, page);
	if (n < 0)
		return false;
	for (int i = 0; i < n && phase == Phase::parents; ++i)
		live::await_now(db, page[i]); // before the look: if it ends after that, it is noted
	List list{page, n, phase, 0};
	if (!look_at_all(context, db, &list, kPage))
		return false;
	if (list.done > 0)
		looked_up_to = page[list.done - 1];
	if (list.done < n || n == kPage)
		return true;
	if (phase == Phase::parents)
	{
		db.awaited.complete.store(true);
		if (anew || db.awaited.all.load()) // after the store: whoever asks for another look takes it back
			db.awaited.complete.store(false);
	}
	looked_up_to = 0;
	phase = phase == Phase::batches ? Phase::none : static_cast<Phase>(static_cast<int>(phase) + 1);
	return true;
}

} // namespace

Micros next_resolve() noexcept
{
	if (goes_on())
		return 0;
	const Micros look = phase != Phase::none ? look_on_at : anew ? 0 : some_again() ? again_at : core::kNever;
	return std::min(look, next_late());
}

namespace
{

// What is to be looked at: the notes, and now and then what was left. Returns how many.
int take(Db &db, JobId *out)
{
	if (resolving::restore_is_over(db))
		live::note_all(db);
	int n = live::take_noted(db, out);
	if (db.awaited.all.exchange(false))
	{
		db.awaited.complete.store(false);
		anew = true;
	}
	if (anew && phase == Phase::none)
	{
		anew = false;
		live::empty_filter(db);
		phase = Phase::parents;
		looked_up_to = 0;
		looking_again = true;
	}
	if (!some_again() || again_at > live::mono_now() || (again_more && phase != Phase::none))
		return n;
	looking_again = true;
	if (again_more)
	{
		phase = again_parents ? Phase::parents : Phase::children; // who is in the list, is met there
		looked_up_to = 0;
		nagain = 0;
		again_more = again_parents = false;
	}
	while (nagain > 0)
		out[n++] = -again[--nagain];
	return n;
}

// Whoever keeps many jobs for long does not keep us busy.
void pause_by(Micros took) noexcept
{
	if (!looking_again)
		return;
	looked_for += took;
	if (phase != Phase::none || goes_on())
		return;
	again_at = live::mono_now() + std::clamp(kAgainPart * looked_for, kAgain, kAgainMost);
	looking_again = false;
	looked_for = 0;
}

} // namespace

bool resolve(const WorkerContext &context, Db &db)
{
	static JobId late[kLate];
	const Micros began = live::mono_now();
	begin_pass();
	if (current.done == current.n)
	{
		std::copy(rest, rest + nrest, notes);
		current = List{notes, nrest + take(db, notes + nrest), Phase::none, 0};
		nrest = 0;
	}
	if (!look_at_all(context, db, &current, kAtOnce))
		return false;
	while (gave_up() && current.done < current.n)
		look_later(current.items[current.done++]);
	// what was late one by one: those that fail do not take the others along again
	List list{late, take_late(late), Phase::none, 0};
	if (!look_at_all(context, db, &list, 1))
		return false;
	for (; list.done < list.n; ++list.done) // what was not come to is late no more
		gave_up() ? look_later(list.items[list.done]) : resolving::go_on_with(list.items[list.done]);
	if (phase != Phase::none && look_on_at <= live::mono_now() && !gave_up() && !look_through(context, db))
		return false;
	look_on_at = gave_up() ? live::mono_now() + kGaveUp : look_on_at;
	if (!end_pass())
		look_through_again();
	pause_by(live::mono_now() - began);
	return true;
}

} // namespace tq::workers
