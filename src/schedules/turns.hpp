// Takes turns among schedules that are due: owners take turns, then the queues of an owner; in a queue, the schedule
// that has been due longest comes first. So a role or a queue with many schedules does not delay those of others.
// Regime: PG; noexcept except join_lane. Locks: none.
#pragma once

#include "schedules/schedule_list.hpp"

namespace tq
{

struct ScheduleOwner
{
	Oid role; // key
	bool due;
	int lanes;
	dlist_head due_lanes;
	dlist_node in_due;
};

// The schedules of one owner in one queue.
struct ScheduleLane
{
	struct Key
	{
		Oid role;
		char queue[core::kNameMax];
	} key;
	ScheduleOwner *owner;
	pairingheap waiting; // by turn
	int n;
	bool due;
	dlist_node in_due;
	dlist_node in_lanes;
};

// Moves a schedule that is ListedIn::none to the lane of its owner and queue. Frees a lane, and an owner, without
// schedules.
void join_lane(ScheduleList *list, Planned *p, Oid role, const char *queue);
void leave_lane(ScheduleList *list, Planned *p) noexcept;

// Puts the schedule into the list or heap of its state; removes it.
void list_schedule(ScheduleList *list, Planned *p) noexcept;
void unlist_schedule(ScheduleList *list, Planned *p) noexcept;

// Returns schedules whose pause after an error is over to their lane. Lists the lanes and owners that are due.
void find_due(ScheduleList *list, Micros now, Micros mono) noexcept;

// The schedule whose turn is next; null if none is due. take_turn takes it out of its lane, and moves lane and owner to
// the end. list_schedule puts it back.
Planned *first_turn(ScheduleList *list, Micros now) noexcept;
void take_turn(ScheduleList *list, Planned *p) noexcept;

// Puts back all schedules that are taken, after their transaction has failed.
void return_taken(ScheduleList *list) noexcept;

// The first time (wall clock) at which a schedule is due, and (monotonic) at which a pause is over.
Micros next_turn_at(const ScheduleList &list) noexcept;
Micros next_retry_at(ScheduleList *list) noexcept;

// Publishes for each queue when its next schedule is due.
void publish_next_fires(const Db &db, const ScheduleList &list);

} // namespace tq
