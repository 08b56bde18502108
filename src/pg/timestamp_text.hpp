// A point in time in a setting of the server.
// Regime: PG, but raises nothing: check hooks also run in the postmaster, where an error would stop the server. Locks:
// none.
#pragma once

#include "pg/prelude.hpp"

namespace tq::pg
{

// Parses a `timestamptz` in this process's time zone unless the text names one. False if the text is malformed,
// infinite or out of range. Also false for relative times ("now", "tomorrow"), which would change at every reload.
bool parse_timestamp(const char *text, TimestampTz *result);

} // namespace tq::pg
