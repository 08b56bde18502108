// The SQL versions that this library serves: its own and the previous release's. So a server can be restarted with a
// new library before ALTER EXTENSION tq UPDATE has run in every database.
// Regime: PG. Locks: none. Only refuse_version() raises: TQ007.
#pragma once

#include "pg/prelude.hpp"

namespace tq
{

// The library's version. Test builds can override it with tq.test_version.
const char *library_version() noexcept;

enum class Fit
{
	same,
	served, // the previous release
	newer,	// the SQL is newer than the library
	older,	// the SQL is older than the library
};
Fit fit_of(const char *sql_version) noexcept;
inline bool is_served(Fit fit) noexcept { return fit == Fit::same || fit == Fit::served; }

// Advice for a version that is not Fit::same.
const char *hint_for(Fit fit) noexcept;

[[noreturn]] void refuse_version(const char *sql_version);

} // namespace tq
