/*
 * The life of one lease: claim, finish, revocation, the log of claims, a crash and the load after it. One job, two workers.
 *
 * Each atomic is a section under the queue's lock, one insert into the journal, or one commit. README.md lists the
 * simplifications, runs.txt the assertion that must fail without each protection. With MEMORY_WRONG an entry is made
 * from outdated journal data, as if a loader had failed. Then the model only asserts that the job ends once.
 */

#define LEASES 2 /* how often the job is claimed at most */
#define STEPS 9
#define bit(n) (1 << (n))

#ifdef MEMORY_WRONG
#define excused true
#else
#define excused false
#endif

mtype = {nothing, ready, running, ended};		  /* State, FoldState */
mtype = {unmarked, claim, finish, lose};		  /* Verb */
mtype = {none, claimed, failed, succeeded, lost}; /* EventType */

/* The journal: event_N, unique (job_id, step). */
mtype event[STEPS] = none;
byte lease_of[STEPS];  /* of a claim */
byte inserting[STEPS]; /* the process that has inserted it and not committed yet */
short unflushed;	   /* steps committed asynchronously: a crash may lose them */
#ifdef NO_FOLD_BY_STEP
mtype latest = none; /* by time of commit */
byte lease_of_latest;
#endif

/* The entry. */
mtype state = ready, mark = unmarked;
byte owner, lease, step = 1, after_claim;
bool logged, claim_ended, wanted; /* kLogged, kClaimEnded; the lane's watermark was sunk under the job */
byte leases;					  /* DbCore::next_lease, durable by tq.lease_seq */

byte everybody; /* processes that a crash ends */
byte crashed;	/* processes that the crash has not ended yet */

/* Used by assertions only. */
byte over;	   /* leases that have observably ended */
byte given;	   /* used lease numbers */
byte claiming; /* workers in the transaction of their claim */
byte ends;	   /* terminal events */

/* Never true: names the assertion (right || name) that fails. */
bool a_job_ended_twice, a_finished_job_was_claimed, a_job_had_two_leases, a_stale_lease_was_accepted,
	a_revoked_lease_lived_again, a_mark_outlived_its_transaction, a_step_was_taken_twice, a_lease_number_was_given_twice,
	a_job_was_lost;

hidden byte i, fold_lease, fold_step; /* used within one atomic only */
hidden mtype fold;

/* journal::fold_job */
inline fold_job()
{
	fold = ready;
	fold_lease = 0;
	fold_step = 1;
	for (i : 1 .. STEPS - 1) {
		if
		:: event[i] == claimed ->
			fold = running;
			fold_lease = lease_of[i]
		:: event[i] == failed || event[i] == lost -> fold = ready
		:: event[i] == succeeded -> fold = ended
		:: event[i] == none
		fi;
		if
		:: event[i] != none -> fold_step = i + 1
		:: else
		fi
	}
#ifdef NO_FOLD_BY_STEP
	;
	if
	:: latest == none
	:: latest == claimed ->
		fold = running;
		fold_lease = lease_of_latest
	:: latest == failed || latest == lost -> fold = ready
	:: latest == succeeded -> fold = ended
	fi
#endif
}

/* install_job in residency/install.cpp: what the journal says becomes an entry */
inline install_job()
{
	fold_job();
	state = (fold == ended -> nothing : fold);
	lease = (fold == running -> fold_lease : 0);
	logged = (fold == running);
	step = fold_step;
	mark = unmarked;
	owner = 0;
	after_claim = 0;
	claim_ended = false;
	wanted = false
}

/* append_events: the unique index makes a second insert wait for the outcome of the first */
inline insert()
{
	atomic {
		assert(my_step < STEPS);
		inserting[my_step] == 0;
#ifdef MEMORY_WRONG
		stands = (event[my_step] == none);
#ifdef NO_UNIQUE_STEP
		stands = true;
#endif
		inserting[my_step] = (stands -> _pid : 0)
#else
		assert(event[my_step] == none || a_step_was_taken_twice);
		inserting[my_step] = _pid
#endif
	}
}

inline commit(type, number)
{
	inserting[my_step] = 0;
	event[my_step] = type;
	lease_of[my_step] = number;
#ifdef NO_FOLD_BY_STEP
	latest = type;
	lease_of_latest = number;
#endif
	unflushed = 0
}

inline roll_back()
{
#ifdef MEMORY_WRONG
	if
	:: stands -> inserting[my_step] = 0
	:: else
	fi
#else
	inserting[my_step] = 0
#endif
}

#ifdef NO_LEASE_CHECK
#define can_finish (state == running && mark != lose && (mark == unmarked || owner == _pid))
#else
#ifdef NO_LOSE_CHECK
#define can_finish (state == running && lease == mine)
#else
#define can_finish (state == running && lease == mine && mark != lose && (mark == unmarked || owner == _pid))
#endif
#endif

#ifdef NO_CLAIM_ENDED
#define CLAIM_ENDED false
#else
#define CLAIM_ENDED true
#endif

/* take in jobs/verbs.cpp, note in workers/reaper.cpp */
inline take(verb)
{
	prev_mark = mark;
	prev_owner = owner;
	my_step = step;
	mark = verb;
	owner = _pid;
	step++;
	after_claim++
}

#define ours (state != nothing && mark != unmarked && owner == _pid)

/* undo_change in commit/undo.cpp */
inline undo_change()
{
	if
#ifdef MEMORY_WRONG
	:: ours && !stands -> /* distrust */
		state = nothing;
		mark = unmarked;
		wanted = true
	:: ours && stands ->
#else
	:: ours ->
#endif
		mark = prev_mark;
		owner = prev_owner;
		if
		:: step == my_step + 1 ->
			step = my_step;
			after_claim--
		:: else
		fi
	:: else
	fi
}

/* undo_claim in commit/undo.cpp, if this transaction has claimed */
inline undo_claim()
{
	atomic {
		if
		:: (claiming & bit(_pid)) && state == running && lease == mine ->
			if
			:: mark == claim && owner == _pid ->
				mark = unmarked;
				state = ready;
				lease = 0;
				step = (after_claim == 0 -> prev_step : step);
				over = over | bit(mine)
			:: mark == lose -> claim_ended = CLAIM_ENDED
			:: else
			fi
		:: else
		fi;
		mine = (claiming & bit(_pid) -> 0 : mine);
		claiming = claiming & ~bit(_pid)
	}
}

/* A session: tq_claim, then tq_complete or tq_fail, in the same transaction or a later one. It keeps the lease over a crash. */
proctype worker()
{
	byte mine, my_step, prev_step, prev_owner;
	mtype prev_mark = unmarked, what = none;
	bool stands = true;
end:
	do
	:: {
			if
			:: atomic { /* Engine::claim */
					state == ready && mark == unmarked && leases < LEASES && !mine;
					assert(!ends || excused || a_finished_job_was_claimed);
					leases++;
					assert(!(given & bit(leases)) || a_lease_number_was_given_twice);
					given = given | bit(leases);
					assert((over | 1) == bit(leases) - 1 || excused || a_job_had_two_leases);
					state = running;
					mark = claim;
					owner = _pid;
					lease = leases;
					prev_step = step;
					step++;
					after_claim = 0;
					logged = false;
					claim_ended = false;
					mine = leases;
					claiming = claiming | bit(_pid)
				}
			:: mine /* claimed by an earlier transaction */
			fi;
			if
			:: atomic { /* tq_complete, tq_fail: mark_leased, take */
					if
					:: can_finish ->
						take(finish);
#ifdef NO_MARK
						mark = prev_mark;
						owner = prev_owner;
#endif
						if
						:: what = succeeded
						:: what = failed
						fi
					:: else -> what = none
					fi
				};
				if
				:: what != none -> insert()
				:: what == none -> /* TQ001, or 55P03 while another transaction is changing the job */
					mine = (claiming & bit(_pid) -> mine : 0)
				fi
			:: claiming & bit(_pid) /* tq_claim alone */
			:: !(claiming & bit(_pid)) -> mine = 0 /* the worker is never heard from again */
			fi;
			if
			:: atomic { /* the transaction commits */
					stands && (what != none || (claiming & bit(_pid)));
					if
					:: what != none ->
						commit(what, 0);
						assert(!(over & bit(mine)) || excused || a_stale_lease_was_accepted);
						over = over | bit(mine);
						if
						:: what == succeeded ->
							assert(!ends || a_job_ended_twice);
							ends++
						:: else
						fi
					:: else
					fi
				};
				atomic { /* publish_claim */
					if
					:: (claiming & bit(_pid)) && state == running && lease == mine ->
						if
						:: mark == claim && owner == _pid -> mark = unmarked
						:: mark == lose -> claim_ended = CLAIM_ENDED
						:: else
						fi
					:: else
					fi;
					claiming = claiming & ~bit(_pid)
				};
				atomic { /* publish_change */
					if
					:: what != none && ours ->
						state = (what == failed -> ready : nothing);
						mark = unmarked;
						lease = 0
					:: else
					fi;
					mine = (what == none -> mine : 0)
				}
			:: what == none && !(claiming & bit(_pid)) /* it has done nothing */
			:: what != none -> /* it rolls back */
				roll_back();
				atomic { undo_change() };
				undo_claim()
			:: what == none && (claiming & bit(_pid)) -> undo_claim()
			fi
		} unless {
			atomic {
				crashed & bit(_pid);
				crashed = crashed & ~bit(_pid);
				mine = (claiming & bit(_pid) -> 0 : mine); /* it has not received the answer */
				claiming = claiming & ~bit(_pid)
			}
		};
		atomic {
			my_step = 0;
			prev_step = 0;
			prev_owner = 0;
			prev_mark = unmarked;
			what = none;
			stands = true
		}
	od
}

/* reap in workers/reaper.cpp; a lease may expire at any time */
proctype reaper()
{
	byte my_step, prev_owner, theirs;
	mtype prev_mark = unmarked;
	bool stands = true;
end:
	do
	:: {
			atomic { /* collect_lost, lose, note */
				state == running && (mark == unmarked || mark == claim);
				theirs = lease;
				take(lose)
			};
			insert();
			if
			:: atomic { /* end_work: the commit is flushed before its callback runs */
					stands;
					commit(lost, 0);
#ifdef NO_FLUSH
					unflushed = unflushed | bit(my_step)
#endif
				};
				atomic { /* publish_change */
					if
					:: ours ->
						state = ready;
						mark = unmarked;
						lease = 0;
						claim_ended = false;
						over = over | bit(theirs)
					:: else
					fi
				}
			:: roll_back();
				atomic {
					undo_change();
					if
					:: claim_ended ->
						mark = unmarked;
						claim_ended = false
					:: else
					fi;
					assert(mark != claim || (claiming & bit(owner)) || a_mark_outlived_its_transaction)
				}
			fi
		} unless {
			atomic {
				crashed & bit(_pid);
				crashed = crashed & ~bit(_pid)
			}
		};
		atomic {
			my_step = 0;
			prev_owner = 0;
			prev_mark = unmarked;
			theirs = 0;
			stands = true
		}
	od
}

/* journal_claims in workers/reaper.cpp */
proctype claim_log()
{
	byte my_step, theirs;
	bool stands = true;
end:
	do
	:: {
			atomic {
				state == running && mark == unmarked && !logged;
#ifdef NO_STEP_OF_CLAIM
				my_step = step;
#else
				my_step = step - 1 - after_claim;
#endif
				theirs = lease;
				logged = true
			};
			insert();
			if
			:: atomic { /* end_work(true): asynchronously */
					stands;
					commit(claimed, theirs);
					unflushed = unflushed | bit(my_step)
				}
			:: roll_back();
				atomic { /* unlog */
					if
					:: state == running && lease == theirs -> logged = false
					:: else
					fi
				}
			fi
		} unless {
			atomic {
				crashed & bit(_pid);
				crashed = crashed & ~bit(_pid)
			}
		};
		atomic {
			my_step = 0;
			theirs = 0;
			stands = true
		}
	od
}

/* The server crashes once, and loads the journal. */
proctype crash()
{
	atomic {
		if
		:: true
		:: unflushed -> /* unflushed commits are lost */
			for (i : 1 .. STEPS - 1) {
				event[i] = (unflushed & bit(i) -> none : event[i])
			}
		fi;
		for (i : 1 .. STEPS - 1) {
			inserting[i] = 0
		};
		unflushed = 0;
		install_job();
		assert(fold != running || !(over & bit(fold_lease)) || excused || a_revoked_lease_lived_again);
		/* leases unknown to the journal are lost */
		over = bit(leases + 1) - 2;
		over = (fold == running -> over & ~bit(fold_lease) : over);
#ifdef NO_HIGH_WATER
		leases = (fold == running -> fold_lease : 0);
#endif
		crashed = everybody
	}
}

#ifdef MEMORY_WRONG
/* The error under test: an entry is made from outdated journal data. */
proctype mistake()
{
	byte then;
	atomic {
		fold_job();
		then = (fold == ready -> fold_step : 0)
	};
end:
	do
	:: atomic {
			then && (state == nothing || (state == running && mark == unmarked));
			state = ready;
			mark = unmarked;
			lease = 0;
			step = then;
			after_claim = 0;
			logged = false;
			then = 0
		}
	od
}

/* A lane's loader, after undo_change has sunk the watermark: refill.pml */
proctype loader()
{
end:
	do
	:: atomic {
			wanted && state == nothing;
			install_job()
		}
	od
}
#endif

init {
	atomic {
		i = run worker();
		everybody = everybody | bit(i);
		i = run worker();
		everybody = everybody | bit(i);
		i = run reaper();
		everybody = everybody | bit(i);
		i = run claim_log();
		everybody = everybody | bit(i);
#ifdef MEMORY_WRONG
		run mistake();
		run loader()
#else
		run crash()
#endif
	}
}

/* In the final state the job has ended, or it waits to be claimed. */
active proctype watch()
{
end:
	timeout;
	assert(ends == 1 || (state == ready && mark == unmarked && leases == LEASES) || a_job_was_lost)
}
