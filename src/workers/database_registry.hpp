// The launcher's data on each database, in its own memory: whether workers belong there, and when to start each of them
// next.
#pragma once

#include "pg/prelude.hpp"

#include "guc.hpp"
#include "processes/slots.hpp"
#include "shmem/clock.hpp"

extern "C"
{
#include "utils/hsearch.h"
}

namespace tq
{

enum class DbStatus : uint8_t
{
	open,	 // is active, or may be: a scheduler should run
	absent,	 // lacks the extension, or has a version that is not served, or is not active; checked again after a wakeup
	crowded, // is active, but tq.max_databases others have a slot; tried again after a pause
};

struct WorkerJob
{
	core::Micros due;  // earliest time of the next start; steady_now
	core::Micros tried; // the last try of a start; steady_now
	int backoff_ms;	   // the last pause after a failure, 0 = none
	uint32 generation; // of the start that `handle` belongs to
	BackgroundWorkerHandle *handle;
};

struct Known
{
	Oid database; // hash key
	char name[NAMEDATALEN];
	bool seen;	   // in the current scan
	bool eligible; // takes connections, is no template
	bool check;	   // a request came since the last start
	DbStatus status;
	int ddl_pause_ms; // the last pause for DDL, 0 = none
	WorkerJob jobs[kKinds];
	WorkerJob *executors; // one per executor entry
};

// Contexts of the launcher's process: one lives as long as the process, one for one cycle.
extern MemoryContext launcher_context;
extern MemoryContext cycle_context;
extern HTAB *known_databases;

// Creates the table and its contexts. Like every function here that enters a database, raises an error if memory is
// short.
void set_up_registry();

Known *find_known(Oid database) noexcept;
inline WorkerJob &job_of(Known *known, Kind kind, int number = 0) noexcept
{
	return kind == Kind::executor ? known->executors[number] : known->jobs[static_cast<int>(kind)];
}

template <typename Body>
void for_each_known(Body body)
{
	HASH_SEQ_STATUS status;

	hash_seq_init(&status, known_databases);
	while (auto known = static_cast<Known *>(hash_seq_search(&status)))
		body(known);
}

void drop_handle(WorkerJob &job) noexcept;

inline core::Micros in_ms(int ms) noexcept { return steady_now() + ms * core::Micros{1000}; }

// A request for this database arrived: the launcher's status may be wrong now, and pauses end.
void reconsider(Known *known) noexcept;

// Takes the requests for checks, updates the list of databases and reconsiders those that the requests name.
// `everything`: reconsiders all databases, because an error may have lost requests. Databases that are gone keep seen
// = false.
void update_databases(bool everything);

// Forgets databases that are gone. Pointers to them are invalid afterwards.
void forget_dropped();

} // namespace tq
