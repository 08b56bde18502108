// One transaction of the resolver, for resolver_passes.cpp, which says what is looked at, and when.
// Regime: PG. Locks: as resolver.hpp.
#pragma once

#include "live/dependencies.hpp"
#include "workers/worker.hpp"

namespace tq::workers::resolving
{

constexpr int kChildren = 500; // looked at in one transaction
constexpr int kPage = 200;	   // of the whole table, in one step

// Where something to be looked at comes from: notes (parents, and minus children), or the tables.
enum class Phase : uint8
{
	none,
	parents,
	children,
	batches,
};

// How far the transaction is, for whoever catches its error.
struct Progress
{
	bool begun;
	bool looked; // at all that was to be looked at: now it is about the children
	int at;		 // the segment that is being read or written, or see held_up.hpp
};
extern Progress progress;

bool begin(const WorkerContext &context, live::Db &db, pg::OwnerScope *scope);
void look_at(live::Db &db, core::JobId what, Phase in);
bool is_full() noexcept;
int children_met() noexcept;
// Decides about every child that was met, unless that is left for later, and commits.
void finish(live::Db &db, const pg::OwnerScope &scope, bool later);

// Whether what a restore might have brought is to be looked at again now; true once.
bool restore_is_over(const live::Db &db) noexcept;

// The next kPage at most, in a transaction of their own. Returns how many; -1 if the extension is gone.
int read_page(const WorkerContext &context, live::Db &db, Phase in, core::JobId after, core::JobId *page);

// --- what is left for another time

void try_again(core::JobId child);
void go_on_with(core::JobId note) noexcept; // at once, in another transaction
void look_later(core::JobId note) noexcept; // a parent, or minus a child, that cannot be looked at now

} // namespace tq::workers::resolving
