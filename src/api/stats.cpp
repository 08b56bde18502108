// tq_stats: how every queue stands, from the counters in memory; no entry and no row is read.
// Regime: PG. Locks: each queue's lock in turn, for as long as its lanes are copied.
#include "api/args.hpp"
#include "api/figures.hpp"
#include "live/attach.hpp"
#include "live/load.hpp"
#include "live/rights.hpp"
#include "pg/function.hpp"

extern "C"
{
#include "utils/json.h"
}

namespace tq::api
{

namespace
{

using live::engine;

struct LaneView
{
	char kind[core::kNameMax];
	bool has_kind;
	core::Micros paused_until;
	Numbers n;
};

// What is copied under the queue's lock.
struct QueueView
{
	char name[core::kNameMax];
	core::QueueState state;
	core::Micros paused_until;
	int waiting;
	uint64 totals[9];
	Numbers n;
	int nlanes; // of them copied
	LaneView *lanes;
	int room;
};

// False if the slot is not (or no longer) a queue of this database that the caller may look at. Counts the lanes; copies those that there is room for.
bool look(uint16_t slot, uint16_t db, const live::Rights &mine, QueueView *v) noexcept
{
	live::Queue &q = engine.queue(slot);
	live::lock_queue(slot);
	const bool ours = q.state != core::QueueState::free && q.db == db && mine.may(q, live::kMayLook);
	if (ours)
	{
		strlcpy(v->name, q.name, sizeof(v->name));
		v->state = q.state;
		v->paused_until = q.paused_until;
		v->waiting = waiting_in(q);
		const uint64 totals[] = {q.enqueued, q.claimed, q.succeeded, q.failed, q.lost,
								 q.dead, q.released, q.cancelled, q.expired};
		std::copy_n(totals, lengthof(totals), v->totals);
		v->n = Numbers{};
		v->nlanes = 0;
		for (uint16_t i = q.lanes; i != core::kNoLane; i = engine.lane(i).next)
		{
			const live::Lane &l = engine.lane(i);
			const Numbers n = numbers_of(l);
			v->n.add(n);
			if (v->nlanes < v->room)
			{
				LaneView &to = v->lanes[v->nlanes];
				strlcpy(to.kind, l.kind, sizeof(to.kind));
				to.has_kind = l.has_kind;
				to.paused_until = l.paused_until;
				to.n = n;
			}
			++v->nlanes;
		}
	}
	live::unlock_queue(slot);
	return ours;
}

const char *state_name(core::QueueState s) noexcept
{
	switch (s)
	{
		case core::QueueState::creating:
		case core::QueueState::reserved: // by a tq_create_queue that has not committed
			return "creating";
		case core::QueueState::closing:
			return "closing";
		default:
			return "active";
	}
}

// {"kind": {"ready": n, ...}, ...} of the named kinds; null if there is none.
Jsonb *kinds_of(const QueueView &v)
{
	StringInfoData s;
	initStringInfo(&s);
	for (int i = 0; i < v.nlanes; ++i)
	{
		const LaneView &l = v.lanes[i];
		if (!l.has_kind)
			continue;
		appendStringInfoString(&s, s.len == 0 ? "{" : ", ");
		escape_json(&s, l.kind);
		appendStringInfo(&s, ": {\"ready\": %lld, \"delayed\": %lld, \"blocked\": %lld, \"running\": %lld",
						 static_cast<long long>(l.n.ready), static_cast<long long>(l.n.delayed),
						 static_cast<long long>(l.n.blocked), static_cast<long long>(l.n.running));
		if (l.paused_until == core::kNever)
			appendStringInfoString(&s, ", \"paused_until\": \"infinity\"");
		else if (l.paused_until != 0)
			appendStringInfo(&s, ", \"paused_until\": \"%s\"", timestamptz_to_str(l.paused_until));
		appendStringInfoChar(&s, '}');
	}
	if (s.len == 0)
		return nullptr;
	appendStringInfoChar(&s, '}');
	return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(s.data)));
}

Datum time_or_infinity(core::Micros t) { return TimestampTzGetDatum(t == core::kNever ? DT_NOEND : t); }

} // namespace
} // namespace tq::api

using namespace tq;
using namespace tq::api;

TQ_FUNCTION(tq_stats)
{
	live::Db &db = live::database(fcinfo);
	live::ensure_loaded(db);
	InitMaterializedSRF(fcinfo, 0);
	auto *rs = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
	const live::Rights &mine = live::rights(db);
	QueueView v{};
	v.room = 16;
	v.lanes = static_cast<LaneView *>(palloc(sizeof(LaneView) * 16));
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		const auto slot = static_cast<uint16_t>(i);
		bool ours = false;
		while ((ours = engine.queue(slot).state != core::QueueState::free && look(slot, live::index_of(db), mine, &v)) &&
			   v.nlanes > v.room)
		{
			v.room = v.nlanes + 16;
			v.lanes = static_cast<LaneView *>(repalloc(v.lanes, sizeof(LaneView) * static_cast<Size>(v.room)));
		}
		if (!ours)
			continue;
		Datum values[21] = {};
		bool nulls[21] = {};
		int k = 0;
		values[k++] = CStringGetTextDatum(v.name);
		values[k++] = CStringGetTextDatum(state_name(v.state));
		for (const int64 number :
			 {v.n.ready, v.n.delayed, v.n.blocked, v.n.running, v.n.live, v.n.in_memory, v.n.live - v.n.in_memory})
			values[k++] = Int64GetDatum(number);
		values[k++] = Int32GetDatum(v.waiting);
		nulls[k] = v.paused_until == 0;
		values[k++] = time_or_infinity(v.paused_until);
		Jsonb *kinds = kinds_of(v);
		nulls[k] = kinds == nullptr;
		values[k++] = PointerGetDatum(kinds);
		for (const uint64 total : v.totals)
			values[k++] = Int64GetDatum(static_cast<int64>(total));
		tuplestore_putvalues(rs->setResult, rs->setDesc, values, nulls);
	}
	return static_cast<Datum>(0);
}
