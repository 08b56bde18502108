// tq_subscribe, tq_unsubscribe, and the function of tq_subscriptions: targets of deliveries by HTTP, for a gateway.
// Regime: PG. Locks: RowExclusiveLock on tq.subscription to the end of the transaction; tq_subscribe also an exclusive
// lock on the queue's row, so that its limit holds.
#include "api/args.hpp"
#include "database/activation.hpp"
#include "database/attach.hpp"
#include "queues/actions.hpp"
#include "queues/queue_names.hpp"
#include "queues/rights.hpp"
#include "pg/function.hpp"
#include "pg/json_values.hpp"
#include "pg/owner.hpp"
#include "pg/rows.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

constexpr pg::SizeLimit kUrlLimit{2048, nullptr};
constexpr int kMostOfQueue = 100;

[[noreturn]] void bad_url(const char *why)
{
	ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("url is not valid"), errdetail_internal("%s", why),
					errhint("Give an address such as \"https://example.org/hooks/mail\".")));
}

// http or https, a host, no user and password, and only printable ASCII characters.
void check_url(const char *url)
{
	for (const char *c = url; *c != '\0'; ++c)
		if (*c <= ' ' || *c > '~' || strchr("\"<>\\^`{|}", *c) != nullptr)
			bad_url("It has a character that must be percent-encoded.");
	const size_t scheme = pg_strncasecmp(url, "https://", 8) == 0 ? 8 : pg_strncasecmp(url, "http://", 7) == 0 ? 7 : 0;
	if (scheme == 0)
		bad_url("It must begin with http:// or https://.");
	const char *host = url + scheme;
	const size_t length = strcspn(host, "/?#");
	if (memchr(host, '@', length) != nullptr)
		bad_url("It must not name a user or a password; options may have them.");
	if (length == 0 || *host == ':')
		bad_url("It names no host.");
}

struct Target
{
	Db *db;
	int32 queue_id;
	const char *url;
};

Target parse(FunctionCallInfo fcinfo)
{
	const char *queue = text_required(fcinfo, 0, "queue");
	Target t{};
	t.url = text_required(fcinfo, 1, "url", kUrlLimit);
	check_url(t.url);
	t.db = &database(fcinfo);
	t.queue_id = number_to_manage(*t.db, queue);
	return t;
}

constexpr pg::ColumnSpec kSubscriptions[] = {
	{"queue", TEXTOID},	 {"url", TEXTOID}, {"options", JSONBOID}, {"role", REGROLEOID}, {"defined_at", TIMESTAMPTZOID},
	{"active", BOOLOID},
};

} // namespace

// queue, url, options
TQ_FUNCTION(tq_subscribe)
{
	require_writable("tq_subscribe()");
	require(fcinfo, 2, "options");
	Jsonb *options = jsonb_value(fcinfo, 2, "options", options_limit());
	if (!JB_ROOT_IS_OBJECT(options))
		pg::not_an_object("options", options);
	const Target t = parse(fcinfo);
	const char *name = text_required(fcinfo, 0, "queue");
	// the target is sent the contents of the jobs, as a worker would be
	static_cast<void>(queue_with_right(*t.db, name, kConsume));
	const Oid types[] = {INT4OID, TEXTOID, JSONBOID, OIDOID, TIMESTAMPTZOID};
	const Datum values[] = {Int32GetDatum(t.queue_id), CStringGetTextDatum(t.url), PointerGetDatum(options),
							ObjectIdGetDatum(GetUserId()), TimestampTzGetDatum(wall_now())};
	const pg::OwnerScope scope = pg::enter_owner(t.db->extension);
	pg::sql("SELECT FROM tq.queue WHERE id = $1 FOR UPDATE", {types, values}, false, 0);
	pg::sql("SELECT count(*) AS n FROM tq.subscription WHERE queue_id = $1 AND url <> $2", {types, values}, false, 1);
	const int64 others = pg::spi_int8(0, "n");
	if (others < kMostOfQueue)
		pg::sql("INSERT INTO tq.subscription (queue_id, url, options, role, defined_at) VALUES ($1, $2, $3, "
				"$4::regrole, $5)"
				" ON CONFLICT (queue_id, url) DO UPDATE SET options = $3, role = $4::regrole, defined_at = $5",
				{types, values}, false, 0);
	pg::leave_owner(scope);
	if (others >= kMostOfQueue)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED), errmsg("too many subscriptions for queue \"%s\"", name),
				 errdetail("A queue can have at most %d subscriptions.", kMostOfQueue),
				 errhint("Remove some with tq_unsubscribe.")));
	record_action(*t.db, "subscribe", t.queue_id, 0, Facts().add("url", t.url)); // without options: they may be secret
	PG_RETURN_VOID();
}

// queue, url
TQ_FUNCTION(tq_unsubscribe)
{
	require_writable("tq_unsubscribe()");
	const Target t = parse(fcinfo);
	const Oid types[] = {INT4OID, TEXTOID};
	const Datum values[] = {Int32GetDatum(t.queue_id), CStringGetTextDatum(t.url)};
	lock_queue_row(*t.db, t.queue_id);
	if (pg::sql_as_owner(t.db->extension, "DELETE FROM tq.subscription WHERE queue_id = $1 AND url = $2",
						 {types, values}) == 0)
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
						errmsg("queue \"%s\" has no subscription for \"%s\"", text_required(fcinfo, 0, "queue"), t.url),
						errhint("tq_subscriptions shows what subscriptions there are.")));
	record_action(*t.db, "unsubscribe", t.queue_id, 0, Facts().add("url", t.url));
	PG_RETURN_VOID();
}

// tq.subscriptions(), behind tq_subscriptions. Shows the rows of queues that the caller may manage or inspect, and
// those of the caller's own roles; the options only to roles that may manage the queue.
TQ_FUNCTION(tq_list_subscriptions)
{
	const Db &db = database_facts(fcinfo);
	const pg::RowSet rows = pg::begin_rows(fcinfo, pg::row_shape(kSubscriptions));
	const Oid user = GetUserId();
	const Rights mine = rights(db);
	const bool active = activation_of(db) != Activation::inactive;
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql(
		"SELECT s.queue_id, q.name, s.url, s.options, s.role::oid AS role, s.defined_at FROM tq.subscription s JOIN "
		"tq.queue q ON q.id = "
		"s.queue_id ORDER BY q.name, s.url",
		{}, true, 0);
	for (uint64 i = 0; i < SPI_processed; ++i)
	{
		bool null = false;
		const int32 queue_id = pg::spi_int4(i, "queue_id");
		const Oid role = DatumGetObjectId(pg::spi_value(i, "role", OIDOID, &null));
		if (!mine.may(queue_id, kManage | kInspect) && !has_privs_of_role(user, role))
			continue;
		const char *name = pg::spi_text(i, "name"), *url = pg::spi_text(i, "url");
		Jsonb *options = mine.may(queue_id, kManage) ? pg::spi_jsonb(i, "options") : nullptr;
		const TimestampTz at = pg::spi_time(i, "defined_at", 0);
		Datum values[] = {CStringGetTextDatum(name != nullptr ? name : ""),
						  CStringGetTextDatum(url != nullptr ? url : ""),
						  PointerGetDatum(options),
						  ObjectIdGetDatum(role),
						  TimestampTzGetDatum(at),
						  BoolGetDatum(active)};
		bool nulls[] = {name == nullptr, url == nullptr, options == nullptr, null, false, false};
		rows.put(values, nulls);
	}
	pg::leave_owner(scope);
	return static_cast<Datum>(0);
}

} // namespace tq
