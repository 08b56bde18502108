// Which versions of the extension's SQL this library serves: its own, and the one of the release before, so that a server can be
// restarted with a new library before ALTER EXTENSION tq UPDATE has run everywhere.
// Regime: PG. Locks: none. refuse_version() raises TQ007, the others nothing.
#pragma once

#include "pg/prelude.hpp"

namespace tq::live
{

// What this library says it is. In test builds tq.test_version can make it another one.
const char *library_version() noexcept;

enum class Fit
{
	same,
	served, // of the release before
	newer,	// the SQL is of a newer release than the library
	older,	// and the other way round
};
Fit fit_of(const char *sql_version) noexcept;
inline bool is_served(Fit fit) noexcept { return fit == Fit::same || fit == Fit::served; }

// What to do about a version that is not `same`.
const char *hint_for(Fit fit) noexcept;

[[noreturn]] void refuse_version(const char *sql_version);

} // namespace tq::live
