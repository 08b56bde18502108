// Errors of the parser of a stored value: a setting, or a row written by hand. They must not stop the reader.
// Regime: PG. Locks: none.
#pragma once

#include "pg/prelude.hpp"

namespace tq::pg
{

// Call in PG_CATCH. Switches to `context` and clears an error of bad or unsupported data (classes 22 and 0A); rethrows
// any other error. Nothing is rolled back, so the code in PG_TRY only parses.
ErrorData *take_data_error(MemoryContext context);

} // namespace tq::pg
