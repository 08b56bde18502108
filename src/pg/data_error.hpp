// Errors in the contents of a table; they must not stop the reader.
// Regime: PG.
#pragma once

#include "pg/prelude.hpp"

namespace tq::pg
{

// Call in PG_CATCH. Switches to `context` and clears an error of bad or unsupported data; rethrows any other error.
ErrorData *take_data_error(MemoryContext context);

} // namespace tq::pg
