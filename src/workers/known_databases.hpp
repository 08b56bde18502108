// What the launcher knows of each database, in its own memory: whether workers belong there, and when each is to be started next.
#pragma once

#include "pg/prelude.hpp"

#include "guc.hpp"
#include "live/clock.hpp"
#include "workers/slots.hpp"

extern "C"
{
#include "postmaster/bgworker.h"
#include "utils/hsearch.h"
}

namespace tq::workers
{

enum class Belief : uint8_t
{
	open,	 // has the extension, or is not known not to: a scheduler is to run
	absent,	 // has it not, or not one that the library serves; looked at again when something rings
	crowded, // has it, but tq.max_databases is reached
};

struct Job
{
	core::Micros due;  // not to be started before; live::steady_now
	int backoff_ms;	   // the last pause after a failure, 0 = none
	uint32 generation; // of the start that `handle` is about
	BackgroundWorkerHandle *handle;
};

struct Known
{
	Oid database; // hash key
	char name[NAMEDATALEN];
	bool seen;	   // in the current scan
	bool eligible; // takes connections, is no template
	bool check;	   // something rang since the last start
	Belief belief;
	int hold_ms; // the last pause for DDL, 0 = none
	Job jobs[kKinds];
	Job *executors; // one for each place
};

// Of the launcher's process: what lives as long as it, and what lives for one cycle.
extern MemoryContext launcher_context;
extern MemoryContext cycle_context;
extern HTAB *known_databases;

// Makes the table and its contexts. Raises on lack of memory, as everything here that enters a database.
void set_up_known();

Known *find_known(Oid database) noexcept;
inline Job &job_of(Known *known, Kind kind, int number = 0) noexcept
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

void drop_handle(Job &job) noexcept;

inline core::Micros in_ms(int ms) noexcept { return live::steady_now() + ms * core::Micros{1000}; }

// Something rang for this database: what was believed may be wrong now, and nobody has to wait for a pause.
void reconsider(Known *known) noexcept;

// Something rang, or an error may have lost what rang: takes the requests, brings the list of databases up to date and reconsiders
// those that the requests are about. Databases that are gone keep seen = false.
void look_around(bool everything);

// Forgets those that are gone. Afterwards no pointer to them may be used.
void forget_dropped();

} // namespace tq::workers
