// The text format of Prometheus.
// Regime: PG; raises on lack of memory. Locks: none.
#pragma once

#include "pg/prelude.hpp"

#include "core/histogram.hpp"
#include "core/types.hpp"

namespace tq
{


inline double seconds(core::Micros t) noexcept { return static_cast<double>(t) / static_cast<double>(core::kSecond); }

struct Text
{
	StringInfoData s;
	const char *name; // of the family being written

	void family(const char *family_name, const char *type, const char *help)
	{
		name = family_name;
		appendStringInfo(&s, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
	}
	void counter(const char *family_name, const char *help) { family(family_name, "counter", help); }
	void gauge(const char *family_name, const char *help) { family(family_name, "gauge", help); }

	void label(const char *key, const char *value, bool first = true)
	{
		appendStringInfo(&s, "%s%s=\"", first ? "{" : ",", key);
		for (; *value != '\0'; ++value)
		{
			if (*value == '\\' || *value == '"' || *value == '\n')
				appendStringInfoChar(&s, '\\');
			appendStringInfoChar(&s, static_cast<char>(*value == '\n' ? 'n' : *value));
		}
		appendStringInfoChar(&s, '"');
	}
	void begin(const char *suffix = "") { appendStringInfo(&s, "%s%s", name, suffix); }
	void end(int64 value) { appendStringInfo(&s, " " INT64_FORMAT "\n", value); }
	void end(double value) { appendStringInfo(&s, " %.6f\n", value); }

	template <class Value> void sample(Value value)
	{
		begin();
		end(value);
	}
	template <class Value> void sample(const char *key, const char *label_value, Value value)
	{
		begin();
		label(key, label_value);
		appendStringInfoChar(&s, '}');
		end(value);
	}
	// A family with one sample.
	template <class Value> void one_counter(const char *family_name, const char *help, Value value)
	{
		counter(family_name, help);
		sample(value);
	}
	template <class Value> void one_gauge(const char *family_name, const char *help, Value value)
	{
		gauge(family_name, help);
		sample(value);
	}

	void histogram(const char *queue, const core::Histogram &h)
	{
		uint64 below = 0;
		for (int i = 0; i < core::Histogram::kBuckets; ++i)
		{
			below += h.counts[i];
			begin("_bucket");
			label("queue", queue);
			if (i < core::Histogram::kBuckets - 1)
				appendStringInfo(&s, ",le=\"%g\"}", seconds(core::Histogram::kBounds[i]));
			else
				appendStringInfoString(&s, ",le=\"+Inf\"}");
			end(static_cast<int64>(below));
		}
		begin("_sum");
		label("queue", queue);
		appendStringInfoChar(&s, '}');
		end(seconds(static_cast<core::Micros>(h.sum)));
		begin("_count");
		label("queue", queue);
		appendStringInfoChar(&s, '}');
		end(static_cast<int64>(below));
	}
};

} // namespace tq
