/*
 * The timers' watermark: three delayed jobs are enqueued, read in shortly before they are due, fired and evicted.
 * Unlike a lane's watermark it is two atomic numbers. Holders of any queue's lock lower them, and a loader without a
 * lock raises them, so each operation is a separate step. Each job is in a separate queue.
 *
 * Each atomic is a section under one queue's lock (or a part of it, with `locked` set), one snapshot, one commit, or
 * one operation on a watermark. README.md lists the simplifications, runs.txt the assertion that must fail without
 * each protection.
 */

#define JOBS 3	 /* a job's number is its time */
#define MAX JOBS /* kNever */
#define BATCH 2
#define job(j) (1 << (j))

/* The journal, as sets of jobs. */
byte visible = job(0) | job(2);
byte ended;

/* Shared memory. */
mtype = {nothing, placeholder, committing, delayed, running};
mtype entry[JOBS] = nothing;
byte locked;			/* queues whose lock is held over more than one step */
byte watermark, limit;	/* DbCore::timer_watermark, DbCore::timer_limit */
bool loading;			/* Db::timer_loader */

/* Never true: names the assertion (right || name) that fails. */
bool a_finished_job_was_fired, an_uncommitted_job_was_fired, an_entry_was_taken_from_its_owner, a_job_was_lost;

hidden byte i, n; /* used within one atomic only */

#define free(j) (!(locked & job(j)))
#define unlock(j) locked = locked & ~job(j)

inline lock(j)
{
	atomic {
		free(j);
		locked = locked | job(j)
	}
}

#define lower(number, to) number = (to < number -> to : number)

/* Engine::lower_timer_watermark, by the holder of the lock */
inline lower_timer_watermark(due)
{
#ifdef NO_LIMIT_FIRST
	lower(watermark, due);
	lower(limit, due)
#else
	lower(limit, due);
	lower(watermark, due)
#endif
}

/* i = the least of a set */
inline least_of(set)
{
	i = 0;
	do
	:: !(set & job(i)) -> i++
	:: else -> break
	od
}

/* refill_timers in residency/loader.cpp, finish_load_batch and clean_up_load in residency/load_batch.cpp */
proctype timer_loader()
{
	byte from, reached, candidates, mine, alive, at;
end:
	do
	:: atomic { /* refill_timers: is there work for this loader? */
#ifdef TWO_TIMER_LOADERS
			watermark < MAX
#else
			watermark < MAX && !loading;
			loading = true
#endif
		};
		limit = MAX;	  /* Engine::start_timer_load */
		from = watermark;
		atomic { /* timer_cursor_next, with a snapshot: in order of time, from `from` on */
			reached = MAX;
			alive = visible & ~ended;
			n = 0;
			for (i : 0 .. JOBS - 1) {
				if
				:: i >= from && (visible & job(i)) && n < BATCH ->
					candidates = candidates | job(i);
					n++;
					at = i /* jobs due at that time are read again */
				:: i >= from && (visible & job(i)) && n == BATCH ->
					reached = at;
					n++
				:: else
				fi
			}
		};
		do
		:: candidates -> atomic { /* a placeholder, under its queue's lock; or no room */
				least_of(candidates);
				free(i);
				if
				:: entry[i] == nothing ->
					entry[i] = placeholder;
					mine = mine | job(i);
					candidates = candidates & ~job(i)
				:: entry[i] == nothing ->
					reached = i;
					candidates = 0
				:: entry[i] != nothing -> candidates = candidates & ~job(i)
				fi
			}
		:: !candidates -> break
		od;
		if
		:: atomic { /* finish_load_batch: committed_snapshot, ask_journal */
				alive = visible & ~ended
			};
			do
			:: mine -> atomic { /* install_job or drop_placeholder */
					least_of(mine);
					free(i);
					mine = mine & ~job(i);
					assert(entry[i] == placeholder || an_entry_was_taken_from_its_owner);
					entry[i] = ((alive & job(i)) -> delayed : nothing)
				}
			:: !mine -> break
			od;
			atomic { /* Engine::raise_timer_watermark: compare and exchange */
				n = 0;
				if
#ifndef NO_COMPARE
				:: watermark != from
				:: watermark == from ->
#else
				:: true ->
#endif
					watermark = reached;
					n = 1
				fi;
				at = n
			};
			if
#ifndef NO_LIMIT
			:: at ->
				at = limit;
				lower(watermark, at)
			:: !at
#else
			:: true
#endif
			fi
		:: true -> /* an error or a signal: clean_up_load */
			do
			:: mine ->
				atomic {
					least_of(mine);
					at = i;
					free(at);
					locked = locked | job(at);
					mine = mine & ~job(at)
				};
				lower_timer_watermark(0); /* drop_placeholder(unfinished): as if it were due now */
				atomic {
					entry[at] = nothing;
					unlock(at)
				}
			:: !mine -> break
			od
		fi;
		atomic { /* refill_timers: its end */
			loading = false;
			from = 0;
			reached = 0;
			alive = 0;
			at = 0
		}
	od
}

/* A transaction that enqueues a delayed job: register_enqueue, publish_enqueue or publish_queue in commit/publish.cpp. */
proctype producer(byte j)
{
	bool has_entry;
	if
	:: atomic { /* PRE_COMMIT: register_enqueue, if the timers' watermark has passed it */
			free(j) && j < watermark;
			entry[j] = committing;
			has_entry = true
		}
	:: true
	fi;
	visible = visible | job(j); /* ProcArrayEndTransaction */
	lock(j);					/* COMMIT */
	if
	:: has_entry ->
		assert(entry[j] == committing || an_entry_was_taken_from_its_owner);
		entry[j] = delayed
	:: !has_entry ->
#ifdef NO_SINK_ENQUEUED
		skip
#else
		lower_timer_watermark(j)
#endif
	fi;
	unlock(j)
}

/* evict_entries in residency/eviction.cpp: Engine::evict_delayed */
proctype evictor()
{
	byte j;
end:
	do
	:: atomic {
			if
			:: entry[0] == delayed && free(0) -> j = 0
			:: entry[1] == delayed && free(1) -> j = 1
			:: entry[2] == delayed && free(2) -> j = 2
			fi;
			locked = locked | job(j)
		};
#ifndef NO_SINK_EVICTED
		lower_timer_watermark(j);
#endif
		atomic {
			entry[j] = nothing;
			unlock(j);
			j = 0
		}
	od
}

/* Time advances: Engine::fire_due; then the job is claimed and ends. */
proctype worker()
{
	byte j;
end:
	do
	:: atomic {
			if
			:: entry[0] == delayed && free(0) -> j = 0
			:: entry[1] == delayed && free(1) -> j = 1
			:: entry[2] == delayed && free(2) -> j = 2
			fi;
			assert((visible & job(j)) || an_uncommitted_job_was_fired);
			assert(!(ended & job(j)) || a_finished_job_was_fired);
			entry[j] = running
		};
		ended = ended | job(j); /* the commit of tq_complete */
		atomic { /* COMMIT: publish_change */
			free(j);
			entry[j] = nothing;
			j = 0
		}
	od
}

/* The lane's loader reads a delayed job, once: refill_lane, install_job with Source::lane. */
proctype lane_loader(byte j)
{
	bool alive;
	atomic { /* into_memory */
		free(j) && entry[j] == nothing && (visible & job(j));
		entry[j] = placeholder
	};
	if
	:: alive = (visible & ~ended & job(j)) != 0; /* finish_load_batch */
		lock(j);								 /* install_job, drop_placeholder */
		if
		:: !alive -> entry[j] = nothing
		:: alive && j < watermark -> entry[j] = delayed
		:: alive && j >= watermark -> /* it stays with the timers */
			entry[j] = nothing;
#ifndef NO_SINK_PASSED_OVER
			lower_timer_watermark(j)
#endif
		fi
	:: lock(j); /* an error or a signal: clean_up_load, drop_placeholder(unfinished) */
#ifndef NO_SINK_ABANDONED
		lower_timer_watermark(0);
#endif
		entry[j] = nothing
	fi;
	unlock(j)
}

init {
	atomic {
		entry[2] = delayed;
		run timer_loader();
		run timer_loader();
		run producer(1);
		run lane_loader(0);
		run worker();
		run evictor()
	}
}

/* In the final state no work is left. */
active proctype watch()
{
end:
	timeout;
	assert(!(visible & ~ended) || a_job_was_lost)
}
