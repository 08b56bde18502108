// An executor: a process that runs jobs with the handlers of one role. executor.cpp loops until there is nothing to
// do; claiming.cpp, running.cpp and calling.cpp are its other parts.
// Regime: PG.
#pragma once

#include "handlers/handler_list.hpp"
#include "processes/worker.hpp"

namespace tq
{

void run_executor(const WorkerContext &context);

// What the parts share:

// The current attempt. It is allocated in attempt_context, except for pointers into the registry.
struct Attempt
{
	JobId id;
	LeaseNo lease;
	Micros ends;	   // monotonic; kNever
	Datum job;		   // its row, a tq_job
	Oid function;
	bool returns_void;
	const Handler *handler;
	Judgment judgment; // of its function, when it was last judged
};

// This process.
struct ExecutorSelf
{
	Db *db;
	char name[32];
	MemoryContext attempt_context;
	// SIGTERM, as seen by its handler.
	volatile sig_atomic_t attempt_open; // 0: no job; 1: claimed or running; then kEnding, see running.cpp
	volatile sig_atomic_t leaving;		// asked to terminate
};
extern ExecutorSelf self;

// This executor's slot in the table of workers. kNil if another role uses the name, so that no other role can drain the
// executor, or if there is no slot for it.
uint32_t own_slot(const WorkerContext &context) noexcept;

} // namespace tq
