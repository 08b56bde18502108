#include "live/queue_settings.hpp"

extern "C"
{
#include "utils/numeric.h"
}

#include "guc.hpp"
#include "pg/interval.hpp"

namespace tq::live
{

namespace
{

enum class Type : uint8
{
	integer,
	duration, // interval, kept in milliseconds
	retry,
	later, // known, but not served by this version
};

struct KeySpec
{
	const char *name;
	Type type;
	int64 low;
	int64 high;
};

constexpr KeySpec kKeys[] = {
	{"burst", Type::later, 0, 0},
	{"dead_retention", Type::duration, 0, INT64_MAX},
	{"enqueue_rate", Type::later, 0, 0},
	{"expires_in", Type::later, 0, 0},
	{"fair", Type::later, 0, 0},
	{"group_max_running", Type::later, 0, 0},
	{"group_order", Type::later, 0, 0},
	{"group_rate", Type::later, 0, 0},
	{"lease", Type::duration, 1, UINT32_MAX},
	{"lease_grace", Type::duration, 0, 3600000},
	{"max_attempts", Type::integer, 1, 65535},
	{"max_depth", Type::later, 0, 0},
	{"max_running", Type::later, 0, 0},
	{"notify", Type::later, 0, 0},
	{"on_lost", Type::later, 0, 0},
	{"priority", Type::integer, PG_INT16_MIN, PG_INT16_MAX},
	{"rate", Type::later, 0, 0},
	{"retention", Type::duration, 0, INT64_MAX},
	{"retry", Type::retry, 0, 0},
	{"strict_timeout", Type::later, 0, 0},
	{"timeout", Type::later, 0, 0},
	{"unique_for", Type::later, 0, 0},
	{"weight", Type::later, 0, 0},
};

[[noreturn]] void bad(const char *key, const char *detail)
{
	ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("setting \"%s\" has a wrong value", key), errdetail("%s", detail)));
}

char *string_of(const JsonbValue &v) { return pnstrdup(v.val.string.val, v.val.string.len); }

double number_of(const JsonbValue &v)
{
	return DatumGetFloat8(DirectFunctionCall1(numeric_float8_no_overflow, NumericGetDatum(v.val.numeric)));
}

double number_in(const char *key, const JsonbValue &v, double low, double high)
{
	if (v.type != jbvNumeric)
		bad(key, "It must be a number.");
	const double d = number_of(v);
	if (!(d >= low && d <= high))
		bad(key, psprintf("It must be between %g and %g.", low, high));
	return d;
}

// A duration is a string that interval accepts.
Micros duration_in(const char *key, const JsonbValue &v)
{
	if (v.type != jbvString)
		bad(key, "It must be a string with an interval, such as \"30 s\".");
	const Datum d = DirectFunctionCall3(interval_in, CStringGetDatum(string_of(v)), ObjectIdGetDatum(InvalidOid),
										Int32GetDatum(-1));
	return pg::interval_micros(DatumGetIntervalP(d), key, 0);
}

} // namespace

core::RetryPolicy parse_retry(Jsonb *json, const core::RetryPolicy &base)
{
	core::RetryPolicy p = base;
	if (!JB_ROOT_IS_OBJECT(json))
		bad("retry", "It must be a JSON object.");
	JsonbIterator *it = JsonbIteratorInit(&json->root);
	JsonbValue v;
	JsonbIteratorToken token;
	char *key = nullptr;
	while ((token = JsonbIteratorNext(&it, &v, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			key = string_of(v);
		if (token != WJB_VALUE || key == nullptr || v.type == jbvNull)
			continue;
		if (strcmp(key, "policy") == 0)
		{
			const char *name = v.type == jbvString ? string_of(v) : "";
			if (strcmp(name, "exponential") == 0)
				p.backoff = core::Backoff::exponential;
			else if (strcmp(name, "linear") == 0)
				p.backoff = core::Backoff::linear;
			else if (strcmp(name, "fixed") == 0)
				p.backoff = core::Backoff::fixed;
			else if (strcmp(name, "list") == 0)
				p.backoff = core::Backoff::list;
			else
				bad("retry.policy", "It must be one of exponential, linear, fixed, list.");
		}
		else if (strcmp(key, "delay") == 0)
			p.delay = duration_in("retry.delay", v);
		else if (strcmp(key, "max") == 0)
			p.max = duration_in("retry.max", v);
		else if (strcmp(key, "on_lost") == 0)
			p.on_lost = duration_in("retry.on_lost", v);
		else if (strcmp(key, "factor") == 0)
			p.factor = static_cast<float>(number_in("retry.factor", v, 1, 1000));
		else if (strcmp(key, "jitter") == 0)
			p.jitter = static_cast<float>(number_in("retry.jitter", v, 0, 1));
		else if (strcmp(key, "delays") == 0)
		{
			if (v.type != jbvBinary || !JsonContainerIsArray(v.val.binary.data))
				bad("retry.delays", "It must be an array of intervals.");
			const int n = static_cast<int>(JsonContainerSize(v.val.binary.data));
			if (n < 1 || n > core::kMaxDelays)
				bad("retry.delays", psprintf("It must have 1 to %d elements.", core::kMaxDelays));
			for (int i = 0; i < n; ++i)
				p.delays[i] = duration_in("retry.delays", *getIthJsonbValueFromContainer(v.val.binary.data, static_cast<uint32>(i)));
			p.ndelays = static_cast<uint8_t>(n);
		}
		else
			ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("unknown key \"%s\" in retry", key),
							errhint("Known keys are policy, delay, max, factor, jitter, delays, on_lost.")));
	}
	if (p.backoff == core::Backoff::list && p.ndelays == 0)
		bad("retry", "The policy \"list\" needs \"delays\".");
	return p;
}

core::QueueSettings parse_settings(Jsonb *settings)
{
	core::QueueSettings out;
	if (!JB_ROOT_IS_OBJECT(settings))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("settings must be a JSON object")));
	JsonbIterator *it = JsonbIteratorInit(&settings->root);
	JsonbValue v;
	JsonbIteratorToken token;
	const KeySpec *spec = nullptr;
	while ((token = JsonbIteratorNext(&it, &v, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
		{
			const char *key = string_of(v);
			spec = nullptr;
			for (const KeySpec &k : kKeys)
				if (strcmp(k.name, key) == 0)
					spec = &k;
			if (spec == nullptr)
			{
				StringInfoData known;
				initStringInfo(&known);
				for (const KeySpec &k : kKeys)
					appendStringInfo(&known, "%s%s", known.len > 0 ? ", " : "", k.name);
				ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("unknown setting \"%s\"", key),
								errhint("Known settings are %s.", known.data)));
			}
			continue;
		}
		if (token != WJB_VALUE || spec == nullptr || v.type == jbvNull)
			continue;
		int64 value = 0;
		switch (spec->type)
		{
			case Type::later:
				ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED), errmsg("setting \"%s\" is not supported yet", spec->name)));
			case Type::retry:
				if (v.type != jbvBinary)
					bad("retry", "It must be a JSON object.");
				out.retry = parse_retry(JsonbValueToJsonb(&v), guc::retry);
				out.has_retry = true;
				continue;
			case Type::integer:
			{
				const double d = number_in(spec->name, v, static_cast<double>(spec->low), static_cast<double>(spec->high));
				value = static_cast<int64>(d);
				if (static_cast<double>(value) != d)
					bad(spec->name, "It must be a whole number.");
				break;
			}
			case Type::duration:
				value = duration_in(spec->name, v) / 1000;
				if (value < spec->low || value > spec->high)
					bad(spec->name, psprintf("It must be between %lld and %lld ms.", static_cast<long long>(spec->low),
											 static_cast<long long>(spec->high)));
				break;
		}
		if (strcmp(spec->name, "priority") == 0)
			out.priority = static_cast<int32>(value);
		else if (strcmp(spec->name, "max_attempts") == 0)
			out.max_attempts = static_cast<int32>(value);
		else if (strcmp(spec->name, "lease") == 0)
			out.lease_ms = value;
		else if (strcmp(spec->name, "lease_grace") == 0)
			out.lease_grace_ms = value;
		else if (strcmp(spec->name, "retention") == 0)
			out.retention_ms = value;
		else if (strcmp(spec->name, "dead_retention") == 0)
			out.dead_retention_ms = value;
	}
	return out;
}

const core::RetryPolicy &server_retry() noexcept { return guc::retry; }

} // namespace tq::live
