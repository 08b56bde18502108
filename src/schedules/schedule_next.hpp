// Cron expressions as arguments.
// Regime: PG; may ereport. Locks: none.
#pragma once

#include "pg/prelude.hpp"

#include "core/cron.hpp"

namespace tq
{

// Parses an expression. Raises 22023 if it is malformed or never fires; the DETAIL names the field and the position.
core::Cron cron_of(const char *text);

} // namespace tq
