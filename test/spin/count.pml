/*
 * Recount: two jobs of one segment are enqueued, ended, retried and ended again. Meanwhile recounts of the journal
 * take their snapshots, read, and store their results. The janitor closes and drops the segment according to the
 * counters.
 *
 * Each atomic is a section under the segment map's lock in exclusive mode, half of one in shared mode, one snapshot,
 * one commit, or the acquisition or release of a table lock. README.md lists the simplifications, runs.txt the
 * assertion that must fail without each protection.
 */

/* Transactions, and the effect of each on the number of unfinished jobs. */
#define ENQUEUE_A 1 /* one more */
#define END_A 2		/* one less */
#define BURY_B 4	/* one less */
#define RETRY_B 8	/* one more */
#define END_B 16	/* one less */
#define has(set, x) ((set & x) / x)
#define unfinished(set) (1 + has(set, ENQUEUE_A) - has(set, END_A) - has(set, BURY_B) + has(set, RETRY_B) - has(set, END_B))

/* The journal: the visible transactions. */
byte committed;

/* Locks of the segment's tables. */
byte writers;	/* RowExclusiveLock; kept until the transaction has published */
bool exclusive; /* the janitor's ShareRowExclusiveLock or AccessExclusiveLock */

/* Shared memory. */
byte sharing; /* holders of map_lock in shared mode */
mtype = {open, sealed, finished, dropped};
mtype state = open;				   /* SegmentSlot::state */
short segment = 1, segment_delta;  /* SegmentSlot::live, delta */
short lane = 1, lane_delta;		   /* Lane::count */
bool counting;					   /* Db::counting */
byte seen;						   /* Db::count: what the snapshot of the running count sees */
byte counted;					   /* Db::counted: the same for the last completed count */

byte published; /* commit callbacks that have run */

/* Never true: names the assertion (right || name) that fails. */
bool a_counter_is_wrong, a_segment_was_closed_over_an_unfinished_job, an_unfinished_job_was_dropped;

/* on_commit in commit/transaction_end.cpp; counting_of in transaction/counting.cpp, count in commit/publish.cpp */
inline callback(x, by)
{
	atomic {
		sharing++; /* LWLockAcquire(map_lock, LW_SHARED) */
#ifndef NO_COUNTED_SNAPSHOT
		is_counted = (counted & x) != 0;
#endif
#ifndef NO_DELTA
		is_uncounted = counting && !(seen & x)
#endif
	};
	atomic {
		if
		:: !is_counted ->
			segment = segment + by;
			lane = lane + by
		:: is_counted
		fi;
		if
		:: is_uncounted ->
			segment_delta = segment_delta + by;
			lane_delta = lane_delta + by
		:: !is_uncounted
		fi;
		published = published | x;
		sharing-- /* LWLockRelease */
	}
}

inline write_lock(x)
{
	atomic {
#ifndef NO_SEGMENT_LOCKS
		!exclusive;
#endif
		writers = writers | x
	}
}

/* tq_enqueue: draw_ids in segments/segments.cpp; append_jobs; the commit */
proctype enqueuer()
{
	bool is_counted, is_uncounted;
	if
	:: state == open ->		   /* draw_ids: the ids belong to this segment */
		write_lock(ENQUEUE_A);
		if
#ifdef NO_SECOND_LOOK
		:: state != dropped ->
#else
		:: state == open || state == sealed -> /* with the tables locked, the segment still accepts them */
#endif
			if
			:: atomic {
					committed = committed | ENQUEUE_A;
					assert(state == open || state == sealed || a_segment_was_closed_over_an_unfinished_job)
				};
				callback(ENQUEUE_A, 1)
			:: true /* rolled back */
			fi
		:: state == finished || state == dropped /* other ids are drawn */
		fi;
		writers = writers & ~ENQUEUE_A
	:: state != open /* the ids belong to another segment */
	fi
}

/* A verb that ends a job, which has an entry: publish_change in commit/publish.cpp */
proctype ender(byte x, before)
{
	bool is_counted, is_uncounted;
end:
	(committed & before) == before;
	write_lock(x);
	if
	:: committed = committed | x;
		callback(x, -1)
	:: true /* rolled back */
	fi;
	writers = writers & ~x
}

/* tq_retry of a dead job: reopen_segment in segments/reopening.cpp, publish_change */
proctype retrier()
{
	bool is_counted, is_uncounted;
end:
	published & BURY_B;
	write_lock(RETRY_B);
	if
	:: atomic {
			state != dropped && sharing == 0;
			state = (state == finished -> sealed : state)
		};
		if
		:: committed = committed | RETRY_B;
			callback(RETRY_B, 1)
		:: true /* rolled back */
		fi
	:: state == dropped /* an error */
	fi;
	writers = writers & ~RETRY_B
}

/* count_journal in residency/recount.cpp: the audit, tq_check(), tq_reload() */
proctype counter()
{
	byte round;
	bool reads;
	short number;
end:
	do
	:: round < 2 ->
		atomic { /* begin_count, note_count_snapshot */
#ifdef NO_MAP_LOCK
			seen = committed
		};
		atomic {
#else
			sharing == 0;
			seen = committed;
#endif
			segment_delta = 0;
			lane_delta = 0;
			counting = true;
#ifndef NO_LIST_WITH_SNAPSHOT
			reads = (state == open || state == sealed) /* live_segments */
#endif
		};
#ifdef NO_LIST_WITH_SNAPSHOT
		reads = (state == open || state == sealed);
#endif
		number = (reads -> unfinished(seen) : 0); /* scan_segment, tally_job */
		if
		:: atomic { /* end_count, keep_count_snapshot */
				sharing == 0;
				lane = number + lane_delta;
				segment = (reads -> number + segment_delta : segment);
				counting = false;
				counted = seen
			}
		:: atomic { /* stop_count: an error */
				sharing == 0;
				counting = false
			}
		fi;
		round++
	od
}

/* open_next, finish and drop in workers/janitor.cpp */
proctype janitor()
{
	bool closes;
	atomic { /* add_segment */
		sharing == 0;
		state = sealed
	};
end:
	do
	:: state == sealed && segment == 0 -> /* look_after */
#ifdef NO_AGREEMENT
		closes = true;
#else
		closes = (unfinished(committed) == 0); /* journal_agrees, with a new snapshot */
#endif
		if
		:: atomic { /* finish: ConditionalLockRelationOid */
				closes;
#ifndef NO_SEGMENT_LOCKS
				!writers;
#endif
				exclusive = true
			};
			atomic { /* change_segment */
				sharing == 0;
				if
				:: state == sealed && segment == 0 ->
					assert(unfinished(committed) == 0 || a_segment_was_closed_over_an_unfinished_job);
					state = finished
				:: else
				fi
			};
			exclusive = false
		:: !closes || writers
		fi;
		closes = false
	:: atomic { state == finished && !counting }; /* its retention has passed */
#ifdef NO_LOOK_UNDER_LOCK
		closes = (segment == 0);
#endif
		if
		:: atomic { /* drop_segment: try_lock */
#ifndef NO_SEGMENT_LOCKS
				!writers;
#endif
				exclusive = true
			};
			atomic {
#ifndef NO_LOOK_UNDER_LOCK
				closes = (segment == 0); /* nothing_lives */
#endif
				if
				:: closes ->
					assert(unfinished(committed) == 0 || an_unfinished_job_was_dropped);
					state = dropped
				:: !closes
				fi
			};
			exclusive = false
		:: writers
		fi;
		closes = false
	od
}

init {
	atomic {
		run enqueuer();
		run ender(END_A, ENQUEUE_A);
		run ender(BURY_B, 0);
		run retrier();
		run ender(END_B, RETRY_B);
		run counter();
		run janitor()
	}
}

/* In the final state the counters are right. */
active proctype watch()
{
end:
	timeout;
#ifndef ANY_COUNTER
	assert((segment == unfinished(committed) && lane == unfinished(committed)) || a_counter_is_wrong)
#endif
}
