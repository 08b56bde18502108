/*
 * The first load: memory is empty after a start or a crash, and the process that becomes the loader reads the journal
 * into it, row by row, with one snapshot. Three jobs, one of them due much later, are enqueued before, during and
 * after the load, and are ended. A load may fail, and the server crashes once.
 *
 * Each atomic is a section under the segment map's lock in exclusive mode, half of one in shared mode, one hold of the
 * queue's lock, one snapshot, or one commit. README.md lists the simplifications, runs.txt the assertion that must
 * fail without each protection.
 */

#define JOBS 3	 /* a job's number is its key (priority, id) */
#define LATER 2	 /* delayed; not due and not wanted in memory before the end */
#define MAX JOBS /* kMaxKey */
#define ROOM 1	 /* for entries */
#define bit(n) (1 << (n))
#define size(set) (((set) & 1) + (((set) >> 1) & 1) + (((set) >> 2) & 1))

/* The journal, as sets of jobs. */
byte visible = bit(0); /* its enqueue is committed */
byte ended;			   /* it has a terminal event */

/* Shared memory: a crash empties it. */
mtype = {nothing, committing, ready, running};
mtype entry[JOBS] = nothing;
byte used;							  /* entries */
byte watermark = MAX;				  /* Lane::watermark */
bool timers_sunk;					  /* Db's timer_watermark is not above the delayed job */
byte sharing;						  /* holders of map_lock in shared mode */
bool loaded;						  /* Db::load_state */
byte the_loader;					  /* Db::loader */
bool counting;						  /* Db::counting */
byte seen_visible, seen_ended;		  /* Db::count: what the snapshot of the running load sees */
byte counted_visible, counted_ended;  /* Db::counted: the same for the completed load */
short live, delta;					  /* Lane::count; of a segment: count.pml */
byte on_disk;						  /* Lane::delayed_disk */

byte at_work; /* processes in the middle of an operation */
byte crashed; /* those of them that the crash has not ended yet */

/* Used by assertions only. */
byte published; /* the commit callback of its enqueue has run */

/* Never true: names the assertion (right || name) that fails. */
bool a_finished_job_was_claimed, a_finished_job_is_known, a_job_is_known_twice, a_job_was_lost, a_counter_is_wrong;

hidden byte i; /* used within one atomic only */

/* In memory, or guaranteed by a watermark: loaders will read it. */
#define known(j) (entry[j] != nothing || (j == LATER -> timers_sunk : watermark <= j))
#define known_if(set) ((!((set) & 1) || known(0)) && (!((set) & 2) || known(1)) && (!((set) & 4) || known(2)))

/* Engine::lower_watermark in core/lanes.cpp */
inline sink(j)
{
	watermark = (j < watermark -> j : watermark)
}

/* Engine::insert */
inline insert(j, state)
{
	entry[j] = state;
	used++
}

/* Engine::drop */
inline drop(j)
{
	entry[j] = nothing;
	used--
}

/* on_commit in commit/transaction_end.cpp, counting_of in transaction/counting.cpp */
inline begin_callback(in_counted, in_seen)
{
	atomic {
		sharing++; /* LWLockAcquire(map_lock, LW_SHARED) */
#ifndef NO_COUNTED_SNAPSHOT
		is_counted = (in_counted) != 0;
#endif
#ifndef NO_SEEN_BY_LOAD
		is_counted = is_counted || (counting && (in_seen));
#endif
#ifndef NO_DELTA
		is_unseen = counting && !(in_seen)
#endif
	}
}

/* count in commit/publish.cpp, and the end of on_commit */
inline count(by)
{
	if
	:: !is_counted ->
		live = live + by;
		delta = (is_unseen -> delta + by : delta)
	:: else
	fi;
	sharing-- /* LWLockRelease */
}

/* tq_enqueue, which does not wait for the load: xact_callback in commit/transaction_end.cpp, register_enqueue and publish_enqueue in commit/publish.cpp */
proctype enqueuer(byte j)
{
	bool has_entry, is_counted, is_unseen;
again:
	{
		atomic { /* PRE_COMMIT: register_enqueue */
			at_work = at_work | bit(_pid);
#ifndef NO_COMMITTING
			if
			:: j < watermark && j != LATER && used < ROOM ->
				insert(j, committing);
				has_entry = true
			:: else
			fi
#endif
		};
		if
		:: visible = visible | bit(j); /* ProcArrayEndTransaction */
			begin_callback(counted_visible & bit(j), seen_visible & bit(j));
			atomic { /* COMMIT: publish_enqueue */
				published = published | bit(j);
				count(1);
#ifdef NO_COMMITTING
				if /* insert if absent */
				:: j != LATER && j < watermark && entry[j] == nothing && used < ROOM ->
					insert(j, committing);
					has_entry = true
				:: else
				fi;
#endif
				if
				:: has_entry -> entry[j] = ready
				:: !has_entry && j == LATER ->
					on_disk = (is_counted -> on_disk : on_disk + 1); /* count_on_disk */
					timers_sunk = true
				:: !has_entry && j != LATER ->
#ifdef NO_SINK_ENQUEUED
					skip
#else
					sink(j)
#endif
				fi;
				at_work = at_work & ~bit(_pid);
				has_entry = false;
				is_counted = false;
				is_unseen = false
			}
		:: atomic { /* ABORT: undo */
				if
				:: has_entry -> drop(j)
				:: else
				fi;
				at_work = at_work & ~bit(_pid);
				has_entry = false
			}
		fi
	} unless {
		atomic {
			crashed & bit(_pid);
			crashed = crashed & ~bit(_pid);
			has_entry = false;
			is_counted = false;
			is_unseen = false
		};
		if
		:: !(visible & bit(j)) -> goto again /* the client gets the error */
		:: else
		fi
	}
}

#ifdef NO_ENSURE_LOADED
#define may_claim true
#else
#define may_claim loaded
#endif
#define claimable(j) (entry[j] == ready && j < watermark)

/* tq_claim and tq_complete: ensure_loaded in residency/recount.cpp, publish_change in commit/publish.cpp */
proctype worker()
{
	byte j = MAX;
	bool is_counted, is_unseen;
end:
	do
	:: {
			atomic { /* Engine::claim */
				may_claim && (claimable(0) || claimable(1));
				j = (claimable(0) -> 0 : 1);
				assert(!(ended & bit(j)) || a_finished_job_was_claimed);
				entry[j] = running;
				at_work = at_work | bit(_pid)
			};
			if
			:: atomic { /* ABORT: undo_claim */
					entry[j] = ready;
					at_work = at_work & ~bit(_pid);
					j = MAX
				}
			:: ended = ended | bit(j); /* the commit of the event */
				begin_callback(counted_ended & bit(j), seen_ended & bit(j));
				atomic { /* COMMIT: publish_change */
					drop(j);
					count(-1);
					at_work = at_work & ~bit(_pid);
					j = MAX;
					is_counted = false;
					is_unseen = false
				}
			fi
		} unless {
			atomic {
				crashed & bit(_pid);
				crashed = crashed & ~bit(_pid);
				j = MAX;
				is_counted = false;
				is_unseen = false
			}
		}
	od
}

/* install_job in residency/install.cpp, Source::first_load */
inline install_job(j)
{
	if
	:: j == LATER -> /* its time is beyond the horizon */
		on_disk++;
		timers_sunk = true
#ifndef NO_LOOK_FOR_ENTRY
	:: j != LATER && entry[j] != nothing /* Place::known */
	:: j < watermark && j != LATER && entry[j] == nothing ->
#else
	:: j < watermark && j != LATER ->
		assert(entry[j] == nothing || a_job_is_known_twice);
#endif
		if
		:: used == ROOM && j == 0 && entry[1] == ready -> /* Engine::evict_ready */
#ifndef NO_SINK_EVICTED
			sink(1);
#endif
			drop(1)
		:: else
		fi;
		if
		:: used < ROOM -> insert(j, ready)
		:: used == ROOM ->
#ifdef NO_SINK_PASSED_OVER
			skip
#else
			sink(j)
#endif
		fi
	:: j >= watermark && j != LATER /* correctly on disk */
	fi
}

/* load_or_count in residency/recount.cpp, by the scheduler or by a session that finds none */
proctype loader()
{
	byte j, alive, number;
	bool first;
end:
	do
	:: !loaded ->
		{
			atomic { /* try_become_loader */
#ifndef NO_ONE_LOADER
				the_loader == 0;
#endif
				the_loader = _pid;
				at_work = at_work | bit(_pid);
#ifdef NO_LOOK_AS_LOADER
				first = true
#else
				first = !loaded /* count_journal; a later count is modelled in count.pml */
#endif
			};
			if
			:: first ->
				atomic { /* begin_count, note_count_snapshot */
#ifndef NO_MAP_LOCK
					sharing == 0;
#endif
					seen_visible = visible;
					seen_ended = ended;
					alive = visible & ~ended;
#ifdef NO_MAP_LOCK
				};
				atomic {
#endif
#ifndef NO_RESET
					delta = 0;
					on_disk = 0;
#endif
					counting = true
				};
				do
				:: j < JOBS ->
					atomic { /* scan_segment, tally_job */
						if
						:: alive & bit(j) ->
							alive = alive & ~bit(j);
							number++;
							install_job(j)
						:: else
						fi;
						j++
					}
				:: atomic { /* stop_count: an error */
						sharing == 0;
						counting = false;
						seen_visible = 0;
						seen_ended = 0
					};
					break
				:: j == JOBS ->
					atomic { /* end_count, keep_count_snapshot */
						sharing == 0;
						live = number + delta;
						counted_visible = seen_visible;
						counted_ended = seen_ended;
						counting = false;
						loaded = true;
						assert(known_if((seen_visible | published) & ~ended) || a_job_was_lost);
						seen_visible = 0;
						seen_ended = 0
					};
					break
				od
			:: !first
			fi;
			atomic { /* give_up_loader */
				the_loader = 0;
				at_work = at_work & ~bit(_pid);
				j = 0;
				alive = 0;
				number = 0;
				first = false
			}
		} unless {
			atomic {
				crashed & bit(_pid);
				crashed = crashed & ~bit(_pid);
				j = 0;
				alive = 0;
				number = 0;
				first = false
			}
		}
	od
}

proctype crash()
{
	atomic {
		for (i : 0 .. JOBS - 1) {
			entry[i] = nothing
		};
		used = 0;
		watermark = MAX;
		timers_sunk = false;
		sharing = 0;
		loaded = false;
		the_loader = 0;
		counting = false;
		seen_visible = 0;
		seen_ended = 0;
		counted_visible = 0;
		counted_ended = 0;
		live = 0;
		delta = 0;
		on_disk = 0;
		crashed = at_work;
		at_work = 0
	}
}

init {
	atomic {
		run enqueuer(1);
		run enqueuer(LATER);
		run worker();
		run loader();
#if defined(SECOND_LOADER) || defined(NO_ONE_LOADER) || defined(NO_LOOK_AS_LOADER)
		run loader();
#endif
		run crash()
	}
}

/* In the final state memory equals the journal. */
active proctype watch()
{
end:
	timeout;
	assert(loaded && known_if(visible & ~ended) || a_job_was_lost);
	assert((!(ended & 1) || entry[0] == nothing) && (!(ended & 2) || entry[1] == nothing) || a_finished_job_is_known);
	assert((live == size(visible & ~ended) && on_disk == size(visible & bit(LATER))) || a_counter_is_wrong)
}
