// tq_graph: the jobs that a job waits for and those that wait for it, over all levels, from the journal and tq.edge.
// Regime: PG; raises TQ004. Locks: a queue lock while an entry is copied; AccessShareLock on the segments' tables.
#include "api/args.hpp"
#include "api/names.hpp"
#include "database/attach.hpp"
#include "dependencies/awaited.hpp"
#include "dependencies/edges.hpp"
#include "jobs/job_options.hpp"
#include "jobs/job_rights.hpp"
#include "jobs/verbs.hpp"
#include "residency/loader.hpp"
#include "segments/segments.hpp"
#include "transaction/bulks.hpp"
#include "pg/function.hpp"
#include "pg/id_array.hpp"
#include "pg/json_values.hpp"
#include "pg/rows.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

using core::JobId;

constexpr int kMostShown = 10000;  // jobs
constexpr int kMostEdges = 100000; // looked at
constexpr int kMostParents = 1000; // of one job

constexpr pg::ColumnSpec kGraph[] = {
	{"level", INT4OID}, {"id", INT8OID},	{"parents", INT8ARRAYOID},		{"queue", TEXTOID},
	{"kind", TEXTOID},	{"state", TEXTOID}, {"on_parent_failure", TEXTOID},
};

struct Place
{
	JobId id;
	int32 level; // negative: above the first job
};

struct Walk
{
	Db &db;
	pg::RowSet rows;
	int most;
	int edges = 0; // looked at
	bool cut = false;
	HTAB *met = nullptr;
	MemoryContext context = nullptr; // of the list
	pg::Array<Place> list = {};
};

// Whether the caller sees the job, and its record.
struct Seen
{
	bool exists = false;
	journal::JobRow row;
	journal::Fold fold;
	Jsonb *freed = nullptr; // of the callback of a batch: the outcomes of its parents
	bool has_entry = false;
	core::Entry entry;
};

Seen see(Db &db, JobId id)
{
	Seen out;
	if (access_to_job(db, id, kMayKnow) != Access::granted)
		return out;
	out.has_entry = copy_current_entry(db, id, &out.entry);
	// as tq_get: newer than the entry, and with this transaction's own changes
	if (op_count() > 0 || has_bulks())
		CommandCounterIncrement();
	out.exists = find_in_segments(db, id, latest_snapshot, [&](const journal::Segment &tables, Snapshot snapshot) {
		ItemPointerData tid;
		if (!journal::find_job(tables, id, snapshot, false, &out.row, &tid))
			return false;
		out.fold = journal::Fold{};
		journal::fold_job(tables, id, snapshot, &out.fold);
		if (out.row.depends_on != nullptr && ARR_NDIM(out.row.depends_on) == 0)
			out.freed = journal::last_detail(tables, id, journal::EventType::freed, snapshot);
		return out.fold.state != journal::FoldState::moved;
	});
	return out;
}

const char *state_shown(const Seen &job)
{
	core::Micros due = core::kNever;
	if (!job.has_entry && job.fold.terminal())
		return name_of(job.fold.state);
	const core::Micros now = wall_now();
	const State state =
		job.has_entry ? job.entry.state : state_of(candidate_of(job.row, ItemPointerData{}), job.fold, now, &due);
	const TimestampTz expires_at = job.fold.expires_at(job.row.expires_at);
	const bool overdue =
		state != State::running && is_overdue(job.has_entry ? job.entry.attempt : job.fold.attempt, expires_at, now);
	return overdue ? name_of(journal::FoldState::expired) : name_of(state);
}

// The keys of an object, as far as they are ids and fit.
int ids_among_keys(Jsonb *object, JobId *out, int capacity)
{
	int n = 0;
	if (object == nullptr || !JB_ROOT_IS_OBJECT(object))
		return 0;
	JsonbIterator *it = JsonbIteratorInit(&object->root);
	JsonbValue v;
	for (JsonbIteratorToken t = JsonbIteratorNext(&it, &v, true); t != WJB_DONE && n < capacity;
		 t = JsonbIteratorNext(&it, &v, true))
		if (t == WJB_KEY)
		{
			const JobId id = strtoll(pg::string_of(v), nullptr, 10);
			if (id > 0)
				out[n++] = id;
		}
	return n;
}

// What a job waits for, or has waited for. The callback of a batch waits for the jobs of the batch: its row names none.
int parents_of(const Db &db, const Seen &job, JobId *out)
{
	if (job.row.depends_on == nullptr)
		return 0;
	Datum *ids = nullptr;
	int n = 0;
	deconstruct_array(job.row.depends_on, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE, &ids, nullptr, &n);
	n = std::min(n, kMostParents);
	for (int i = 0; i < n; ++i)
		out[i] = DatumGetInt64(ids[i]);
	if (n > 0)
		return n;
	static pg::Statement waiting = {
		"SELECT parent_id FROM tq.dependency WHERE child_id = $1 AND parent_id > 0 ORDER BY parent_id LIMIT $2",
		2,
		{INT8OID, INT8OID}};
	Datum values[] = {Int64GetDatum(job.row.id), Int64GetDatum(kMostParents)};
	const pg::OwnerScope scope = enter_registry(db);
	n = static_cast<int>(pg::run(waiting, values, nullptr));
	for (int i = 0; i < n; ++i)
		out[i] = pg::spi_int8(static_cast<uint64>(i), "parent_id");
	leave_registry(scope);
	return n > 0 ? n : ids_among_keys(job.freed, out, kMostParents);
}

// Adds jobs to the list, unless they are there, as far as they fit.
void add(Walk &w, const JobId *ids, int n, int32 level)
{
	w.cut = w.cut || w.edges >= kMostEdges;
	if (w.edges >= kMostEdges)
		return;
	w.edges += n;
	for (int i = 0; i < n; ++i)
	{
		bool known = false;
		if (w.list.n == w.most)
		{
			w.cut = w.cut || hash_search(w.met, &ids[i], HASH_FIND, nullptr) == nullptr;
			continue;
		}
		static_cast<void>(hash_search(w.met, &ids[i], HASH_ENTER, &known));
		if (!known)
			w.list.append(w.context, Place{ids[i], level});
	}
}

void visit(Walk &w, const Place &node)
{
	static JobId parents[kMostParents];
	const Seen job = see(w.db, node.id);
	if (!job.exists && node.level == 0)
		raise_no_job(node.id);
	pg::RowValues r;
	r.add_int(node.level);
	r.add_int8(node.id);
	if (!job.exists)
	{
		for (int i = r.n; i < static_cast<int>(lengthof(kGraph)); ++i)
			r.add_null();
		w.rows.put(r);
		return;
	}
	const int n = parents_of(w.db, job, parents);
	const uint16_t queue = queue_of_id(w.db, job.row.queue_id);
	r.add_pointer(pg::id_array(parents, n));
	r.add_text(queue != kNoQueue ? engine.queue(queue).name : nullptr);
	r.add_pointer(job.row.kind);
	r.add_text(state_shown(job));
	r.add_text(n == 0 ? nullptr : runs_anyway(job.row.options) ? "run" : "cancel");
	w.rows.put(r);
	if (node.level <= 0)
		add(w, parents, n, node.level - 1);
	if (node.level < 0)
		return;
	const int capacity = std::max(std::min(w.most, kMostEdges - w.edges), 0) + 1;
	auto *children = static_cast<JobId *>(palloc(sizeof(JobId) * static_cast<Size>(capacity)));
	const pg::OwnerScope scope = enter_registry(w.db);
	const int found = children_of(node.id, children, capacity);
	leave_registry(scope);
	w.cut = w.cut || found == capacity;
	add(w, children, std::min(found, capacity - 1), node.level + 1);
}

} // namespace

// id, max_jobs
TQ_FUNCTION(tq_graph)
{
	const core::JobId id = id_required(fcinfo, 0, "id");
	const int most = int_or(fcinfo, 1, "max_jobs", 1000, 1, kMostShown);
	Db &db = loaded_database(fcinfo);
	Walk w{
		.db = db, .rows = pg::begin_rows(fcinfo, pg::row_shape(kGraph)), .most = most, .context = CurrentMemoryContext};
	HASHCTL control{};
	control.keysize = control.entrysize = sizeof(core::JobId);
	control.hcxt = CurrentMemoryContext;
	w.met = hash_create("tq jobs met", 1024, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	MemoryContext each = AllocSetContextCreate(CurrentMemoryContext, "tq graph", ALLOCSET_DEFAULT_SIZES);
	add(w, &id, 1, 0);
	MemoryContext old = MemoryContextSwitchTo(each);
	for (int64 i = 0; i < w.list.n; ++i)
	{
		CHECK_FOR_INTERRUPTS();
		visit(w, Place{w.list[i]}); // the list grows
		MemoryContextReset(each);
	}
	MemoryContextSwitchTo(old);
	if (w.cut)
		ereport(NOTICE, (errmsg("the graph of job %lld has more jobs than are shown", static_cast<long long>(id)),
						 errhint("Raise max_jobs, or ask for a job further down or up.")));
	return static_cast<Datum>(0);
}

} // namespace tq
