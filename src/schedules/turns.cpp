#include "schedules/turns.hpp"

#include "queues/queue_names.hpp"

namespace tq
{

namespace
{

Planned *of_heap(const pairingheap_node *n) noexcept
{
	return holder<Planned>(const_cast<pairingheap_node *>(n), offsetof(Planned, in_heap));
}

// The heaps return the greatest node first, so the earliest time compares as the greatest.
int by_turn(const pairingheap_node *a, const pairingheap_node *b, void *)
{
	const Micros x = of_heap(a)->turn, y = of_heap(b)->turn;
	return x < y ? 1 : x > y ? -1 : 0;
}

int by_retry(const pairingheap_node *a, const pairingheap_node *b, void *)
{
	const Micros x = of_heap(a)->retry_at, y = of_heap(b)->retry_at;
	return x < y ? 1 : x > y ? -1 : 0;
}

HTAB *table(const ScheduleList *list, const char *name, Size key, Size entry, int flags)
{
	HASHCTL control{};
	control.keysize = key;
	control.entrysize = entry;
	control.hcxt = list->context;
	return hash_create(name, 64, &control, HASH_ELEM | HASH_CONTEXT | flags);
}

} // namespace

void make_list(ScheduleList *list)
{
	ScheduleList fresh{};
	fresh.context = AllocSetContextCreate(TopMemoryContext, "tq schedules", ALLOCSET_DEFAULT_SIZES);
	fresh.by_name = table(&fresh, "tq schedules", core::kNameMax, sizeof(Planned), HASH_STRINGS);
	fresh.lanes_by_key =
		table(&fresh, "tq lanes of schedules", sizeof(ScheduleLane::Key), sizeof(ScheduleLane), HASH_BLOBS);
	fresh.owners_by_oid = table(&fresh, "tq owners of schedules", sizeof(Oid), sizeof(ScheduleOwner), HASH_BLOBS);
	*list = fresh;
	for (dlist_head *head : {&list->all, &list->lanes, &list->due, &list->taken, &list->prune})
		dlist_init(head);
	list->retries.ph_compare = by_retry;
}

void free_list(ScheduleList *list)
{
	if (list->context != nullptr)
		MemoryContextDelete(list->context);
	*list = ScheduleList{};
}

void join_lane(ScheduleList *list, Planned *p, Oid role, const char *queue)
{
	ScheduleLane::Key key{};
	key.role = role;
	strlcpy(key.queue, queue, sizeof(key.queue));
	if (p->lane != nullptr && memcmp(&p->lane->key, &key, sizeof(key)) == 0)
		return;
	bool found = false;
	auto *owner = static_cast<ScheduleOwner *>(hash_search(list->owners_by_oid, &role, HASH_ENTER, &found));
	if (!found)
	{
		*owner = ScheduleOwner{};
		owner->role = role;
		dlist_init(&owner->due_lanes);
	}
	auto *lane = static_cast<ScheduleLane *>(hash_search(list->lanes_by_key, &key, HASH_ENTER, &found));
	if (!found)
	{
		*lane = ScheduleLane{};
		lane->key = key;
		lane->owner = owner;
		lane->waiting.ph_compare = by_turn;
		++owner->lanes;
		dlist_push_tail(&list->lanes, &lane->in_lanes);
	}
	++lane->n;
	leave_lane(list, p); // the former lane; last, since the code above may raise
	p->lane = lane;
}

void leave_lane(ScheduleList *list, Planned *p) noexcept
{
	ScheduleLane *lane = p->lane;
	p->lane = nullptr;
	if (lane == nullptr || --lane->n > 0)
		return;
	ScheduleOwner *owner = lane->owner;
	if (lane->due)
		dlist_delete(&lane->in_due);
	dlist_delete(&lane->in_lanes);
	const ScheduleLane::Key key = lane->key;
	static_cast<void>(hash_search(list->lanes_by_key, &key, HASH_REMOVE, nullptr));
	if (--owner->lanes > 0)
		return;
	if (owner->due)
		dlist_delete(&owner->in_due);
	const Oid role = owner->role;
	static_cast<void>(hash_search(list->owners_by_oid, &role, HASH_REMOVE, nullptr));
}

void list_schedule(ScheduleList *list, Planned *p) noexcept
{
	unlist_schedule(list, p);
	if (p->lane == nullptr)
		return; // memory was short; the next pass tries again
	if (p->retry_at != 0 && (p->unread ? p->unreadable : p->next != core::kNever))
	{
		p->listed_in = ListedIn::retry;
		pairingheap_add(&list->retries, &p->in_heap);
		return;
	}
	if (!p->unread)
		p->turn = p->next;
	if (p->turn == core::kNever)
		return;
	p->listed_in = ListedIn::lane;
	pairingheap_add(&p->lane->waiting, &p->in_heap);
}

void unlist_schedule(ScheduleList *list, Planned *p) noexcept
{
	if (p->listed_in == ListedIn::lane)
		pairingheap_remove(&p->lane->waiting, &p->in_heap);
	else if (p->listed_in == ListedIn::retry)
		pairingheap_remove(&list->retries, &p->in_heap);
	else if (p->listed_in == ListedIn::taken)
		dlist_delete(&p->in_taken);
	p->listed_in = ListedIn::none;
}

namespace
{

Planned *first_of(pairingheap *heap) noexcept
{
	return pairingheap_is_empty(heap) ? nullptr : of_heap(pairingheap_first(heap));
}

template <class Visit>
void for_lanes(const ScheduleList &list, Visit &&visit)
{
	if (list.context == nullptr)
		return;
	const dlist_node *end = &list.lanes.head;
	for (dlist_node *n = list.lanes.head.next; n != end; n = n->next)
		visit(holder<ScheduleLane>(n, offsetof(ScheduleLane, in_lanes)));
}

} // namespace

void find_due(ScheduleList *list, Micros now, Micros mono) noexcept
{
	if (list->context == nullptr)
		return;
	for (Planned *p = first_of(&list->retries); p != nullptr && p->retry_at <= mono; p = first_of(&list->retries))
	{
		unlist_schedule(list, p); // retry_at stays until a success, so list_schedule would not put it into the lane
		p->turn = p->unread ? p->turn : p->next;
		p->listed_in = ListedIn::lane;
		pairingheap_add(&p->lane->waiting, &p->in_heap);
	}
	for_lanes(*list, [&](ScheduleLane *lane) {
		const Planned *p = first_of(&lane->waiting);
		if (lane->due || p == nullptr || p->turn > now)
			return;
		lane->due = true;
		dlist_push_tail(&lane->owner->due_lanes, &lane->in_due);
		if (!lane->owner->due)
			dlist_push_tail(&list->due, &lane->owner->in_due);
		lane->owner->due = true;
	});
}

Planned *first_turn(ScheduleList *list, Micros now) noexcept
{
	while (list->context != nullptr && !dlist_is_empty(&list->due))
	{
		auto *owner = holder<ScheduleOwner>(list->due.head.next, offsetof(ScheduleOwner, in_due));
		if (dlist_is_empty(&owner->due_lanes))
		{
			dlist_delete(&owner->in_due);
			owner->due = false;
			continue;
		}
		auto *lane = holder<ScheduleLane>(owner->due_lanes.head.next, offsetof(ScheduleLane, in_due));
		Planned *p = first_of(&lane->waiting);
		if (p != nullptr && p->turn <= now)
			return p;
		dlist_delete(&lane->in_due);
		lane->due = false;
	}
	return nullptr;
}

void take_turn(ScheduleList *list, Planned *p) noexcept
{
	ScheduleLane *lane = p->lane;
	unlist_schedule(list, p);
	p->listed_in = ListedIn::taken;
	dlist_push_tail(&list->taken, &p->in_taken);
	dlist_delete(&lane->in_due);
	dlist_push_tail(&lane->owner->due_lanes, &lane->in_due);
	dlist_delete(&lane->owner->in_due);
	dlist_push_tail(&list->due, &lane->owner->in_due);
}

void return_taken(ScheduleList *list) noexcept
{
	while (list->context != nullptr && !dlist_is_empty(&list->taken))
		list_schedule(list, holder<Planned>(list->taken.head.next, offsetof(Planned, in_taken)));
}

Micros next_turn_at(const ScheduleList &list) noexcept
{
	Micros at = core::kNever;
	for_lanes(list, [&at](ScheduleLane *lane) {
		const Planned *p = first_of(&lane->waiting);
		at = std::min(at, p != nullptr ? p->turn : core::kNever);
	});
	return at;
}

Micros next_retry_at(ScheduleList *list) noexcept
{
	const Planned *p = list->context != nullptr ? first_of(&list->retries) : nullptr;
	return p != nullptr ? p->retry_at : core::kNever;
}

void publish_next_fires(const Db &db, const ScheduleList &list)
{
	const uint32 n = engine.limits().queues;
	auto *next = static_cast<Micros *>(palloc(sizeof(Micros) * n));
	std::fill_n(next, n, core::kNever);
	for_lanes(list, [&](ScheduleLane *lane) {
		const Planned *p = first_of(&lane->waiting);
		const uint16_t slot = p != nullptr ? find_queue(db, lane->key.queue) : kNoQueue;
		if (slot != kNoQueue)
			next[slot] = std::min(next[slot], p->turn);
	});
	for (uint32 i = 0; i < n; ++i)
	{
		Queue &q = engine.queue(static_cast<uint16_t>(i));
		if (q.state != core::QueueState::free && q.db == index_of(db))
			q.next_fire.store(next[i]);
	}
	pfree(next);
}

} // namespace tq
