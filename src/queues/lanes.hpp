// Finds, makes and frees the lanes of kinds.
// A transaction that refers to a lane holds it until the transaction ends; a held lane is not freed. An idle lane has
// no jobs and no holder. It is freed when another kind needs the slot, or at once if a rolled-back transaction made it.
// Regime: PG; lane_for may raise. Locks: the registry lock, and under it the queue's.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// What to do if a kind has no lane.
enum class Make : uint8
{
	// Make one; raise 53400 if the queue, the database or the server has too many kinds.
	in_share,
	// Make one even beyond the queue's share, for an unfinished job of the journal; raise 53400 if none is left.
	must,
	// As in_share, but return kNoLane where that raises.
	attempt,
	// Return kNoLane. A kind with unfinished jobs has a lane, so a job of a kind without one has ended.
	never,
};

// The lane of a kind (null: none). The open transaction now holds it.
uint16_t lane_for(uint16_t queue, const char *kind, Make make = Make::in_share);

// Called at the end of a transaction: releases its lanes. After a rollback, frees those that are idle.
void leave_lanes(bool aborted) noexcept;

} // namespace tq
