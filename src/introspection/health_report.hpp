// What the files of tq_health share: its rows, one item each with a verdict and a hint.
// Regime: PG; may ereport. Locks: none.
#pragma once

#include "shmem/shared.hpp"
#include "pg/rows.hpp"

namespace tq
{

enum class Verdict : uint8
{
	ok,
	warn,
	error,
};

struct Report
{
	pg::RowSet rows;

	// Shows the hint only if the verdict is not ok.
	void put(const char *item, const char *value, Verdict verdict = Verdict::ok, const char *hint = nullptr) const
	{
		constexpr const char *kWords[] = {"ok", "warn", "error"};
		Datum values[4] = {CStringGetTextDatum(item), CStringGetTextDatum(value),
						   CStringGetTextDatum(kWords[static_cast<int>(verdict)]), static_cast<Datum>(0)};
		bool nulls[4] = {false, false, false, verdict == Verdict::ok || hint == nullptr};
		if (!nulls[3])
			values[3] = CStringGetTextDatum(hint);
		rows.put(values, nulls);
	}
};

inline long long ll(int64 n) noexcept { return static_cast<long long>(n); }

// Shows "used of max"; warns from nine tenths on.
inline void put_usage(const Report &r, const char *item, int64 used, int64 max, const char *hint)
{
	r.put(item, psprintf("%lld of %lld", ll(used), ll(max)), used * 10 >= max * 9 ? Verdict::warn : Verdict::ok, hint);
}

// Runs a query of one row as the extension's owner; with of_server, as the bootstrap superuser. Returns its columns as
// text in the caller's memory; null for SQL null.
void ask(const Db &db, const char *query, std::initializer_list<std::pair<const char *, char **>> answers,
		 bool of_server = false);

// Memory and its shares (health_storage.cpp), segments, and what keeps segments from being dropped.
void memory_items(const Report &r, const Db &db);
void share_items(const Report &r, const Db &db);
void segment_items(const Report &r, const Db &db, core::Micros now);
void horizon_item(const Report &r, const Db &db);

} // namespace tq
