#include "queues/follow_up_setting.hpp"

#include "api/args.hpp"
#include "queues/queue_names.hpp"
#include "queues/queue_rows.hpp"
#include "queues/rights.hpp"
#include "pg/errors.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"

extern "C"
{
#include "utils/fmgrprotos.h"
}

namespace tq
{

namespace
{

constexpr char kKey[] = "follow_up";

// Names a queue only if the caller has a right on it or named it in the call.
const char *words_of_circle(Db &db, Datum path, const char *from, const char *to)
{
	int n = 0;
	Datum *names = array_elements(path, TEXTOID, "path", &n);
	StringInfoData s;
	initStringInfo(&s);
	for (int i = 0; i < n; ++i)
	{
		const char *name = TextDatumGetCString(names[i]);
		const uint16_t slot = find_queue(db, name);
		const bool known =
			strcmp(name, from) == 0 || strcmp(name, to) == 0 || (slot != kNoQueue && has_right(db, slot, kQueueRights));
		appendStringInfo(&s, "%s%s", i > 0 ? " -> " : "", known ? name : "...");
	}
	return s.data;
}

} // namespace

const JsonbValue *follow_up_in(Jsonb *object)
{
	if (object == nullptr || !JB_ROOT_IS_OBJECT(object))
		return nullptr;
	const JsonbValue *v = getKeyJsonValueFromContainer(&object->root, kKey, static_cast<int>(strlen(kKey)), nullptr);
	return v == nullptr || v->type == jbvNull ? nullptr : v;
}

bool may_follow(const core::Entry &e, journal::EventType type) noexcept
{
	const uint8 bit = end_bit(type);
	return bit != 0 && ((engine.queue(e.queue).settings.followed & bit) != 0 || e.has(core::kOwnOptions));
}

void check_target(Db &db, const FollowUp &f)
{
	const uint16_t slot = queue_with_right(db, f.queue, kProduce);
	if (engine.queue(slot).state == core::QueueState::creating && !engine.queue(slot).persisted)
		write_queue_row(db, slot);
}

// An exclusive lock serializes calls that set a follow-up, so that each sees the others' changes.
void check_follow_up(Db &db, const char *queue, Jsonb *settings)
{
	const JsonbValue *v = follow_up_in(settings);
	if (v == nullptr)
		return;
	const FollowUp f = parse_follow_up(*v, "setting");
	if (strcmp(f.queue, queue) != 0)
		check_target(db, f);
	LockDatabaseObject(get_relname_relid("queue", get_namespace_oid("tq", false)),
					   static_cast<Oid>(core::hash_name("*")), 0, ExclusiveLock);
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {TEXTOID, TEXTOID};
	const Datum values[] = {CStringGetTextDatum(queue), CStringGetTextDatum(f.queue)};
	pg::sql("WITH RECURSIVE chain (name, path) AS (SELECT $2, ARRAY[$1, $2] UNION ALL"
			" SELECT n, path || n FROM chain c JOIN tq.queue q ON q.name = c.name,"
			" LATERAL (SELECT q.settings #>> '{follow_up,queue}') x (n) WHERE c.name <> $1 AND n IS NOT NULL AND n <> "
			"ALL (path[2:]))"
			" SELECT path FROM chain WHERE name = $1",
			{types, values}, true, 1);
	Datum path = 0;
	if (SPI_processed > 0)
		path = pg::outside(scope, [] {
			return PointerGetDatum(DatumGetArrayTypePCopy(pg::spi_required(0, "path", TEXTARRAYOID)));
		});
	pg::leave_owner(scope);
	if (path != 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("jobs of queue \"%s\" would follow themselves", queue),
						errdetail("The circle is %s.", words_of_circle(db, path, queue, f.queue))));
}

// The follow-up gets the outcome if the role that requests it may read the outcome; the role that ends the job does not
// matter. "outcome": false stores the decision.
Jsonb *restrict_follow_up(Db &db, uint16_t queue, Jsonb *json, bool own_payload)
{
	const JsonbValue *v = follow_up_in(json);
	if (v == nullptr || v->type != jbvBinary || has_right(db, queue, kMayRead))
		return json;
	if (!own_payload && parse_follow_up(*v, "setting").payload)
		require_right(db, queue, engine.queue(queue).name, kMayRead);
	Datum keys[] = {CStringGetTextDatum(kKey), CStringGetTextDatum("outcome")};
	const Datum no = DirectFunctionCall1(jsonb_in, CStringGetDatum("false"));
	return DatumGetJsonbP(
		DirectFunctionCall4(jsonb_set, JsonbPGetDatum(json),
							PointerGetDatum(construct_array(keys, lengthof(keys), TEXTOID, -1, false, TYPALIGN_INT)),
							no, BoolGetDatum(true)));
}

} // namespace tq
