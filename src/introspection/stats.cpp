// tq_stats: the state of every queue, from the counters in memory; reads no entry and no row.
// Regime: PG. Locks: each queue's lock in turn, while its lanes are copied.
#include "api/args.hpp"
#include "database/activation.hpp"
#include "database/attach.hpp"
#include "introspection/queue_counts.hpp"
#include "queues/queue_names.hpp"
#include "queues/rights.hpp"
#include "pg/function.hpp"
#include "pg/owner.hpp"
#include "pg/rows.hpp"
#include "pg/spi.hpp"

extern "C"
{
#include "utils/datetime.h"
#include "utils/json.h"
}

namespace tq
{

namespace
{

struct LaneView
{
	char kind[core::kNameMax];
	bool has_kind;
	core::Micros paused_until;
	QueueCounts n;
};

// A copy of a queue, made under its lock.
struct QueueView
{
	char name[core::kNameMax];
	core::QueueState state;
	core::Micros paused_until;
	int waiting;
	uint64 totals[9];
	QueueCounts n;
	int nlanes;
	LaneView *lanes; // capacity: all lanes of the server
};

// Copies a queue. False if the slot is not a queue of this database that the caller may see.
bool look(uint16_t slot, uint16_t db, const Rights &mine, QueueView *v) noexcept
{
	Queue &q = engine.queue(slot);
	lock_queue(slot);
	const bool ours = q.state != core::QueueState::free && q.db == db && mine.may(q, kMayCount);
	if (ours)
	{
		strlcpy(v->name, q.name, sizeof(v->name));
		v->state = q.state;
		v->paused_until = q.paused_until;
		v->waiting = waiting_in(q);
		const uint64 totals[] = {q.enqueued, q.claimed, q.succeeded, q.failed, q.lost,
								 q.dead, q.released, q.cancelled, q.expired};
		std::copy_n(totals, lengthof(totals), v->totals);
		v->n = QueueCounts{};
		v->nlanes = 0;
		for (uint16_t i = q.lanes; i != core::kNoLane; i = engine.lane(i).next)
		{
			const Lane &l = engine.lane(i);
			const QueueCounts n = counts_of(l);
			v->n.add(n);
			LaneView &to = v->lanes[v->nlanes++];
			strlcpy(to.kind, l.kind, sizeof(to.kind));
			to.has_kind = l.has_kind;
			to.paused_until = l.paused_until;
			to.n = n;
		}
	}
	unlock_queue(slot);
	return ours;
}

const char *state_name(core::QueueState s) noexcept
{
	switch (s)
	{
		case core::QueueState::creating:
		case core::QueueState::reserved: // reserved by a tq_create_queue that has not committed
			return "creating";
		case core::QueueState::closing:
			return "closing";
		default:
			return "active";
	}
}

// {"kind": {"ready": n, ...}, ...} for the named kinds; null if there is none.
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
		{
			char until[MAXDATELEN + 1];
			JsonEncodeDateTime(until, TimestampTzGetDatum(l.paused_until), TIMESTAMPTZOID, nullptr);
			appendStringInfo(&s, ", \"paused_until\": \"%s\"", until);
		}
		appendStringInfoChar(&s, '}');
	}
	if (s.len == 0)
		return nullptr;
	appendStringInfoChar(&s, '}');
	return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(s.data)));
}

constexpr pg::ColumnSpec kStats[] = {
	{"queue", TEXTOID},
	{"state", TEXTOID},
	{"ready", INT8OID},
	{"delayed", INT8OID},
	{"blocked", INT8OID},
	{"running", INT8OID},
	{"live", INT8OID},
	{"in_memory", INT8OID},
	{"on_disk", INT8OID},
	{"waiting", INT4OID},
	{"paused_until", TIMESTAMPTZOID},
	{"kinds", JSONBOID},
	{"enqueued", INT8OID},
	{"claimed", INT8OID},
	{"succeeded", INT8OID},
	{"failed", INT8OID},
	{"lost", INT8OID},
	{"dead", INT8OID},
	{"released", INT8OID},
	{"cancelled", INT8OID},
	{"expired", INT8OID},
};

Datum time_or_infinity(core::Micros t) { return TimestampTzGetDatum(t == core::kNever ? DT_NOEND : t); }

// The queues of an inactive database by name only.
Datum put_inactive(FunctionCallInfo fcinfo, const Db &db)
{
	const pg::RowSet rows = pg::begin_rows(fcinfo, pg::row_shape(kStats));
	const Rights mine = rights(db);
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("SELECT id, name FROM tq.queue ORDER BY name", {}, true, 0);
	for (uint64 i = 0; i < SPI_processed; ++i)
	{
		Datum values[std::size(kStats)] = {pg::spi_required(i, "name", TEXTOID), CStringGetTextDatum("inactive")};
		bool nulls[std::size(kStats)];
		std::fill(std::begin(nulls), std::end(nulls), true);
		nulls[0] = nulls[1] = false;
		if (mine.may(pg::spi_int4(i, "id"), kMayCount))
			rows.put(values, nulls);
	}
	pg::leave_owner(scope);
	return static_cast<Datum>(0);
}

} // namespace

TQ_FUNCTION(tq_stats)
{
	if (const Db &facts = database_facts(fcinfo); activation_of(facts) != Activation::active)
		return put_inactive(fcinfo, facts);
	Db &db = loaded_database(fcinfo);
	const pg::RowSet rows = pg::begin_rows(fcinfo, pg::row_shape(kStats));
	const Rights &mine = rights(db);
	QueueView v{};
	v.lanes = static_cast<LaneView *>(palloc(sizeof(LaneView) * engine.limits().lanes));
	for_queues(db, [&](uint16_t slot, const Queue &) {
		if (!look(slot, index_of(db), mine, &v))
			return;
		Datum values[std::size(kStats)] = {};
		bool nulls[std::size(kStats)] = {};
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
		rows.put(values, nulls);
	});
	return static_cast<Datum>(0);
}

} // namespace tq
