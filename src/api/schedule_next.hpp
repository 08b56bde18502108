// Cron expressions as arguments.
// Regime: PG; may ereport. Locks: none.
#pragma once

#include "pg/prelude.hpp"

#include "core/cron.hpp"

namespace tq::api
{

// Reads an expression; raises 22023, whose DETAIL names the field and the position, if it is malformed or never fires.
core::Cron cron_of(const char *text);

} // namespace tq::api
