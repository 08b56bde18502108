#include "dependencies/awaited.hpp"

#include "guc.hpp"
#include "journal/terminal_states.hpp"
#include "residency/loader.hpp"
#include "segments/segments.hpp"
#include "pg/array.hpp"
#include "pg/function.hpp"

namespace tq
{

namespace
{

// The work of this transaction at its end. In TopTransactionContext, forgotten when it ends. A rolled-back savepoint
// leaves its part, which costs the resolver a check.
struct Open
{
	pg::Array<JobId> awaited; // parents
	pg::Array<JobId> notes;
	bool all_at_commit = false;
	Db *opened_in = nullptr; // the database whose Awaited::openers counts this transaction
	Oid opened_extension = InvalidOid; // its extension at that time
	SubTransactionId writing = InvalidSubTransactionId; // the subtransaction of tq's current statement
	uint32 emptied_before = 0; // Awaited::emptied before this transaction set its bits
};
Open tx;

// Leaves out most repeats; others cost the resolver a check.
void add(pg::Array<JobId> *list, JobId id)
{
	if (list->n == 0 || list->last() != id)
		list->append(TopTransactionContext, id);
}

uint32 bit_of_parent(JobId id) noexcept { return murmurhash32(static_cast<uint32>(id ^ (id >> 32))) % kAwaitedBits; }

const char *name_of_end(journal::FoldState state) noexcept
{
	for (const journal::TerminalState &e : journal::kTerminalStates)
		if (e.state == state)
			return e.name;
	return nullptr;
}

constexpr char kReplacedBy[] = "replaced_by";

JobId replaced_by_in(const journal::EventRow &cancelled)
{
	if (cancelled.detail == nullptr || !JB_ROOT_IS_OBJECT(cancelled.detail))
		return 0;
	const JsonbValue *v =
		getKeyJsonValueFromContainer(&cancelled.detail->root, kReplacedBy, strlen(kReplacedBy), nullptr);
	if (v == nullptr || v->type != jbvNumeric)
		return 0;
	const Datum number = DirectFunctionCall1(numeric_out, NumericGetDatum(v->val.numeric));
	return strtoll(DatumGetCString(number), nullptr, 10);
}

// Reads the outcome from one segment. False if the job is missing, or was moved to segment 0.
bool outcome_in(const journal::Segment &tables, JobId id, Snapshot snapshot, bool texts, ParentOutcome *out)
{
	journal::JobRow row;
	ItemPointerData tid;
	if (!journal::find_job(tables, id, snapshot, false, &row, &tid))
		return false;
	// texts are left out, because the job may have thousands of checkpoints
	pg::Array<journal::EventRow> events = journal::job_events(tables, id, snapshot, journal::Texts::none);
	journal::Fold fold;
	journal::EventRow last{};
	*out = ParentOutcome{};
	out->exists = true;
	out->queue_id = row.queue_id;
	for (const journal::EventRow &e : events)
	{
		const bool ended = fold.terminal();
		journal::fold_event(fold, e);
		// Purging the record of a job does not change how it has ended.
		if (fold.terminal() && !(ended && fold.state == journal::FoldState::purged))
		{
			last = e;
			out->state = name_of_end(fold.state);
		}
	}
	if (fold.state == journal::FoldState::moved)
		return false;
	out->ended = fold.terminal();
	out->again = fold.new_life;
	out->succeeded = out->ended && last.type == journal::EventType::succeeded;
	static_cast<void>(out->ended && texts && journal::find_event(tables, id, last.step, snapshot, &last, kMostOutcome));
	out->left_out = out->succeeded && last.left_out;
	if (out->succeeded)
		out->result = last.detail;
	else if (out->ended)
		out->error = last.reason;
	if (out->ended && last.type == journal::EventType::cancelled)
		out->replaced_by = replaced_by_in(last);
	events.free();
	return true;
}

} // namespace

ParentOutcome outcome_of(const Db &db, JobId id, bool texts)
{
	ParentOutcome out{};
	const bool found = find_in_segments(db, id, committed_snapshot, [&](const journal::Segment &tables, Snapshot s) {
		return outcome_in(tables, id, s, texts, &out);
	});
	return found ? out : ParentOutcome{};
}

bool is_being_retried(const Db &db, JobId id) noexcept
{
	bool yes = false;
	static_cast<void>(with_entry(db, id, [&yes](const Entry &e) noexcept {
		// the others leave an ended job as it is
		yes = e.state == State::placeholder && e.mark != Verb::none && e.mark != Verb::move && e.mark != Verb::erase &&
			  e.mark != Verb::forget;
	}));
	return yes;
}

bool is_being_erased(const Db &db, JobId id) noexcept
{
	bool yes = false;
	static_cast<void>(with_entry(db, id, [&yes](const Entry &e) noexcept { yes = e.mark == Verb::erase; }));
	return yes;
}

Jsonb *replaced_by(JobId newer)
{
	return DatumGetJsonbP(DirectFunctionCall1(
		jsonb_in, CStringGetDatum(psprintf("{\"%s\": %lld}", kReplacedBy, static_cast<long long>(newer)))));
}

pg::OwnerScope enter_registry(const Db &db)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	// Plans are cached, and may be made while a table is small that then grows fast.
	static_cast<void>(
		set_config_option("enable_seqscan", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false));
	tx.writing = GetCurrentSubTransactionId();
	return scope;
}

void leave_registry(const pg::OwnerScope &scope)
{
	tx.writing = InvalidSubTransactionId;
	pg::leave_owner(scope);
}

// --- the transaction that enqueues a child -------------------------------------------------------------------------

void keep_parents(Db &db) noexcept
{
	if (tx.opened_in == nullptr)
	{
		db.awaited.openers.fetch_add(1);
		tx.opened_in = &db;
		tx.opened_extension = db.extension;
	}
}

void await_parent(JobId parent) { add(&tx.awaited, parent); }

void note_at_commit(JobId parent_or_minus_child) { add(&tx.notes, parent_or_minus_child); }

bool dependencies_pending() noexcept { return tx.awaited.n > 0 || tx.notes.n > 0 || tx.all_at_commit; }

void await_before_commit() noexcept
{
	if (tx.awaited.n == 0)
		return;
	Db &db = *current_db();
	tx.emptied_before = db.awaited.emptied.load();
	for (const JobId parent : tx.awaited)
		await_now(db, parent);
	TQ_WAIT_POINT_NOFAIL("precommit-awaited");
}

void note_after_commit() noexcept
{
	if (!dependencies_pending())
		return;
	// A session that has not called tq may have written rows; current_db() is null there.
	for (int i = 0; tx.all_at_commit && preloaded() && i < guc::max_databases; ++i)
		if (db_at(i).used && db_at(i).database == MyDatabaseId)
			note_all(db_at(i));
	if (tx.awaited.n + tx.notes.n == 0)
		return;
	Db &db = *current_db();
	if (tx.awaited.n > 0 && (tx.emptied_before % 2 != 0 || db.awaited.emptied.load() != tx.emptied_before))
		note_all(db); // the resolver has emptied the filter meanwhile, or was emptying it (odd)
	for (const JobId note : tx.notes)
		note_for_resolver(db, note);
}

void end_dependencies() noexcept
{
	if (tx.opened_in != nullptr && tx.opened_in->used && tx.opened_in->extension == tx.opened_extension)
		tx.opened_in->awaited.openers.fetch_sub(1);
	tx = Open{};
}

void note_if_awaited(Db &db, JobId id) noexcept
{
	const uint32 bit = bit_of_parent(id);
	if ((db.awaited.filter[bit / 64].load() >> (bit % 64) & 1) != 0)
		note_for_resolver(db, id);
}

// --- shared by transactions and the resolver -------------------------------------------------------------------------

void await_now(Db &db, JobId parent) noexcept
{
	const uint32 bit = bit_of_parent(parent);
	const uint64 mask = uint64{1} << (bit % 64);
	if ((db.awaited.filter[bit / 64].load() & mask) != 0)
		return;
	// Counted before the bit is set: a process that sees a bit must not see a count of 0.
	db.awaited.bits.fetch_add(1);
	if ((db.awaited.filter[bit / 64].fetch_or(mask) & mask) != 0)
		db.awaited.bits.fetch_sub(1);
}

void note_for_resolver(Db &db, JobId what) noexcept
{
	constexpr uint32 kTries = 16;
	const uint32 start = murmurhash32(static_cast<uint32>(what));
	bool done = false;
	for (uint32 i = 0; i < kTries && !done; ++i)
	{
		int64 there = 0;
		done = db.awaited.noted[(start + i) % kNoted].compare_exchange_strong(there, what) || there == what;
	}
	if (!done)
		db.awaited.all.store(true);
	if (!db.awaited.some.exchange(true))
		wake_scheduler(db);
}

void note_all(Db &db) noexcept
{
	db.awaited.all.store(true);
	db.awaited.complete.store(false);
	if (!db.awaited.some.exchange(true))
		wake_scheduler(db);
}

int take_noted(Db &db, JobId *out) noexcept
{
	int n = 0;
	if (!db.awaited.some.exchange(false)) // before the notes are read: a later note sets it again
		return 0;
	for (std::atomic<int64> &slot : db.awaited.noted)
		if (slot.load() != 0)
			out[n++] = slot.exchange(0);
	return n;
}

void empty_filter(Db &db) noexcept
{
	db.awaited.emptied.fetch_add(1);
	for (std::atomic<uint64> &word : db.awaited.filter)
		db.awaited.bits.fetch_sub(static_cast<uint32>(std::popcount(word.exchange(0))));
	db.awaited.emptied.fetch_add(1);
}

bool are_awaited(const Db &db, JobId first, JobId last)
{
	if (db.awaited.openers.load() > 0)
		return true;
	if (db.awaited.complete.load() && db.awaited.bits.load() == 0)
		return false;
	static pg::Statement any = {
		"SELECT FROM tq.dependency WHERE parent_id BETWEEN $1 AND $2 AND state IS NULL LIMIT 1", 2, {INT8OID, INT8OID}};
	const pg::OwnerScope scope = enter_registry(db);
	Datum values[] = {Int64GetDatum(first), Int64GetDatum(last)};
	const bool yes = pg::run(any, values, nullptr) > 0;
	leave_registry(scope);
	return yes;
}

// On tq.dependency and tq.batch: after a write past tq the resolver reads both tables.
TQ_FUNCTION(tq_dependencies_changed)
{
	static_cast<void>(tq::pg::trigger_call(fcinfo, "tq.dependencies_changed", TRIGGER_EVENT_AFTER));
	if (tx.writing != GetCurrentSubTransactionId()) // a rolled-back subtransaction leaves its id here
		tx.all_at_commit = true;
	return PointerGetDatum(nullptr);
}

} // namespace tq
