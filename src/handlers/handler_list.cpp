#include "handlers/handler_list.hpp"

#include "handlers/handler_function.hpp"
#include "handlers/handler_functions.hpp"
#include "queues/queue_names.hpp"
#include "pg/data_error.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

// The text of a column; empty for a null.
const char *text_of(uint64 row, const char *column)
{
	const char *s = pg::spi_text(row, column);
	return s != nullptr ? s : "";
}

// A row that cannot be parsed (written by hand) affects only its own jobs. They wait, even if a handler for all other
// kinds exists.
HandlerOptions parse(const Handler &h, Jsonb *options)
{
	const MemoryContext context = CurrentMemoryContext;
	HandlerOptions out;
	out.max = 0;
	if (options == nullptr)
		return out;
	PG_TRY();
	{
		out = parse_handler_options(options);
	}
	PG_CATCH();
	{
		const ErrorData *e = pg::take_data_error(context);
		ereport(WARNING, (errmsg("handler %s of queue %d is not called: %s", h.function, h.queue_id, e->message),
						  errhint("Name it again with tq_handle.")));
	}
	PG_END_TRY();
	return out;
}

// Sets `kinds` of each handler. A handler with a kind runs this kind. A handler without one runs all kinds except those
// of its queue's other handlers (`except`). Handlers of a queue are adjacent, and the one without a kind comes first.
void assign_kinds(Handlers *handlers)
{
	const Handler *const end = handlers->list + handlers->n;
	for (int i = 0; i < handlers->n; ++i)
	{
		Handler &h = handlers->list[i];
		h.except = h.kind == nullptr;
		const Handler *first = h.except ? &h + 1 : &h;
		const Handler *last = &h + 1;
		while (h.except && last != end && last->queue_id == h.queue_id)
			++last;
		h.kinds = static_cast<uint64 *>(
			MemoryContextAlloc(handlers->context, sizeof(uint64) * static_cast<Size>(last - first + 1)));
		h.nkinds = 0;
		for (; first != last; ++first)
			if (first->kind != nullptr) // always, as long as the table has its primary key
				h.kinds[h.nkinds++] = core::hash_name(first->kind);
		h.id = static_cast<uint64>(h.queue_id) << 32 |
			   static_cast<uint32>(core::hash_name(h.kind != nullptr ? h.kind : ""));
	}
}

} // namespace

void read_handlers(const Db &db, Handlers *handlers)
{
	if (handlers->context == nullptr)
		handlers->context = AllocSetContextCreate(TopMemoryContext, "tq handlers", ALLOCSET_SMALL_SIZES);
	handlers->valid = false;
	handlers->n = 0;
	MemoryContextReset(handlers->context);
	// changes made during the read may be missing; then the table is read again next time
	const uint32 seen = db.handler_changes.load();
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const bool has_identity = handlers_have_identity();
	const char *identity = has_identity ? TQ_HANDLER_ROLE ", coalesce(owner::oid, 0) AS owner,"
										  " coalesce(function_oid, 0) AS function_oid"
										: "role::oid, 0::oid AS owner, 0::oid AS function_oid";
	pg::sql(psprintf("SELECT queue_id, kind, function, search_path, options, problem IS NOT NULL AS has_problem,"
					 " retry_at, %s FROM tq.handler ORDER BY queue_id, kind",
					 identity),
			{}, true, 0);
	const MemoryContext inner = MemoryContextSwitchTo(handlers->context);
	handlers->list = static_cast<Handler *>(palloc0(mul_size(sizeof(Handler), static_cast<Size>(SPI_processed) + 1)));
	handlers->ids = static_cast<uint64 *>(palloc(mul_size(sizeof(uint64), static_cast<Size>(SPI_processed) + 1)));
	for (uint64 i = 0; i < SPI_processed; ++i)
	{
		Handler &h = handlers->list[handlers->n];
		bool null = false;
		h.queue_id = pg::spi_int4(i, "queue_id");
		const char *kind = text_of(i, "kind");
		h.kind = kind[0] != '\0' ? kind : nullptr;
		h.function = text_of(i, "function");
		h.role = DatumGetObjectId(pg::spi_value(i, "role", OIDOID, &null));
		h.search_path = text_of(i, "search_path");
		const HandlerOptions options = parse(h, pg::spi_jsonb(i, "options"));
		h.max = options.max;
		h.fatal = options.fatal;
		h.nfatal = options.nfatal;
		h.has_problem = pg::spi_bool(i, "has_problem");
		h.retry_at = pg::spi_time(i, "retry_at", 0);
		h.owner = DatumGetObjectId(pg::spi_value(i, "owner", OIDOID, &null));
		h.function_oid = DatumGetObjectId(pg::spi_value(i, "function_oid", OIDOID, &null));
		h.has_identity = has_identity;
		h.queue = UINT16_MAX;
		++handlers->n;
	}
	MemoryContextSwitchTo(inner);
	pg::leave_owner(scope);
	assign_kinds(handlers);
	handlers->seen = seen;
	handlers->valid = true;
}

bool find_queue(const Db &db, Handler *h) noexcept
{
	const uint16_t d = index_of(db);
	auto is_it = [&](uint32 slot) {
		const Queue &q = engine.queue(static_cast<uint16_t>(slot));
		return q.state != core::QueueState::free && q.state != core::QueueState::reserved && q.db == d &&
			   q.id == h->queue_id;
	};
	if (h->queue != UINT16_MAX && is_it(h->queue))
		return true;
	for (uint32 slot = 0; slot < engine.limits().queues; ++slot)
		if (is_it(slot))
		{
			h->queue = static_cast<uint16_t>(slot);
			return true;
		}
	return false;
}

int runnable(const Db &db, Handlers *handlers, core::Micros now) noexcept
{
	int n = 0;
	for (int i = 0; i < handlers->n; ++i)
	{
		Handler &h = handlers->list[i];
		if (h.max > 0 && !is_held(h, now) && find_queue(db, &h) && queue_limit(h) > 0 &&
			engine.queue(h.queue).paused_until == 0)
			handlers->ids[n++] = h.id;
	}
	return n;
}

int queue_limit(const Handler &h) noexcept
{
	const int32 limit = engine.queue(h.queue).settings.executors; // one word, so no lock
	return limit != core::kUnset ? limit : INT_MAX;
}

bool has_work(const Handler &h, bool call) noexcept
{
	core::Key key{};
	lock_queue(h.queue);
	Queue &q = engine.queue(h.queue);
	const bool some = engine.claimable(q, h.kinds, h.nkinds, &key, h.except);
	if (!some && call)
		engine.call_when_startable(q);
	unlock_queue(h.queue);
	return some;
}

void call_for(const Handler &h) noexcept
{
	lock_queue(h.queue);
	engine.call_when_startable(engine.queue(h.queue));
	unlock_queue(h.queue);
}

void write_problem(const Db &db, const Handler &h, const char *problem)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const char *kind = h.kind != nullptr ? h.kind : "";
	const Oid types[] = {INT4OID, TEXTOID, TEXTOID, TIMESTAMPTZOID, INT8OID};
	const Datum values[] = {Int32GetDatum(h.queue_id), CStringGetTextDatum(kind),
							problem != nullptr ? CStringGetTextDatum(problem) : static_cast<Datum>(0),
							TimestampTzGetDatum(wall_now()), Int64GetDatum(kLongestPause)};
	if (lock_handler(h.queue_id, kind))
		pg::sql(
			problem != nullptr
				? "UPDATE tq.handler SET problem = $3, problem_at = $4,"
				  " retry_at = $4 + least(greatest((retry_at - problem_at) * 2, '1 s'), $5 * interval '1 microsecond')"
				  " WHERE queue_id = $1 AND kind = $2"
				: "UPDATE tq.handler SET problem = NULL, problem_at = NULL, retry_at = NULL WHERE queue_id = $1 AND "
				  "kind = $2",
			{types, values, nullptr, problem != nullptr ? 5 : 2}, false, 0);
	pg::leave_owner(scope);
}

} // namespace tq
