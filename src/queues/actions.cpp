#include "queues/actions.hpp"

#include "guc.hpp"
#include "transaction/pending.hpp"
#include "pg/owner.hpp"
#include "pg/sizes.hpp"

extern "C"
{
#include "mb/pg_wchar.h"
#include "utils/json.h"
}

namespace tq
{

namespace
{

constexpr int kLongest = 1000; // bytes of a text

// The SQL of 0.1.0 has no such table.
bool has_table() { return OidIsValid(get_relname_relid("audit", get_namespace_oid("tq", false))); }

} // namespace

void Facts::begin(const char *name)
{
	appendStringInfoString(&json_, json_.len == 0 ? "{" : ", ");
	escape_json(&json_, name);
	appendStringInfoString(&json_, ": ");
}

Facts &Facts::add(const char *name, const char *value)
{
	if (value == nullptr)
		return *this;
	begin(name);
	const auto length = static_cast<int>(strlen(value));
	escape_json(&json_,
				length <= kLongest ? value : pnstrdup(value, static_cast<Size>(pg_mbcliplen(value, length, kLongest))));
	return *this;
}

Facts &Facts::add(const char *name, int64 value)
{
	begin(name);
	appendStringInfo(&json_, INT64_FORMAT, value);
	return *this;
}

Facts &Facts::add(const char *name, bool value)
{
	if (!value)
		return *this;
	begin(name);
	appendStringInfoString(&json_, "true");
	return *this;
}

Facts &Facts::add(const char *name, Jsonb *value)
{
	if (value == nullptr)
		return *this;
	begin(name);
	static_cast<void>(JsonbToCString(&json_, &value->root, VARSIZE(value)));
	return *this;
}

Facts &Facts::add_time(const char *name, Micros value)
{
	return value == 0 || value == core::kNever || value == journal::kNoTime ? *this
																			: add(name, timestamptz_to_str(value));
}

Jsonb *Facts::json() const
{
	return json_.len == 0 ? nullptr
						  : DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(psprintf("%s}", json_.data))));
}

void record_action(const Db &db, const char *action, int32 queue_id, JobId job, const Facts &facts)
{
	if (guc::audit_retention == 0 || !has_table())
		return;
	Jsonb *detail = facts.json();
	static pg::Statement insert = {
		"INSERT INTO tq.audit (id, at, role, session_role, action, queue_id, queue, job_id, detail)"
		" SELECT nextval('tq.audit_id_seq'), $1, $2, $3, $4, $5, CASE WHEN $5 <> 0 THEN (SELECT name FROM tq.queue "
		"WHERE "
		"id = $5) END, $6, $7"
		" ON CONFLICT DO NOTHING", // a restore may have set the sequence back
		7,
		{TIMESTAMPTZOID, TEXTOID, TEXTOID, TEXTOID, INT4OID, INT8OID, JSONBOID}};
	Datum values[] = {TimestampTzGetDatum(wall_now()),
					  CStringGetTextDatum(GetUserNameFromId(GetUserId(), false)),
					  CStringGetTextDatum(GetUserNameFromId(GetSessionUserId(), false)),
					  CStringGetTextDatum(action),
					  Int32GetDatum(queue_id),
					  Int64GetDatum(job),
					  PointerGetDatum(detail)};
	const char nulls[] = {' ', ' ', ' ', ' ', ' ', job != 0 ? ' ' : 'n', detail != nullptr ? ' ' : 'n', '\0'};
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::run(insert, values, nulls);
	pg::leave_owner(scope);
}

int32 queue_of_changed(const Db &db, JobId job) noexcept
{
	uint16_t slot = kNoQueue;
	if (const Op *own = pending_enqueue(job))
		slot = own->queue;
	else if (engine.find(index_of(db), job, &slot) == kNil)
		slot = kNoQueue;
	return slot != kNoQueue ? engine.queue(slot).id : 0;
}

void record_action_on(const Db &db, const char *action, JobId job, const Facts &facts)
{
	record_action(db, action, queue_of_changed(db, job), job, facts);
}

bool old_actions_due(const Db &db) noexcept { return db.actions_due.load() <= mono_now(); }

bool delete_old_actions(Db &db)
{
	constexpr int kBatch = 10000;
	static pg::Statement remove = {
		"DELETE FROM tq.audit WHERE id IN (SELECT id FROM tq.audit WHERE at < $1 ORDER BY at LIMIT $2)",
		2,
		{TIMESTAMPTZOID, INT4OID}};
	Datum values[] = {TimestampTzGetDatum(wall_now() - guc::audit_retention * core::kSecond), Int32GetDatum(kBatch)};
	if (has_table())
	{
		const pg::OwnerScope scope = pg::enter_owner(db.extension);
		const bool more = pg::run(remove, values, nullptr) == kBatch;
		pg::leave_owner(scope);
		if (more)
			return true;
	}
	db.actions_due.store(mono_now() + 3600 * core::kSecond);
	return false;
}

} // namespace tq
