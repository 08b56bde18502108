#include "queues/queue_rows.hpp"

#include "guc.hpp"
#include "database/activation.hpp"
#include "queues/queue_names.hpp"
#include "queues/queue_settings.hpp"
#include "queues/reserved_queues.hpp"
#include "queues/rights.hpp"
#include "queues/used_queues.hpp"
#include "transaction/pending.hpp"
#include "transaction/queue_changes.hpp"
#include "pg/data_error.hpp"
#include "pg/extension.hpp"
#include "pg/json_values.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

constexpr const char *kGroupSettings[] = {"max_running", "paused_until", "rate", nullptr};

// Settings that tq_create_queue would refuse were written by hand or by another version. They must not prevent a load.
// The loading session may have no right on the queue, so only the server's log reports the error.
core::QueueSettings settings_of_row(const char *name, Jsonb *json)
{
	if (json == nullptr) // possible only where the column allows it
		return core::QueueSettings{};
	const MemoryContext context = CurrentMemoryContext;
	auto *out = static_cast<core::QueueSettings *>(palloc(sizeof(core::QueueSettings)));
	*out = core::QueueSettings{};
	PG_TRY();
	{
		*out = parse_settings(json);
	}
	PG_CATCH();
	{
		const ErrorData *e = pg::take_data_error(context);
		ereport(LOG_SERVER_ONLY, (errmsg("the settings of queue \"%s\" are ignored: %s", name, e->message),
						  errhint("Correct them with tq_alter_queue.")));
	}
	PG_END_TRY();
	return *out;
}

Micros pause_in(const JsonbValue &v)
{
	if (v.type != jbvString)
		return core::kNever;
	return DatumGetTimestampTz(DirectFunctionCall3(timestamptz_in, CStringGetDatum(pg::string_of(v)),
												   ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
}

// {"kind": "time" or null, ...}
int paused_kinds(Jsonb *json, PausedKind **out)
{
	const int max = json != nullptr && JB_ROOT_IS_OBJECT(json) ? static_cast<int>(JB_ROOT_COUNT(json)) : 0;
	auto *list = static_cast<PausedKind *>(palloc(sizeof(PausedKind) * static_cast<Size>(max + 1)));
	int n = 0;
	JsonbIterator *it = max > 0 ? JsonbIteratorInit(&json->root) : nullptr;
	JsonbValue v;
	JsonbIteratorToken token;
	while (max > 0 && (token = JsonbIteratorNext(&it, &v, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			list[n].kind = pnstrdup(v.val.string.val, static_cast<Size>(v.val.string.len));
		else if (token == WJB_VALUE && *list[n].kind != '\0' && strlen(list[n].kind) < core::kNameMax)
		{
			list[n].until = pause_in(v);
			n += list[n].until > wall_now(); // an expired pause needs no lane
		}
	}
	*out = list;
	return n;
}

// {"group_key": {"paused_until": "time", "max_running": number, "rate": "text"}, ...}, each null if unset
int group_settings(Jsonb *json, GroupRow **out)
{
	const int max = json != nullptr ? static_cast<int>(JB_ROOT_COUNT(json)) : 0;
	auto *list = static_cast<GroupRow *>(palloc(sizeof(GroupRow) * static_cast<Size>(max + 1)));
	int n = 0;
	JsonbIterator *it = max > 0 ? JsonbIteratorInit(&json->root) : nullptr;
	JsonbValue v;
	JsonbIteratorToken token;
	while (max > 0 && (token = JsonbIteratorNext(&it, &v, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			list[n] = {pg::string_of(v), {}};
		if (token != WJB_VALUE || *list[n].key == '\0' || strlen(list[n].key) >= core::kGroupMax)
			continue;
		core::GroupSettings &own = list[n].own;
		pg::Members m = pg::members_of(JsonbValueToJsonb(&v), kGroupSettings, "group");
		while (pg::next_member(&m))
		{
			const pg::Named at{"setting", m.key};
			if (strcmp(m.key, "paused_until") == 0)
				own.paused_until = pause_in(m.value);
			else if (strcmp(m.key, "max_running") == 0)
				own.max_running = static_cast<int32>(pg::integer_in(at, m.value, 0, PG_INT32_MAX));
			else
				own.rate = pg::rate_in(at, m.value);
		}
		if (own.paused_until <= wall_now())
			own.paused_until = 0; // the row still has an expired pause
		n += own.any();
	}
	std::sort(list, list + n, [](const GroupRow &a, const GroupRow &b) noexcept { return strcmp(a.key, b.key) < 0; });
	*out = list;
	return n;
}

// As settings_of_row. `parse` is one of the two functions above.
template <typename T>
int list_of_row(const char *name, const char *what, Jsonb *json, int (*parse)(Jsonb *, T **), T **out)
{
	const MemoryContext context = CurrentMemoryContext;
	volatile int n = 0;
	PG_TRY();
	{
		n = parse(json, out);
	}
	PG_CATCH();
	{
		const ErrorData *e = pg::take_data_error(context);
		ereport(LOG_SERVER_ONLY, (errmsg("the %s of queue \"%s\" are ignored: %s", what, name, e->message),
								  errhint("Correct them with tq_pause, tq_resume or tq_limit_group.")));
	}
	PG_END_TRY();
	return n;
}

// Returns -1 if a queue was changed since `seen`: a row may be older than memory.
int read_once(Db &db, const char *name, uint32 seen)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {TEXTOID};
	const Datum values[] = {name != nullptr ? CStringGetTextDatum(name) : static_cast<Datum>(0)};
	const char nulls[] = {name != nullptr ? ' ' : 'n', '\0'};
	// 0.1.0 has neither creators nor settings of groups
	pg::sql(records_creators()
				? "SELECT id, name, settings, paused, paused_until, closing, paused_kinds,"
				  " (SELECT jsonb_object_agg(g.group_key, jsonb_build_object('paused_until', g.paused_until,"
				  "   'max_running', g.max_running, 'rate', g.rate)) FROM tq.group_setting g WHERE g.queue_id = q.id)"
				  " AS groups, (SELECT c.role::oid FROM tq.creator c WHERE c.queue_id = q.id) AS creator"
				  " FROM tq.queue q WHERE $1 IS NULL OR name = $1"
				: "SELECT id, name, settings, paused, paused_until, closing, paused_kinds, NULL::jsonb AS groups,"
				  " NULL::oid AS creator FROM tq.queue WHERE $1 IS NULL OR name = $1",
			{types, values, nulls}, true, 0);
	TQ_WAIT_POINT("queues-after-read");
	const auto rows = static_cast<int>(SPI_processed);
	const bool any_new = any_new_queue(db);
	int n = 0;
	for (int i = 0; i < rows && n >= 0; ++i)
	{
		const auto at = static_cast<uint64>(i);
		QueueRow row{};
		row.id = pg::spi_int4(at, "id");
		row.name = pg::spi_text(at, "name");
		if (row.name == nullptr || !is_name(row.name))
			continue; // written by hand
		++n;
		const uint16_t slot = find_queue(db, row.name);
		if (slot != kNoQueue && queue_changed_here(slot))
			continue; // this transaction publishes its changes at commit
		row.settings = settings_of_row(row.name, pg::spi_jsonb(at, "settings"));
		row.paused_until = pg::spi_bool(at, "paused") ? pg::spi_time(at, "paused_until", core::kNever) : 0;
		if (row.paused_until <= wall_now())
			row.paused_until = 0; // the row still has an expired pause
		bool null = false;
		row.creator = DatumGetObjectId(pg::spi_value(at, "creator", OIDOID, &null));
		row.closing = pg::spi_bool(at, "closing");
		row.nkinds = list_of_row(row.name, "paused kinds", pg::spi_jsonb(at, "paused_kinds"), paused_kinds, &row.kinds);
		row.ngroups =
			list_of_row(row.name, "settings of groups", pg::spi_jsonb(at, "groups"), group_settings, &row.groups);
		if (!install_queue(db, row, seen, any_new))
			n = -1;
	}
	pg::leave_owner(scope);
	return n;
}

} // namespace

// A commit that changes a queue becomes visible, then raises db.queue_changes, then changes the slot. If the counter
// has not moved since before our snapshot, such a commit changes the slot after us.
int read_queues(Db &db, const char *name)
{
	for (;;)
	{
		const int n = read_once(db, name, db.queue_changes.load());
		if (n >= 0)
			return n;
		TQ_WAIT_POINT("queues-read-again");
	}
}

bool insert_queue_row(const Db &db, uint16_t queue, Jsonb *settings)
{
	Queue &q = engine.queue(queue);
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {INT4OID, TEXTOID, JSONBOID, TIMESTAMPTZOID};
	int32 id = q.id;
	if (id == kNoQueueId)
		id = draw_queue_id();
	Datum values[] = {Int32GetDatum(id), CStringGetTextDatum(q.name), PointerGetDatum(settings),
					  TimestampTzGetDatum(wall_now())};
	const char nulls[] = {' ', ' ', settings != nullptr ? ' ' : 'n', ' ', '\0'};
	constexpr int kTries = 10000;
	bool inserted = false;
	for (int tries = 0;; ++tries)
	{
		CHECK_FOR_INTERRUPTS();
		pg::sql("INSERT INTO tq.queue (id, name, settings, created_at) VALUES ($1, $2, coalesce($3, '{}'), $4) ON "
				"CONFLICT DO NOTHING",
				{types, values, nulls}, false, 0);
		inserted = SPI_processed > 0;
		if (inserted)
			break;
		pg::sql("SELECT 1 FROM tq.queue WHERE name = $2", {types, values, nulls}, false, 1);
		if (SPI_processed > 0)
			break;
		if (tries == kTries)
			ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
							errmsg("the row of queue \"%s\" cannot be written", q.name),
							errdetail("Rows that are inserted into tq.queue do not get there."),
							errhint("Remove rules and triggers from the tables of the schema \"tq\".")));
		// A restore has brought a queue with this number.
		id = draw_queue_id();
		values[0] = Int32GetDatum(id);
	}
	if (inserted)
	{
		lock_queue(queue);
		q.id = id;
		unlock_queue(queue);
		grant_to_creator(q);
	}
	pg::leave_owner(scope);
	return inserted;
}

void write_queue_row(Db &db, uint16_t queue)
{
	const Queue &q = engine.queue(queue);
	if (q.writer == my_proc + 1)
		return;
	note_use(db);
	// A scheduler answers within milliseconds, or a little later if it is starting. It does not wait for itself.
	for (int i = 0; i < 1000 && !q.persisted && guc::workers && db.scheduler.load() != my_proc + 1 &&
					(i > 0 || !pg::created_here(db.extension));
		 ++i)
	{
		db.queue_rows.store(true);
		wake_scheduler(db);
		nap(5);
	}
	if (q.persisted)
		return;
	// Without a scheduler this transaction writes the row; the row and the jobs commit or roll back together.
	note_queue_row(queue);
	if (!insert_queue_row(db, queue, nullptr))
		read_queues(db, q.name); // the row is older than the slot: a restore brought it
}

void ensure_queue_row(Db &db, uint16_t queue)
{
	const Queue &q = engine.queue(queue);
	if (q.state == core::QueueState::reserved)
		enter_reserved_queue(db, queue);
	else if (!q.persisted)
		write_queue_row(db, queue);
}

int write_new_rows(Db &db, uint16_t *queues, int max)
{
	int n = 0;
	for_queues(db, [&](uint16_t slot, const Queue &q) {
		if (n >= max || q.state != core::QueueState::creating || q.persisted || q.writer != 0)
			return;
		if (insert_queue_row(db, slot, nullptr))
			queues[n++] = slot;
		else
			read_queues(db, q.name); // the row is older than the slot: a restore brought it
	});
	return n;
}

void rows_written(Db &db, const uint16_t *queues, int n) noexcept
{
	LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
	for (int i = 0; i < n; ++i)
	{
		lock_queue(queues[i]);
		Queue &q = engine.queue(queues[i]);
		if (q.db == index_of(db) && q.state == core::QueueState::creating)
		{
			q.persisted = true;
			q.state = core::QueueState::active;
		}
		unlock_queue(queues[i]);
	}
	LWLockRelease(registry_lock());
}

} // namespace tq
