// A point in time as a setting of the server gives it.
// Regime: PG, but raises nothing: check hooks run in the postmaster too, where an error would end the server. Locks: none.
#pragma once

#include "pg/prelude.hpp"

namespace tq::pg
{

// Reads what `timestamptz` accepts, in this process's time zone unless the text names one. False for what is malformed, infinite,
// out of range, or relative to the present ("now", "tomorrow"), which would be read anew at every reload.
bool parse_timestamp(const char *text, TimestampTz *result);

} // namespace tq::pg
