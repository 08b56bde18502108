#include "queues/requester.hpp"

#include "queues/follow_up_setting.hpp"
#include "queues/rights.hpp"
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

constexpr char kFollowUp[] = "follow_up";
constexpr char kBy[] = "by";

// False with the SQL of 0.1.0, which lacks the table: follow-ups then record no role.
bool records_requesters() { return OidIsValid(get_relname_relid("requester", get_namespace_oid("tq", false))); }

// The id of the current user, in the caller's memory context. Concurrent transactions may each insert a valid one.
char *id_of_user(const Db &db)
{
	const Oid user = GetUserId();
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	static pg::Statement find{"SELECT id FROM tq.requester WHERE role = $1::regrole LIMIT 1", 1, {OIDOID}};
	static pg::Statement make{
		"INSERT INTO tq.requester (id, role) VALUES (gen_random_uuid()::text, $1::regrole) RETURNING id", 1, {OIDOID}};
	Datum values[] = {ObjectIdGetDatum(user)};
	if (pg::run(find, values, nullptr, 1) == 0)
		static_cast<void>(pg::run(make, values, nullptr));
	char *id = MemoryContextStrdup(scope.outside, pg::spi_text(0, "id"));
	pg::leave_owner(scope);
	return id;
}

Oid role_of(const Db &db, const char *id)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	static pg::Statement find{"SELECT role::oid FROM tq.requester WHERE id = $1", 1, {TEXTOID}};
	Datum values[] = {CStringGetTextDatum(id)};
	Oid role = InvalidOid;
	if (pg::run(find, values, nullptr, 1) > 0)
		role = DatumGetObjectId(pg::spi_required(0, "role", OIDOID));
	pg::leave_owner(scope);
	return role;
}

} // namespace

Jsonb *record_requester(const Db &db, Jsonb *json)
{
	const JsonbValue *v = follow_up_in(json);
	if (v == nullptr || v->type != jbvBinary || !records_requesters())
		return json;
	JsonbValue id;
	id.type = jbvString;
	id.val.string.val = id_of_user(db);
	id.val.string.len = static_cast<int>(strlen(id.val.string.val));
	Datum path[] = {CStringGetTextDatum(kFollowUp), CStringGetTextDatum(kBy)};
	return DatumGetJsonbP(
		DirectFunctionCall4(jsonb_set, JsonbPGetDatum(json),
							PointerGetDatum(construct_array(path, lengthof(path), TEXTOID, -1, false, TYPALIGN_INT)),
							JsonbPGetDatum(JsonbValueToJsonb(&id)), BoolGetDatum(true)));
}

void check_requester(Db &db, const FollowUp &f, uint16_t queue)
{
	if (f.by == nullptr || !records_requesters())
		return;
	const Oid role = role_of(db, f.by);
	if (OidIsValid(role) && role_may(db, role, queue, kProduce))
		return;
	const char *name = OidIsValid(role) ? GetUserNameFromId(role, true) : nullptr;
	if (name == nullptr)
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("the role that requested the follow-up does not exist")));
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("role \"%s\", which requested the follow-up, may not enqueue to queue \"%s\"", name, f.queue)));
}

} // namespace tq
