// Purges jobs, for tq_purge and tq_reset.
// Regime: PG; may ereport.
#pragma once

#include "jobs/search.hpp"

namespace tq
{

constexpr uint32 kAllEnded = bit_of(journal::FoldState::succeeded) | bit_of(journal::FoldState::dead) |
							 bit_of(journal::FoldState::buried) | bit_of(journal::FoldState::cancelled) |
							 bit_of(journal::FoldState::expired);
constexpr uint32 kAllWaiting = bit_of(State::ready) | bit_of(State::delayed) | bit_of(State::blocked);

// Purges the jobs in these states; returns how many. Raises a NOTICE if the transaction must commit before the rest.
// The caller has loaded the live state.
int64 purge(Db &db, Search *search);

} // namespace tq
