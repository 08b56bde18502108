// The launcher's part that starts workers: one scheduler at a time, and requested janitors and executors.
#pragma once

#include "workers/database_registry.hpp"

namespace tq
{

// The state over all slots.
struct Overview
{
	bool start_under_way; // a scheduler is starting, within kStartPatienceMs
	core::Micros next;	  // latest time of the next check; steady_now
};

// Is DDL under way that allows no worker in the database?
bool ddl_under_way(Oid database);

// Starts missing workers that are due, unless tq.workers is off. Sets in `overview` how long to sleep.
void start_workers(Overview *overview);

} // namespace tq
