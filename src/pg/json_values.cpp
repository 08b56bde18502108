#include "pg/json_values.hpp"

extern "C"
{
#include "utils/numeric.h"
}

#include "core/duration.hpp"
#include "core/rate_text.hpp"
#include "pg/interval.hpp"
#include "pg/near_words.hpp"
#include "pg/sizes.hpp"

namespace tq::pg
{

char *shown(const Jsonb *json)
{
	constexpr Size kMost = 160; // bytes
	auto *root = const_cast<JsonbContainer *>(&json->root);
	return cut_cstring(JsonbToCString(nullptr, root, static_cast<int>(VARSIZE(json))), kMost);
}

char *shown(const JsonbValue &v) { return shown(JsonbValueToJsonb(const_cast<JsonbValue *>(&v))); }

void bad_value(const Named &at, const char *value, const char *detail)
{
	ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					errmsg("%s \"%s\" has a wrong value: %s", at.word, at.key, value), errdetail("%s", detail)));
}

void bad_value(const Named &at, const JsonbValue &value, const char *detail) { bad_value(at, shown(value), detail); }

void not_an_object(const char *name, const Jsonb *value)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("%s must be a JSON object: %s", name, shown(value))));
}

char *string_of(const JsonbValue &v) { return pnstrdup(v.val.string.val, static_cast<Size>(v.val.string.len)); }

double number_in(const Named &at, const JsonbValue &v, double low, double high)
{
	if (v.type != jbvNumeric)
		bad_value(at, v, "It must be a number.");
	const double d = DatumGetFloat8(DirectFunctionCall1(numeric_float8_no_overflow, NumericGetDatum(v.val.numeric)));
	if (!(d >= low && d <= high))
		bad_value(at, v, psprintf("It must be between %.16g and %.16g.", low, high));
	return d;
}

int64 integer_in(const Named &at, const JsonbValue &v, int64 low, int64 high)
{
	const double d = number_in(at, v, static_cast<double>(low), static_cast<double>(high));
	const auto i = static_cast<int64>(d);
	if (static_cast<double>(i) != d)
		bad_value(at, v, "It must be a whole number.");
	return i;
}

bool boolean_in(const Named &at, const JsonbValue &v)
{
	if (v.type != jbvBool)
		bad_value(at, v, "It must be true or false.");
	return v.val.boolean;
}

Micros duration_in(const Named &at, const JsonbValue &v, Micros low, Micros high)
{
	Micros micros = 0;
	const char *text = v.type == jbvString ? string_of(v) : "";
	if (core::parse_duration(text, &micros) && micros >= low && micros <= high)
		return micros;
	const Interval *interval = interval_of(text); // the type accepts more units, and signs
	if (interval == nullptr)
		bad_value(at, v, "It must be a string with an interval, such as \"30 s\".");
	if (interval->month != 0)
		bad_value(at, v, "It must not contain months or years, which have no fixed length: use days.");
	const double d =
		static_cast<double>(interval->time) + static_cast<double>(interval->day) * static_cast<double>(kDay);
	if (!(d >= static_cast<double>(low) && d <= static_cast<double>(high)))
		bad_value(at, v,
				  psprintf("It must be at least %g s and at most %g days.", static_cast<double>(low) / 1e6,
						   static_cast<double>(high) / static_cast<double>(kDay)));
	return interval->time + static_cast<Micros>(interval->day) * kDay;
}

core::Rate rate_in(const Named &at, const JsonbValue &v)
{
	core::Rate rate;
	if (v.type != jbvString || !core::parse_rate(string_of(v), &rate))
		bad_value(at, v,
				  psprintf("It must be a string such as \"100/s\" or \"5/min\": 1 to %lld per s, min, h or d.",
						   static_cast<long long>(core::kMaxRateCount)));
	return rate;
}

int word_in(const Named &at, const JsonbValue &v, const char *const *words)
{
	const char *word = v.type == jbvString ? string_of(v) : "";
	for (int i = 0; words[i] != nullptr; ++i)
		if (strcmp(word, words[i]) == 0)
			return i;
	bad_value(at, v, psprintf("It must be one of %s.", listed(words)));
}

Members members_of(Jsonb *object, const char *const *known, const char *where)
{
	Members m{};
	m.it = JB_ROOT_COUNT(object) > 0 ? JsonbIteratorInit(&object->root) : nullptr;
	m.known = known;
	m.where = where;
	return m;
}

bool next_member(Members *m)
{
	JsonbIteratorToken token = WJB_DONE;
	while (m->it != nullptr && (token = JsonbIteratorNext(&m->it, &m->value, true)) != WJB_DONE)
	{
		if (token == WJB_VALUE && m->key != nullptr && m->value.type != jbvNull)
			return true;
		if (token != WJB_KEY)
			continue;
		m->key = string_of(m->value);
		int i = 0;
		while (m->known[i] != nullptr && strcmp(m->known[i], m->key) != 0)
			++i;
		if (m->known[i] == nullptr)
			unknown_word(psprintf("unknown key \"%s\" in %s", m->key, m->where), m->key, "Known keys are", m->known);
	}
	return false;
}

char *listed(const char *const *words)
{
	StringInfoData list;
	initStringInfo(&list);
	for (int i = 0; words[i] != nullptr; ++i)
		appendStringInfo(&list, "%s%s", i > 0 ? ", " : "", words[i]);
	return list.data;
}

void unknown_word(const char *message, const char *word, const char *known, const char *const *words)
{
	ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("%s", message),
					errhint("%s%s %s.", perhaps(nearest_word(word, words)), known, listed(words))));
}

} // namespace tq::pg
