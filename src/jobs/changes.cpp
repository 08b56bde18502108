#include "jobs/changes.hpp"

#include "journal/changes.hpp"
#include "journal/terminal_states.hpp"
#include "shmem/waiting.hpp"
#include "pg/array.hpp"

namespace tq
{

namespace
{

constexpr int kChunk = 1000;

pg::Array<uint16_t> recorded; // queues of the open transaction, in TopMemoryContext

void note_recorded(Db &db, uint16_t queue)
{
	db.changes_clean.store(false);
	if (std::find(recorded.begin(), recorded.end(), queue) == recorded.end())
		recorded.append(TopMemoryContext, queue);
}

char code_of(State state) noexcept
{
	switch (state)
	{
		case State::delayed:
			return 'd';
		case State::blocked:
			return 'b';
		case State::running:
			return 'c';
		case State::terminal:
			return 'e';
		default:
			return 'r';
	}
}

// The state of a job once this transaction has committed.
State state_after(Db &db, const journal::EventRow &row) noexcept
{
	for (const journal::TerminalState &end : journal::kTerminalStates)
		if (end.event == row.type)
			return State::terminal;
	if (const Op *own = pending_enqueue(row.job_id))
		return state_at(*own, row.at);
	uint16_t queue = 0;
	const Ref ref = engine.find(index_of(db), row.job_id, &queue);
	if (ref == kNil)
		return State::ready;
	State state = State::ready;
	lock_queue(queue);
	const Entry &e = engine.entry(ref);
	if (engine.is(engine.queue(queue), ref, row.job_id))
		state = e.mark != Verb::none && e.owner == my_proc ? e.pending : e.state;
	unlock_queue(queue);
	return state;
}

struct Writer
{
	journal::ChangeRow *rows;
	uint64 xid;
	int n;
};

journal::ChangeRow &next_row(Writer *w, int left)
{
	if (w->rows == nullptr)
	{
		w->rows = static_cast<journal::ChangeRow *>(
			palloc(sizeof(journal::ChangeRow) * static_cast<Size>(std::min(left, kChunk))));
		w->xid = U64FromFullTransactionId(GetTopFullTransactionId());
	}
	journal::ChangeRow &row = w->rows[w->n++];
	row = journal::ChangeRow{};
	row.xid = w->xid;
	return row;
}

void flush(Writer *w)
{
	if (w->n > 0)
		journal::append_changes(w->rows, w->n);
	w->n = 0;
}

void finish(Writer *w)
{
	flush(w);
	if (w->rows != nullptr)
		pfree(w->rows);
}

} // namespace

void record_enqueues(Db &db, uint16_t queue, const journal::JobRow *rows, const Op *ops, int n)
{
	if (!records_changes(queue))
		return;
	note_recorded(db, queue);
	Writer w{};
	for (int i = 0; i < n; ++i)
	{
		journal::ChangeRow &row = next_row(&w, n - i);
		row.job_id = rows[i].id;
		row.at = rows[i].enqueued_at;
		row.queue_id = rows[i].queue_id;
		row.type = journal::kEnqueuedType;
		row.state = code_of(state_at(ops[i], row.at));
		if (w.n == kChunk)
			flush(&w);
	}
	finish(&w);
}

void record_events(Db &db, const journal::EventRow *rows, int n)
{
	Writer w{};
	for (int i = 0; i < n; ++i)
	{
		if (!records_changes(rows[i].queue))
			continue;
		note_recorded(db, rows[i].queue);
		journal::ChangeRow &row = next_row(&w, n - i);
		row.job_id = rows[i].job_id;
		row.at = rows[i].at;
		row.queue_id = engine.queue(rows[i].queue).id;
		row.step = rows[i].step;
		row.type = static_cast<char>(rows[i].type);
		row.state = code_of(state_after(db, rows[i]));
		if (w.n == kChunk)
			flush(&w);
	}
	finish(&w);
}

// The rows are visible by now, so a reader that registered before its snapshot either sees them or is woken.
void announce_changes() noexcept
{
	if (recorded.n == 0)
		return;
	const Db &db = *current_db();
	for (const uint16_t queue : recorded)
		wake_for_changes(db, queue);
	wake_for_changes(db, kNoQueue);
}

void forget_changes() noexcept { recorded.n = 0; }

} // namespace tq
