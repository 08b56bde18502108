// The launcher's starting of workers: one scheduler at a time, janitors that are wanted, executors that schedulers ask for.
#pragma once

#include "workers/known_databases.hpp"

namespace tq::workers
{

// What is to be done, seen over all slots.
struct Overview
{
	bool start_under_way; // a scheduler is on its way and still has our patience
	core::Micros next;	  // when to look again at the latest; live::steady_now
};

// Is DDL under way that wants no worker in the database?
bool ddl_under_way(Oid database);

// Starts what is due and missing, unless tq.workers is off. `overview` then says how long to sleep.
void start_workers(Overview *overview);

} // namespace tq::workers
