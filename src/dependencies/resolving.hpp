// One transaction of the resolver. resolver_passes.cpp decides what it checks, and when.
// Regime: PG. Locks: as resolver.hpp.
#pragma once

#include "dependencies/awaited.hpp"
#include "processes/worker.hpp"

namespace tq
{

constexpr int kChildren = 500; // remembered at a time
constexpr int kEnough = 100;   // checks in one transaction; timers of all queues wait for it
constexpr int kPage = 200;	   // rows of the whole table in one step

// Where the resolver's work comes from: notes (parents, and minus children), or the tables.
enum class Phase : uint8
{
	none,
	parents,
	children,
	batches,
};

// How far the transaction is, for the code that catches its error.
struct Progress
{
	bool begun;
	bool looked; // everything is checked; the children remain
	int at;		 // segment that is being read or written, or a constant of retry_later.hpp
};
extern Progress progress;

bool begin(const WorkerContext &context, Db &db, pg::OwnerScope *scope);
void look_at(Db &db, core::JobId what, Phase in);
bool is_full() noexcept;
int children_met() noexcept;
// Decides about every child that was found, unless that is postponed. Then commits.
void finish(Db &db, const pg::OwnerScope &scope, bool later);

// Reads at most kPage rows, in a transaction of their own. Returns how many; -1 if the extension is gone.
int read_page(const WorkerContext &context, Db &db, Phase in, core::JobId after, core::JobId *page);

// --- postponed work; a note is a parent, or minus a child

void try_again(core::JobId child);			// after a pause: another transaction is changing it
void go_on_with(core::JobId note) noexcept; // at once, in another transaction
void look_later(core::JobId note) noexcept; // it cannot be read now

} // namespace tq
