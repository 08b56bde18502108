/*
 * A lane's watermark: four jobs are enqueued, read in, claimed, ended, evicted and pinned.
 *
 * Each atomic is one hold of the queue's lock, one snapshot, or one commit; other processes can run between any two.
 * The comment at a step names its code; README.md lists the simplifications. Each -DNO_... removes one protection, and
 * runs.txt names the assertion that must then fail.
 */

#define JOBS 4	 /* a job's number is its key (priority, id) */
#define MAX JOBS /* kMaxKey */
#define BATCH 2	 /* rows that a loader reads at a time */
#define job(j) (1 << (j))

/* The journal, as sets of jobs. */
byte visible = job(1); /* its enqueue is committed */
byte ended;			   /* it has a terminal event */

/* Shared memory. */
mtype = {nothing, placeholder, committing, ready, running, marked};
mtype entry[JOBS] = nothing;
byte watermark = MAX, limit = MAX; /* Lane::watermark, Lane::limit */
bool loading;					   /* Lane::loader */

/* Used by assertions only. */
byte published = job(1); /* the commit callback of its enqueue has run */
byte pinned;			 /* its placeholder belongs to a verb, not to a loader */

/* Never true: names the assertion (right || name) that fails. */
bool a_finished_job_was_claimed, an_uncommitted_job_was_claimed, a_ready_job_on_disk_was_overtaken, a_job_ended_twice,
	an_entry_was_taken_from_its_owner, a_job_was_lost;

hidden byte i, n, last; /* used within one atomic only */

/* Engine::lower_watermark in core/lanes.cpp */
inline sink(key)
{
	if
	:: key < limit -> limit = key
	:: else
	fi;
	if
	:: key < watermark -> watermark = key
	:: else
	fi
}

/* Engine::raise_watermark */
inline raise(key)
{
#ifdef NO_LIMIT
	n = key;
#else
	n = (key < limit -> key : limit);
#endif
	if
	:: n > watermark -> watermark = n
	:: else
	fi
}

/* The commit of a terminal event. */
inline end_job(j)
{
	assert(!(ended & job(j)) || a_job_ended_twice);
	ended = ended | job(j)
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

/* refill_lane in residency/loader.cpp, finish_load_batch in residency/load_batch.cpp */
proctype loader()
{
	byte from, reached, candidates, mine, alive;
end:
	do
	:: atomic { /* refill_lane, its first section under the lock */
#ifdef NO_ONE_LOADER
			watermark < MAX;
#else
			watermark < MAX && !loading;
#endif
			loading = true;
			limit = MAX;
			from = watermark
		};
		atomic { /* lane_cursor_next: rows in order, ended ones too, with a snapshot */
			candidates = 0;
			alive = visible & ~ended;
			reached = MAX;
			n = 0;
			for (i : 0 .. JOBS - 1) {
				if
				:: i >= from && (visible & job(i)) ->
					if
					:: n < BATCH ->
						candidates = candidates | job(i);
						last = i
					:: n == BATCH -> reached = last + 1
					:: else
					fi;
					n++
				:: else
				fi
			}
		};
#ifdef NO_PLACEHOLDERS
		mine = candidates;
#else
		atomic { /* into_memory for each; all of them, none, or one may find room */
			if
			:: n = MAX
			:: n = from
			:: n = from + 1
			fi;
			for (i : 0 .. JOBS - 1) {
				if
				:: !(candidates & job(i)) || entry[i] != nothing
				:: else ->
					if
					:: i < n ->
						entry[i] = placeholder;
						mine = mine | job(i)
					:: else -> /* it and later ones stay on disk */
						reached = i;
						candidates = candidates & (job(i) - 1)
					fi
				fi
			}
		};
#endif
		if
		:: atomic { /* finish_load_batch: committed_snapshot, ask_journal */
#ifdef NO_FRESH_SNAPSHOT
				skip
#else
				alive = visible & ~ended
#endif
			};
			do
			:: mine -> atomic { /* finish_load_batch's loop: install_job or drop_placeholder */
					least_of(mine);
					mine = mine & ~job(i);
#ifdef NO_PLACEHOLDERS
					if
					:: entry[i] == nothing && (alive & job(i)) -> entry[i] = ready
					:: else
					fi
#else
					assert(entry[i] == placeholder || an_entry_was_taken_from_its_owner);
					entry[i] = ((alive & job(i)) -> ready : nothing)
#endif
				}
			:: !mine -> break
			od;
			atomic { /* refill_lane, its last section under the lock */
				raise(reached);
				loading = false
			}
#ifndef NO_PLACEHOLDERS
		:: true -> /* an error or a signal: clean_up_load */
			do
			:: mine -> atomic { /* drop_placeholder(unfinished) */
					least_of(mine);
					mine = mine & ~job(i);
#ifndef NO_SINK_ABANDONED
					sink(i);
#endif
					entry[i] = nothing
				}
			:: !mine -> break
			od;
			loading = false
#endif
		fi;
		atomic { /* forgotten */
			from = 0;
			reached = 0;
			candidates = 0;
			alive = 0
		}
	od
}

/* A transaction that enqueues one job: xact_callback in commit/transaction_end.cpp, register_enqueue and publish_enqueue in commit/publish.cpp. */
proctype producer(byte j)
{
	bool has_entry;
	if /* PRE_COMMIT: it gets an entry, or there is no room, or its key is beyond the watermark */
#ifndef NO_COMMITTING
	:: atomic { /* register_enqueue */
			has_entry = true;
			entry[j] = committing
		}
#endif
	:: true
	fi;
	if
	:: visible = visible | job(j); /* ProcArrayEndTransaction */
		atomic { /* COMMIT: publish_enqueue */
			published = published | job(j);
#ifdef NO_COMMITTING
			if /* insert if absent */
			:: entry[j] == nothing -> entry[j] = ready
			:: else
			fi
#else
			if
			:: has_entry ->
				assert(entry[j] == committing || an_entry_was_taken_from_its_owner);
				entry[j] = ready
			:: else -> sink(j)
			fi
#endif
		}
	:: atomic { /* ABORT: undo */
			if
			:: has_entry -> entry[j] = nothing
			:: else
			fi
		}
	fi
}

/* A transaction that enqueues more than tq.publish_limit jobs: publish_queue. */
proctype bulk()
{
	visible = visible | job(0) | job(3);
	atomic { /* COMMIT */
		published = published | job(0) | job(3);
#ifndef NO_SINK_BULK
		sink(0)
#endif
	}
}

#ifdef REGAINED
/* A row of a segment that was damaged and can be read again: no callback publishes it. count_journal in residency/recount.cpp. */
proctype regained(byte j)
{
	bool seen;
	visible = visible | job(j);
	seen = (visible & ~ended & job(j)) != 0; /* begin_count */
#ifndef NO_VOID
	atomic { /* void_loads */
		if
		:: loading -> sink(watermark)
		:: else
		fi
	};
#endif
	atomic { /* vouched_for: a job that is not correctly on disk is read in, or sinks the watermark */
		if
		:: seen && entry[j] == nothing && j < watermark -> sink(j)
		:: else
		fi;
		published = published | job(j)
	}
}
#endif

#ifdef NO_GATE
#define claimable(j) (entry[j] == ready)
#else
#define claimable(j) (entry[j] == ready && j < watermark)
#endif

/* Claims, and finishes or rolls back. */
proctype worker()
{
	byte j = MAX;
end:
	do
	:: atomic { /* Engine::claim, first_of */
			claimable(0) || claimable(1) || claimable(2) || claimable(3);
			j = 0;
			do
			:: !claimable(j) -> j++
			:: else -> break
			od;
			assert((visible & job(j)) || an_uncommitted_job_was_claimed);
			assert(!(ended & job(j)) || a_finished_job_was_claimed);
			for (i : 0 .. JOBS - 1) {
				assert(i >= j || !(published & ~ended & ~pinned & job(i)) ||
					(entry[i] != nothing && entry[i] != placeholder) || a_ready_job_on_disk_was_overtaken)
			};
			entry[j] = running
		};
		if
		:: entry[j] = ready /* ABORT: undo_claim */
		:: atomic { /* the commit of tq_complete */
#ifdef NO_VISIBLE_FIRST
				entry[j] = nothing
#else
				end_job(j)
#endif
			};
			atomic { /* COMMIT: publish_change, Engine::drop */
#ifdef NO_VISIBLE_FIRST
				end_job(j)
#else
				entry[j] = nothing
#endif
			}
		fi;
		j = MAX
	od
}

/* evict_entries in residency/eviction.cpp, for a process that needs an entry: Engine::evict_ready. */
proctype evictor()
{
end:
	do
	:: atomic {
			entry[0] == ready || entry[1] == ready || entry[2] == ready || entry[3] == ready;
			i = JOBS - 1;
			do
			:: entry[i] != ready -> i--
			:: else -> break
			od;
#ifndef NO_SINK_EVICTED
			sink(i);
#endif
			entry[i] = nothing
		}
	od
}

/* tq_cancel of a job that may be on disk only: pin in residency/fetch_job.cpp, mark_job in jobs/verbs.cpp, publish_change. */
proctype canceller(byte j)
{
	bool alive;
look:
	if
	:: atomic { /* pin: find, find_job, Engine::insert */
			entry[j] == nothing && (visible & job(j));
			entry[j] = placeholder;
			pinned = pinned | job(j)
		};
		if
		:: alive = (visible & ~ended & job(j)) != 0; /* fold_pinned */
			atomic { /* install_job or drop_placeholder */
				assert(entry[j] == placeholder || an_entry_was_taken_from_its_owner);
				entry[j] = (alive -> ready : nothing);
				pinned = pinned & ~job(j)
			}
		:: atomic { /* an error: clean_up, drop_placeholder(unfinished) */
#ifndef NO_SINK_ABANDONED
				sink(j);
#endif
				entry[j] = nothing;
				pinned = pinned & ~job(j)
			}
		fi
	:: entry[j] == ready || entry[j] == running -> alive = true
	fi;
	if
	:: !alive
	:: alive && entry[j] == running /* asks it to stop: finish.pml */
	:: alive && (entry[j] == nothing || entry[j] == placeholder) -> goto look /* evicted or ended, and being read in again */
	:: atomic { /* mark_job, take */
			alive && entry[j] == ready;
#ifndef NO_MARKS
			entry[j] = marked
#endif
		};
		if
		:: atomic { end_job(j) }; /* the commit of the event */
			atomic { /* COMMIT: publish_change, which finds its mark on the entry */
#ifdef NO_MARKS
				if
				:: entry[j] == ready -> entry[j] = nothing
				:: else
				fi
#else
				assert(entry[j] == marked || an_entry_was_taken_from_its_owner);
				entry[j] = nothing
#endif
			}
#ifndef NO_MARKS
		:: entry[j] = ready /* ABORT: undo_change */
#endif
		fi
	fi
}

init {
	atomic {
		entry[1] = ready;
		run loader();
#ifdef NO_ONE_LOADER
		run loader();
#endif
#ifdef REGAINED
		run regained(2);
#else
		run producer(2);
#endif
		run bulk();
		run worker();
		run evictor();
		run canceller(1)
	}
}

/* In the final state no work is left. */
active proctype watch()
{
end:
	timeout;
	assert(!(visible & ~ended) || a_job_was_lost)
}
