// An executor: one process that runs jobs by the handlers of one role (DESIGN section 8). Its parts are executor.cpp, which goes on until
// there is nothing to do, claiming.cpp and running.cpp.
// Regime: PG.
#pragma once

#include "workers/handlers.hpp"
#include "workers/worker.hpp"

namespace tq::workers
{

void run_executor(const WorkerContext &context);

// What the parts share.

// The attempt at hand. In attempt_context, but for what lies in the registry.
struct Attempt
{
	live::JobId id;
	live::LeaseNo lease;
	live::Micros ends; // monotonic; kNever
	Datum job;		   // its row, a tq_job
	Oid function;
	bool returns_void;
	const Handler *handler;
};

extern live::Db *executor_db;
extern MemoryContext attempt_context;
extern char executor_name[32];

// SIGTERM, as seen by its handler.
extern volatile sig_atomic_t attempt_open; // a job is held
extern volatile sig_atomic_t leaving;	   // asked to terminate

} // namespace tq::workers
