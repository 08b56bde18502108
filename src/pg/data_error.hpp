// Errors of what was written into a table, which must not stop whoever reads it.
// Regime: PG.
#pragma once

#include "pg/prelude.hpp"

namespace tq::pg
{

// In PG_CATCH: back in `context`, takes an error of bad data, or of what this version does not know, and clears it; raises any other again.
ErrorData *take_data_error(MemoryContext context);

} // namespace tq::pg
