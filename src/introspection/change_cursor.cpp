#include "introspection/change_cursor.hpp"

namespace tq
{

namespace
{

// log/xmin:xmax:xip,xip/xid.queue.job.step; the middle is a pg_snapshot, and the last part may be missing. `log` is the
// random name in tq.change_log, which is not dumped: ids of transactions mean nothing in another server.

bool parse_number(const char **at, uint64 *number) noexcept
{
	const char *s = *at;
	*number = 0;
	if (*s < '0' || *s > '9')
		return false;
	for (; *s >= '0' && *s <= '9'; ++s)
	{
		if (*number > (PG_INT64_MAX - 9) / 10)
			return false;
		*number = *number * 10 + static_cast<uint64>(*s - '0');
	}
	*at = s;
	return true;
}

bool skip(const char **at, char c) noexcept
{
	if (**at != c)
		return false;
	++*at;
	return true;
}

bool parse_snapshot(const char **at, Seen *seen)
{
	uint64 xmin = 0; // the first of `running`, so it is not needed
	if (!parse_number(at, &xmin) || !skip(at, ':') || !parse_number(at, &seen->next) || !skip(at, ':'))
		return false;
	uint64 last = 0;
	for (bool more = **at >= '0' && **at <= '9'; more; more = skip(at, ','))
	{
		uint64 xid = 0;
		if (!parse_number(at, &xid) || xid <= last || xid >= seen->next)
			return false;
		seen->running.append(CurrentMemoryContext, xid);
		last = xid;
	}
	return true;
}

bool parse_part(const char **at, Seen *seen) noexcept
{
	uint64 queue = 0, job = 0, step = 0;
	if (!parse_number(at, &seen->part) || !skip(at, '.') || !parse_number(at, &queue) || !skip(at, '.') ||
		!parse_number(at, &job) || !skip(at, '.') || !parse_number(at, &step) || queue > PG_INT32_MAX ||
		step > PG_INT32_MAX || !std::binary_search(seen->running.begin(), seen->running.end(), seen->part))
		return false;
	seen->part_queue = static_cast<int32>(queue);
	seen->part_job = static_cast<int64>(job);
	seen->part_step = static_cast<int32>(step);
	return true;
}

void append_number(StringInfo s, uint64 number, char end)
{
	appendStringInfo(s, UINT64_FORMAT, number);
	if (end != '\0')
		appendStringInfoChar(s, end);
}

// Adds the epoch to the id of a transaction in a snapshot.
uint64 widened(TransactionId xid) noexcept
{
	const uint64 next = U64FromFullTransactionId(ReadNextFullTransactionId());
	const uint64 full = (next >> 32 << 32) | xid;
	return full > next ? full - (uint64{1} << 32) : full;
}

} // namespace

ChangeCursor parse_cursor(const char *text)
{
	ChangeCursor c{};
	const char *at = text;
	while (at - text < kLogName && ((*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'f')))
		++at;
	std::memcpy(c.log, text, static_cast<size_t>(at - text));
	if (!skip(&at, '/') || !parse_snapshot(&at, &c.seen) || (skip(&at, '/') && !parse_part(&at, &c.seen)) ||
		*at != '\0')
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("after is not a cursor of tq_changes"),
						errhint("Pass a next_after that tq_changes returned, \"now\", or null.")));
	return c;
}

void write_set(StringInfo s, const char *log, const Seen &seen)
{
	appendStringInfo(s, "%s/", log);
	append_number(s, seen.running.n > 0 ? seen.running[0] : seen.next, ':');
	append_number(s, seen.next, ':');
	for (int64 i = 0; i < seen.running.n; ++i)
		append_number(s, seen.running[i], i + 1 < seen.running.n ? ',' : '\0');
}

Seen seen_by(Snapshot snapshot)
{
	Seen seen;
	const FullTransactionId own = GetTopFullTransactionIdIfAny();
	seen.next = widened(snapshot->xmax);
	seen.running.reserve(CurrentMemoryContext, int64{snapshot->xcnt} + 1);
	for (uint32 i = 0; i < snapshot->xcnt; ++i)
		seen.running.push(widened(snapshot->xip[i]));
	if (FullTransactionIdIsValid(own) && U64FromFullTransactionId(own) < seen.next)
		seen.running.push(U64FromFullTransactionId(own));
	std::sort(seen.running.begin(), seen.running.end());
	return seen;
}

bool includes(const Seen &all, const Seen &some) noexcept
{
	if (some.next > all.next)
		return false;
	for (const uint64 xid : all.running)
		if (some.has(xid))
			return false;
	return true;
}

bool parse_deleted(const char *snapshot, const char *last, Seen *gone)
{
	uint64 greatest = 0;
	if (snapshot == nullptr || last == nullptr || !parse_snapshot(&snapshot, gone) || !parse_number(&last, &greatest))
		return false;
	gone->next = std::min(gone->next, greatest + 1);
	return true;
}

} // namespace tq
