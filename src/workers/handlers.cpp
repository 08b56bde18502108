#include "workers/handlers.hpp"

#include "api/handle.hpp"
#include "pg/data_error.hpp"
#include "pg/owner.hpp"

namespace tq::workers
{

namespace
{

using live::engine;

char *text_of(HeapTuple tuple, TupleDesc desc, int column)
{
	return SPI_getvalue(tuple, desc, column);
}

// What cannot be understood (written by hand) keeps nobody else's jobs; its own wait, also for a handler of all other kinds.
api::HandlerOptions parse(const Handler &h, Jsonb *options)
{
	const MemoryContext context = CurrentMemoryContext;
	api::HandlerOptions out;
	out.max = 0;
	PG_TRY();
	{
		out = api::parse_handler_options(options);
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

// Which kinds a handler is for: its own, or all that no other handler of its queue is for. Those of a queue are together.
void assign_kinds(Handlers *handlers)
{
	for (int i = 0; i < handlers->n; ++i)
	{
		Handler &h = handlers->list[i];
		h.kinds = static_cast<uint64 *>(MemoryContextAlloc(handlers->context, sizeof(uint64) * static_cast<Size>(handlers->n)));
		h.except = h.kind == nullptr;
		h.nkinds = 0;
		if (!h.except)
			h.kinds[h.nkinds++] = core::hash_name(h.kind);
		for (int k = 0; h.except && k < handlers->n; ++k)
			if (handlers->list[k].queue_id == h.queue_id && handlers->list[k].kind != nullptr)
				h.kinds[h.nkinds++] = core::hash_name(handlers->list[k].kind);
		h.id = static_cast<uint64>(h.queue_id) << 32 | static_cast<uint32>(core::hash_name(h.kind != nullptr ? h.kind : ""));
	}
}

} // namespace

void read_handlers(const live::Db &db, Handlers *handlers)
{
	if (handlers->context == nullptr)
		handlers->context = AllocSetContextCreate(TopMemoryContext, "tq handlers", ALLOCSET_SMALL_SIZES);
	handlers->valid = false;
	handlers->n = 0;
	MemoryContextReset(handlers->context);
	// what changes while it is read may not be in it: then it is read again next time
	const uint32 seen = db.handler_changes.load();
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("SELECT queue_id, kind, function, role::oid, search_path, options, problem IS NOT NULL, retry_at"
			" FROM tq.handler ORDER BY queue_id, kind",
			0, nullptr, nullptr, nullptr, true, 0);
	const MemoryContext inner = MemoryContextSwitchTo(handlers->context);
	handlers->list = static_cast<Handler *>(palloc0(mul_size(sizeof(Handler), static_cast<Size>(SPI_processed) + 1)));
	for (uint64 i = 0; i < SPI_processed; ++i)
	{
		HeapTuple tuple = SPI_tuptable->vals[i];
		TupleDesc desc = SPI_tuptable->tupdesc;
		Handler &h = handlers->list[handlers->n];
		bool isnull = false;
		h.queue_id = DatumGetInt32(SPI_getbinval(tuple, desc, 1, &isnull));
		const char *kind = text_of(tuple, desc, 2);
		h.kind = kind[0] != '\0' ? kind : nullptr;
		h.function = text_of(tuple, desc, 3);
		h.role = DatumGetObjectId(SPI_getbinval(tuple, desc, 4, &isnull));
		h.search_path = text_of(tuple, desc, 5);
		const api::HandlerOptions options = parse(h, DatumGetJsonbP(SPI_getbinval(tuple, desc, 6, &isnull)));
		h.max = options.max;
		h.fatal = options.fatal;
		h.nfatal = options.nfatal;
		h.has_problem = DatumGetBool(SPI_getbinval(tuple, desc, 7, &isnull));
		const Datum retry_at = SPI_getbinval(tuple, desc, 8, &isnull);
		h.retry_at = isnull ? 0 : DatumGetTimestampTz(retry_at);
		h.queue = UINT16_MAX;
		++handlers->n;
	}
	MemoryContextSwitchTo(inner);
	pg::leave_owner(scope);
	assign_kinds(handlers);
	handlers->seen = seen;
	handlers->valid = true;
}

bool find_queue(const live::Db &db, Handler *h) noexcept
{
	const uint16_t d = live::index_of(db);
	auto is_it = [&](uint32 slot) {
		const live::Queue &q = engine.queue(static_cast<uint16_t>(slot));
		return q.state != core::QueueState::free && q.state != core::QueueState::reserved && q.db == d && q.id == h->queue_id;
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

int queue_limit(const Handler &h) noexcept
{
	const int32 limit = engine.queue(h.queue).settings.executors; // one word, so no lock
	return limit != core::kUnset ? limit : INT_MAX;
}

bool has_work(const Handler &h, bool call) noexcept
{
	core::Key key{};
	live::lock_queue(h.queue);
	live::Queue &q = engine.queue(h.queue);
	const bool some = engine.claimable(q, h.kinds, h.nkinds, &key, h.except);
	if (!some && call)
		engine.call_when_startable(q);
	live::unlock_queue(h.queue);
	return some;
}

void call_for(const Handler &h) noexcept
{
	live::lock_queue(h.queue);
	engine.call_when_startable(engine.queue(h.queue));
	live::unlock_queue(h.queue);
}

void write_problem(const live::Db &db, const Handler &h, const char *problem)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {INT4OID, TEXTOID, TEXTOID, TIMESTAMPTZOID, INT8OID};
	const Datum values[] = {Int32GetDatum(h.queue_id), CStringGetTextDatum(h.kind != nullptr ? h.kind : ""),
							problem != nullptr ? CStringGetTextDatum(problem) : static_cast<Datum>(0),
							TimestampTzGetDatum(live::wall_now()), Int64GetDatum(kLongestPause)};
	if (problem != nullptr)
		pg::sql("UPDATE tq.handler SET problem = $3, problem_at = $4,"
				" retry_at = $4 + least(greatest((retry_at - problem_at) * 2, '1 s'), $5 * interval '1 microsecond')"
				" WHERE ctid = (SELECT ctid FROM tq.handler WHERE queue_id = $1 AND kind = $2 FOR UPDATE SKIP LOCKED)",
				5, types, values, nullptr, false, 0);
	else
		pg::sql("UPDATE tq.handler SET problem = NULL, problem_at = NULL, retry_at = NULL"
				" WHERE ctid = (SELECT ctid FROM tq.handler WHERE queue_id = $1 AND kind = $2 FOR UPDATE SKIP LOCKED)",
				2, types, values, nullptr, false, 0);
	pg::leave_owner(scope);
}

} // namespace tq::workers
