// What the resolver checks, and when: notes, postponed work, and now and then the whole table.
// Regime: PG. Locks: as resolver.hpp.
#include "dependencies/resolver.hpp"
#include "dependencies/resolving.hpp"
#include "processes/retry_later.hpp"
#include "segments/segments.hpp"
#include "pg/attempt.hpp"

namespace tq
{

using core::JobId;
using core::Micros;

namespace
{

constexpr int kAtOnce = 200;	  // notes in one transaction: it checks a child at once for all its parents
constexpr Micros kAgain = 50000;  // until a retry of a job that another transaction is changing,
constexpr Micros kAgainPart = 10; // and this many times as long as the last such check took,
constexpr Micros kAgainMost = 30000000; // up to this
constexpr Micros kGaveUp = core::kSecond;		// until the pass continues after too many failures
constexpr Micros kStep = 20000;		// after which the scheduler's other work has its turn
constexpr Micros kTransaction = 10000; // after which a transaction takes no more notes

struct List
{
	const JobId *items;
	int n;
	Phase in;
	int done;
};

struct Passes
{
	// Children that another transaction was changing or that did not fit, and batches that jobs were joining.
	JobId again[kChildren] = {};
	int nagain = 0;
	bool again_more = false;	// more than fit there: all waiting children are checked
	bool again_parents = false; // ... and their parents
	Micros again_at = 0;
	bool looking_again = false; // or a pass over both tables
	Micros looked_for = 0;		// for so long

	// Position of the pass over the whole table. A pass under way is not restarted, or it might never end.
	Phase phase = Phase::none;
	JobId looked_up_to = 0;
	bool another_pass = false; // after this one
	Micros look_on_at = 0; // after failures

	// The list under way; it may need more than one step.
	JobId rest[2 * kChildren] = {};
	int nrest = 0; // left by the last transactions
	JobId notes[lengthof(rest) + kNoted + kChildren] = {};
	List current{notes, 0, Phase::none, 0};
	int problem = 0; // the last error's code
	bool told = false;
};
Passes state;

bool some_again() noexcept { return state.nagain > 0 || state.again_more; }

void look_through_again() noexcept
{
	if (!some_again())
		state.again_at = mono_now() + kAgain;
	state.again_more = state.again_parents = true;
}

} // namespace

void try_again(JobId child)
{
	if (!some_again()) // a new child does not delay those that wait already
		state.again_at = mono_now() + kAgain;
	if (std::find(state.again, state.again + state.nagain, child) != state.again + state.nagain)
		return;
	if (state.nagain == kChildren)
		state.again_more = true;
	else
		state.again[state.nagain++] = child;
}

void look_later(JobId note) noexcept
{
	if (!delay_note(note))
		look_through_again();
}

namespace
{

// --- a list, in few transactions -------------------------------------------------------------------------------------

bool goes_on() noexcept { return state.current.done < state.current.n || state.nrest > 0; }

} // namespace

void go_on_with(JobId note) noexcept
{
	if (state.nrest == lengthof(state.rest))
		return look_through_again();
	state.rest[state.nrest++] = note;
}

namespace
{

// One transaction, for the items up to `end` that fit. An error is raised to the step if all items would have it: a
// lock on the tables of dependencies.
Tried look_at_some(const WorkerContext &context, Db &db, List *list, int end, bool later)
{
	const bool alone = end == list->done + 1;
	state.told = false;
	const auto run = [&] {
		pg::OwnerScope scope{};
		if (!begin(context, db, &scope))
			return false;
		int i = list->done;
		const Micros until = mono_now() + kTransaction;
		do
			look_at(db, list->items[i++], list->in);
		while (i < end && !is_full() && mono_now() < until);
		finish(db, scope, later);
		list->done = i;
		return true;
	};
	const auto mine = [] {
		state.problem = geterrcode();
		const bool locked = state.problem == ERRCODE_LOCK_NOT_AVAILABLE;
		if (locked && progress.at != kNoSegment)
			block_segment(progress.at);
		return progress.begun && (!locked || progress.at != kNoSegment);
	};
	return guard(run, mine,
				 [alone] { return state.told = (alone || progress.at >= 0) && is_new_error(state.problem); });
}

void report(const Db &db, JobId what)
{
	journal::Segment tables{};
	if (!state.told)
		return;
	if (progress.at >= 0 && tables_at(db, progress.at, &tables))
		ereport(LOG, (errmsg("tq: jobs that wait for other jobs are delayed by segment %d", tables.number),
					  errdetail("The error before this one says why. They are tried again.")));
	else
		ereport(LOG, (errmsg("tq: jobs that wait for other jobs are delayed by job %lld",
							 static_cast<long long>(std::abs(what))),
					  errdetail("The error before this one says why. They are tried again.")));
}

// If items fail together, tries each alone, until too many have failed or the step has taken long enough. False if the
// extension is gone.
bool look_at_all(const WorkerContext &context, Db &db, List *list, int at_once)
{
	const Micros began = mono_now();
	for (bool first = true; list->done < list->n && !gave_up() && (first || mono_now() < began + kStep); first = false)
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
			// perhaps one of its children failed: postpone them
			if (went == Tried::failed && progress.looked && children_met() > 1)
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

// Checks a page of the whole table: after a start, or when there were too many notes.
bool look_through(const WorkerContext &context, Db &db)
{
	static JobId page[kPage];
	const int n = read_page(context, db, state.phase, state.looked_up_to, page);
	if (n < 0)
		return false;
	for (int i = 0; i < n && state.phase == Phase::parents; ++i)
		await_now(db, page[i]); // before the check: if it ends after that, it is noted
	List list{page, n, state.phase, 0};
	if (!look_at_all(context, db, &list, kAtOnce))
		return false;
	if (list.done > 0)
		state.looked_up_to = page[list.done - 1];
	if (list.done < n || n == kPage)
		return true;
	if (state.phase == Phase::parents)
	{
		db.awaited.complete.store(true);
		if (state.another_pass || db.awaited.all.load()) // after the store, since a request for another pass clears it
			db.awaited.complete.store(false);
	}
	state.looked_up_to = 0;
	state.phase = state.phase == Phase::batches ? Phase::none : static_cast<Phase>(static_cast<int>(state.phase) + 1);
	return true;
}

} // namespace

Micros next_resolve() noexcept
{
	if (goes_on())
		return 0;
	const Micros look = state.phase != Phase::none ? state.look_on_at
						: state.another_pass			   ? 0
						: some_again()			   ? state.again_at
												   : core::kNever;
	return std::min(look, next_late());
}

namespace
{

// Collects what to check: the notes, and now and then postponed work. Returns how many.
int take(Db &db, JobId *out)
{
	int n = take_noted(db, out);
	if (db.awaited.all.exchange(false))
	{
		db.awaited.complete.store(false);
		state.another_pass = true;
	}
	if (state.another_pass && state.phase == Phase::none)
	{
		state.another_pass = false;
		empty_filter(db);
		state.phase = Phase::parents;
		state.looked_up_to = 0;
		state.looking_again = true;
	}
	if (!some_again() || state.again_at > mono_now() || (state.again_more && state.phase != Phase::none))
		return n;
	state.looking_again = true;
	if (state.again_more)
	{
		state.phase = state.again_parents ? Phase::parents : Phase::children; // children in the list are met there
		state.looked_up_to = 0;
		state.nagain = 0;
		state.again_more = state.again_parents = false;
	}
	while (state.nagain > 0)
		out[n++] = -state.again[--state.nagain];
	return n;
}

// A session that keeps many jobs for long must not keep the scheduler busy, so the pause grows with the time of the
// check.
void pause_by(Micros took) noexcept
{
	if (!state.looking_again)
		return;
	state.looked_for += took;
	if (state.phase != Phase::none || goes_on())
		return;
	state.again_at = mono_now() + std::clamp(kAgainPart * state.looked_for, kAgain, kAgainMost);
	state.looking_again = false;
	state.looked_for = 0;
}

} // namespace

bool resolve(const WorkerContext &context, Db &db)
{
	static JobId late[kLate];
	const Micros began = mono_now();
	begin_pass();
	if (state.current.done == state.current.n)
	{
		std::copy(state.rest, state.rest + state.nrest, state.notes);
		state.current = List{state.notes, state.nrest + take(db, state.notes + state.nrest), Phase::none, 0};
		state.nrest = 0;
	}
	if (!look_at_all(context, db, &state.current, kAtOnce))
		return false;
	while (gave_up() && state.current.done < state.current.n)
		look_later(state.current.items[state.current.done++]);
	// Late notes are tried one by one, so that notes that fail do not take others along again.
	List list{late, take_late(late), Phase::none, 0};
	if (!look_at_all(context, db, &list, 1))
		return false;
	for (; list.done < list.n; ++list.done) // notes that were not reached are no longer late
		gave_up() ? look_later(list.items[list.done]) : go_on_with(list.items[list.done]);
	if (state.phase != Phase::none && state.look_on_at <= mono_now() && !gave_up() && !look_through(context, db))
		return false;
	state.look_on_at = gave_up() ? mono_now() + kGaveUp : state.look_on_at;
	if (!end_pass())
		look_through_again();
	pause_by(mono_now() - began);
	return true;
}

} // namespace tq
