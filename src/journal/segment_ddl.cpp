// Creates, lists and repairs the tables of segments, in the caller's transaction. segment_drop.cpp drops them.
// Regime: PG. Locks: create_segment: ShareUpdateExclusiveLock on the parents (the hot path never locks them).
// enable_triggers: ShareRowExclusiveLock. May raise what DDL raises.
#include "journal/tables.hpp"

extern "C"
{
#include "catalog/pg_authid.h"
}

#include "pg/owner.hpp"
#include "pg/spi.hpp"

namespace tq::journal
{

namespace
{

constexpr const char *kSchema = "tq";

Oid table_oid(const char *name)
{
	const Oid schema = get_namespace_oid(kSchema, true);
	return OidIsValid(schema) ? get_relname_relid(name, schema) : InvalidOid;
}

Oid table_oid(const char *prefix, int32 number)
{
	char name[NAMEDATALEN];
	snprintf(name, sizeof(name), "%s_%d", prefix, number);
	return table_oid(name);
}

void execute(const char *format, ...) pg_attribute_printf(1, 2);

void execute(const char *format, ...)
{
	StringInfoData command;
	va_list args;
	int needed;

	initStringInfo(&command);
	for (;;)
	{
		va_start(args, format);
		needed = appendStringInfoVA(&command, format, args);
		va_end(args);
		if (needed == 0)
			break;
		enlargeStringInfo(&command, needed);
	}
	pg::sql(command.data, {}, false, 0);
	pfree(command.data);
}

// Segment 0 has the same indexes and triggers (sql/install). The triggers refuse rows that tq does not write: the first
// for each statement, the second for rows from logical replication, which runs no statements (H26).
void create_tables(int32 n, const char *tablespace)
{
	// Rows are never updated or deleted, so vacuum would only freeze. Its truncation would lock readers out (H22).
	constexpr const char *kStorage = "USING heap WITH (autovacuum_enabled = off, vacuum_truncate = off, "
									 "toast.autovacuum_enabled = off, toast.vacuum_truncate = off)";

	for (const char *kind : {"job", "event"})
	{
		execute("CREATE TABLE tq.%s_%d () INHERITS (tq.%s) %s%s%s", kind, n, kind, kStorage,
				tablespace == nullptr ? "" : " TABLESPACE ", tablespace == nullptr ? "" : quote_identifier(tablespace));
		// default privileges may grant access to PUBLIC; copy_owner_and_acl() sets the parent's privileges later
		execute("REVOKE ALL ON tq.%s_%d FROM PUBLIC", kind, n);
	}
	execute("CREATE UNIQUE INDEX job_%d_id ON tq.job_%d (id)", n, n);
	execute("CREATE INDEX job_%d_lane ON tq.job_%d (queue_id, kind, priority, id) WHERE group_key IS NULL", n, n);
	execute("CREATE INDEX job_%d_group ON tq.job_%d (queue_id, group_key, priority, id) WHERE group_key IS NOT NULL", n,
			n);
	execute("CREATE INDEX job_%d_due ON tq.job_%d (run_at, id) WHERE run_at IS NOT NULL", n, n);
	execute("CREATE UNIQUE INDEX event_%d_step ON tq.event_%d (job_id, step)", n, n);
	execute("CREATE INDEX event_%d_due ON tq.event_%d (retry_at, job_id) WHERE retry_at IS NOT NULL", n, n);
	// Nothing reads this index. But segments of 0.1.0 have it, and an update must leave the same objects as a new
	// CREATE EXTENSION. A DROP INDEX in the update script would lock event_0 under load.
	execute("CREATE INDEX event_%d_override ON tq.event_%d (job_id) WHERE type = 'o'", n, n);
	// without one, PostgreSQL refuses an administrator's DELETE if a publication is FOR ALL TABLES
	execute("ALTER TABLE tq.job_%d REPLICA IDENTITY USING INDEX job_%d_id", n, n);
	execute("ALTER TABLE tq.event_%d REPLICA IDENTITY USING INDEX event_%d_step", n, n);
	for (const char *kind : {"job", "event"})
	{
		execute("CREATE TRIGGER tq_reload AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tq.%s_%d "
				"FOR EACH STATEMENT EXECUTE FUNCTION tq.reload_trigger()",
				kind, n);
		execute("CREATE TRIGGER tq_reload_row AFTER INSERT OR UPDATE OR DELETE ON tq.%s_%d "
				"FOR EACH ROW EXECUTE FUNCTION tq.reload_trigger()",
				kind, n);
		execute("ALTER TABLE tq.%s_%d ENABLE ALWAYS TRIGGER tq_reload, ENABLE REPLICA TRIGGER tq_reload_row", kind, n);
	}
}

// Copies the parent's owner and privileges to a child.
void copy_owner_and_acl(Oid parent, Oid child)
{
	Relation rel = table_open(RelationRelationId, RowExclusiveLock);
	HeapTuple from = SearchSysCache1(RELOID, ObjectIdGetDatum(parent));
	HeapTuple to = SearchSysCacheCopy1(RELOID, ObjectIdGetDatum(child));
	if (!HeapTupleIsValid(from) || !HeapTupleIsValid(to))
		elog(ERROR, "cache lookup failed for a table of schema \"%s\"", kSchema);

	const Oid owner = reinterpret_cast<Form_pg_class>(GETSTRUCT(from))->relowner;
	if (reinterpret_cast<Form_pg_class>(GETSTRUCT(to))->relowner != owner)
	{
		execute("ALTER TABLE tq.%s OWNER TO %s", NameStr(reinterpret_cast<Form_pg_class>(GETSTRUCT(to))->relname),
				quote_identifier(GetUserNameFromId(owner, false)));
		heap_freetuple(to);
		to = SearchSysCacheCopy1(RELOID, ObjectIdGetDatum(child));
	}

	bool old_null;
	bool new_null;
	const Datum old_acl = SysCacheGetAttr(RELOID, to, Anum_pg_class_relacl, &old_null);
	const Datum new_acl = SysCacheGetAttr(RELOID, from, Anum_pg_class_relacl, &new_null);
	Oid *old_members = nullptr;
	Oid *new_members = nullptr;
	const int nold = old_null ? 0 : aclmembers(DatumGetAclPCopy(old_acl), &old_members);
	const int nnew = new_null ? 0 : aclmembers(DatumGetAclPCopy(new_acl), &new_members);

	Datum values[Natts_pg_class] = {};
	bool nulls[Natts_pg_class] = {};
	bool replace[Natts_pg_class] = {};
	values[Anum_pg_class_relacl - 1] = new_acl;
	nulls[Anum_pg_class_relacl - 1] = new_null;
	replace[Anum_pg_class_relacl - 1] = true;
	HeapTuple changed = heap_modify_tuple(to, RelationGetDescr(rel), values, nulls, replace);
	CatalogTupleUpdate(rel, &changed->t_self, changed);
	updateAclDependencies(RelationRelationId, child, 0, owner, nold, old_members, nnew, new_members);

	heap_freetuple(to);
	ReleaseSysCache(from);
	table_close(rel, RowExclusiveLock);
	CommandCounterIncrement();
}

// Adds the new child, before it has rows, to each publication that lists its parent or another child of the parent. The
// column list and the row filter are the parent's, else the youngest child's. A restored publication lists children
// only, because pg_dump leaves out the parents, which are members of the extension. Publications have their own owners,
// so the worker acts as superuser.
void publish_segment(int32 number)
{
	constexpr const char *kCommands =
		"SELECT DISTINCT ON (p.oid, kind) format('ALTER PUBLICATION %%I ADD TABLE ONLY tq.%%I', p.pubname, kind || "
		"'_%d')"
		" || coalesce(' (' || (SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FROM pg_attribute a"
		" WHERE a.attrelid = r.prrelid AND a.attnum = ANY (r.prattrs::int2[])) || ')', '')"
		" || coalesce(' WHERE (' || pg_get_expr(r.prqual, r.prrelid) || ')', '') AS command"
		" FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid JOIN pg_class c ON c.oid = r.prrelid,"
		" split_part(c.relname, '_', 1) AS kind"
		" WHERE c.relnamespace = 'tq'::regnamespace AND c.relname ~ '^(job|event)(_[0-9]+)?$'"
		" ORDER BY p.oid, kind, c.relname = kind DESC, nullif(substr(c.relname, length(kind) + 2), '')::numeric DESC";
	char *query = psprintf(kCommands, number);
	pg::sql(query, {}, true, 0);
	const auto n = static_cast<int>(SPI_processed);
	auto **commands = static_cast<const char **>(palloc(sizeof(char *) * static_cast<Size>(std::max(n, 1))));
	for (int i = 0; i < n; ++i)
		commands[i] = pg::spi_text(static_cast<uint64>(i), "command");
	Oid owner;
	int security;
	GetUserIdAndSecContext(&owner, &security);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, security);
	for (int i = 0; i < n; ++i)
		pg::sql(commands[i], {}, false, 0);
	SetUserIdAndSecContext(owner, security);
	pfree(commands);
	pfree(query);
}

bool depends_on_extension(Oid table, Oid extension)
{
	Relation rel = table_open(DependRelationId, AccessShareLock);
	ScanKeyData keys[2];
	bool found = false;

	ScanKeyInit(&keys[0], Anum_pg_depend_classid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(RelationRelationId));
	ScanKeyInit(&keys[1], Anum_pg_depend_objid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(table));
	SysScanDesc scan = systable_beginscan(rel, DependDependerIndexId, true, nullptr, 2, keys);
	while (HeapTuple tuple = systable_getnext(scan))
	{
		const auto *form = reinterpret_cast<Form_pg_depend>(GETSTRUCT(tuple));
		found = found || (form->refclassid == ExtensionRelationId && form->refobjid == extension);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

// Makes DROP EXTENSION drop the segment without CASCADE (H23).
void register_segment(Oid extension, const Segment &segment)
{
	for (const Oid table : {segment.job, segment.event})
	{
		ObjectAddress depender;
		ObjectAddress referenced;
		if (!OidIsValid(table) || depends_on_extension(table, extension))
			continue;
		ObjectAddressSet(depender, RelationRelationId, table);
		ObjectAddressSet(referenced, ExtensionRelationId, extension);
		recordDependencyOn(&depender, &referenced, DEPENDENCY_AUTO);
	}
}

// Until pg::leave_owner().
void set_in_scope(const char *name, const char *value)
{
	static_cast<void>(set_config_option(name, value, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false));
}

// --- lists segments from the catalogs alone: without locks on segments, VACUUM FULL blocks no session ---

bool has_index(Oid table, const pg::TableShape &shape, const pg::IndexSpec &spec)
{
	Relation rel = table_open(IndexRelationId, AccessShareLock);
	ScanKeyData key;
	bool found = false;
	ScanKeyInit(&key, Anum_pg_index_indrelid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(table));
	SysScanDesc scan = systable_beginscan(rel, IndexIndrelidIndexId, true, nullptr, 1, &key);
	while (HeapTuple tuple = systable_getnext(scan))
		found = found || pg::index_fits(table, tuple, shape, spec);
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

// Also true for a disabled trigger, and for one that pg_restore --disable-triggers has left in ordinary mode:
// tq_activate() resets them (enable_triggers).
bool has_reload_trigger(Oid table, Oid function)
{
	Relation rel = table_open(TriggerRelationId, AccessShareLock);
	ScanKeyData key;
	bool found = false;

	ScanKeyInit(&key, Anum_pg_trigger_tgrelid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(table));
	SysScanDesc scan = systable_beginscan(rel, TriggerRelidNameIndexId, true, nullptr, 1, &key);
	while (HeapTuple tuple = systable_getnext(scan))
	{
		const auto *form = reinterpret_cast<Form_pg_trigger>(GETSTRUCT(tuple));
		found = found || (form->tgfoid == function && !TRIGGER_FOR_ROW(form->tgtype));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

bool is_complete(Oid table, const pg::TableShape &shape, Oid trigger_function)
{
	if (!OidIsValid(table) || !has_reload_trigger(table, trigger_function))
		return false;
	for (int i = 0; i < shape.nlookups; i++)
		if (!has_index(table, shape, shape.lookups[i]))
			return false;
	return true;
}

// The number in "job_N" as create_segment writes it, or -1.
int32 number_of(const char *name)
{
	constexpr const char kPrefix[] = "job_";
	char again[NAMEDATALEN];

	if (std::strncmp(name, kPrefix, sizeof(kPrefix) - 1) != 0)
		return -1;
	const long number = std::strtol(name + sizeof(kPrefix) - 1, nullptr, 10);
	if (number < 0 || number > PG_INT32_MAX)
		return -1;
	snprintf(again, sizeof(again), "job_%ld", number);
	return std::strcmp(name, again) == 0 ? static_cast<int32>(number) : -1;
}

} // namespace

pg::Array<SegmentTables> list_segments()
{
	const Oid job_parent = table_oid("job");
	const Oid event_parent = table_oid("event");
	pg::Array<SegmentTables> list;

	if (!OidIsValid(job_parent) || !OidIsValid(event_parent))
		return list;

	List *jobs = find_inheritance_children(job_parent, NoLock);
	List *events = find_inheritance_children(event_parent, NoLock);
	// The syscache checks no rights: the session that attaches first may have none on the schema.
	const Oid trigger_function = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum("reload_trigger"),
												 PointerGetDatum(buildoidvector(nullptr, 0)),
												 ObjectIdGetDatum(get_namespace_oid(kSchema, false)));
	ListCell *cell;

	foreach (cell, jobs)
	{
		HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(lfirst_oid(cell)));
		if (!HeapTupleIsValid(tuple))
			continue; // dropped meanwhile
		const auto *form = reinterpret_cast<Form_pg_class>(GETSTRUCT(tuple));
		const int32 number = form->relkind == RELKIND_RELATION ? number_of(NameStr(form->relname)) : -1;
		if (number >= 0)
		{
			SegmentTables &segment = list.append(CurrentMemoryContext, {});
			const Oid event = table_oid("event", number);
			segment.tables = {number, lfirst_oid(cell), list_member_oid(events, event) ? event : InvalidOid};
			segment.complete = is_complete(segment.tables.job, kJobShape, trigger_function) &&
							   is_complete(segment.tables.event, kEventShape, trigger_function);
		}
		ReleaseSysCache(tuple);
	}
	std::sort(list.begin(), list.end(),
			  [](const SegmentTables &a, const SegmentTables &b) { return a.tables.number < b.tables.number; });
	list_free(jobs);
	list_free(events);
	return list;
}

Segment create_segment(Oid extension, int32 number, TimestampTz opened_at)
{
	const pg::OwnerScope scope = pg::enter_owner(extension);

	// keeps users' event triggers and the database's settings away from the DDL (H32)
	set_in_scope("session_replication_role", "replica");
	set_in_scope("default_tablespace", "");
	set_in_scope("client_min_messages", "warning");

	const Oid parents[] = {table_oid("job"), table_oid("event")};
	const Oid space = get_rel_tablespace(parents[0]);
	create_tables(number, OidIsValid(space) ? get_tablespace_name(space) : nullptr);

	const Segment segment{number, table_oid("job", number), table_oid("event", number)};
	copy_owner_and_acl(parents[0], segment.job);
	copy_owner_and_acl(parents[1], segment.event);
	register_segment(extension, segment);
	publish_segment(number);
	const Oid types[] = {INT4OID, TIMESTAMPTZOID};
	const Datum values[] = {Int32GetDatum(number), TimestampTzGetDatum(opened_at)};
	// a row with this number remains if its tables were dropped by hand
	pg::sql("INSERT INTO tq.segment (number, opened_at) VALUES ($1, $2) ON CONFLICT (number)"
			" DO UPDATE SET opened_at = excluded.opened_at, sealed_at = NULL, finished_at = NULL",
			{types, values}, false, 0);
	pg::leave_owner(scope);
	CommandCounterIncrement();
	return segment;
}

void enable_triggers(Oid extension)
{
	constexpr const char *kQuery =
		"SELECT format('ALTER TABLE ONLY tq.%I ENABLE %s TRIGGER %I', c.relname, mode, t.tgname) AS command"
		" FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid,"
		"  LATERAL (SELECT CASE WHEN t.tgname ~ '_row$' THEN 'REPLICA' ELSE 'ALWAYS' END AS mode) m"
		" WHERE c.relnamespace = 'tq'::regnamespace AND c.relkind = 'r' AND p.pronamespace = c.relnamespace"
		"  AND NOT t.tgisinternal AND t.tgenabled::text <> left(mode, 1) AND pg_has_role(c.relowner, 'USAGE')"
		" ORDER BY c.oid, t.oid";
	const pg::OwnerScope scope = pg::enter_owner(extension);

	set_in_scope("session_replication_role", "replica"); // as in create_segment
	pg::sql(kQuery, {}, true, 0);
	const uint64 n = SPI_processed;
	auto **commands = static_cast<const char **>(palloc(sizeof(char *) * (n + 1)));
	for (uint64 i = 0; i < n; ++i)
		commands[i] = pg::spi_text(i, "command");
	for (uint64 i = 0; i < n; ++i)
		pg::sql(commands[i], {}, false, 0);
	pg::leave_owner(scope);
}

void adopt_segments(Oid extension)
{
	const pg::OwnerScope scope = pg::enter_owner(extension);
	for (const SegmentTables &s : list_segments())
		if (s.tables.number != 0)
			register_segment(extension, s.tables);
	pg::leave_owner(scope);
	CommandCounterIncrement();
}

} // namespace tq::journal
