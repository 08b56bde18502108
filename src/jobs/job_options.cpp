#include "jobs/job_options.hpp"

#include "api/args.hpp"
#include "queues/follow_up_setting.hpp"
#include "queues/queue_names.hpp"
#include "queues/queue_settings.hpp"
#include "pg/interval.hpp"
#include "pg/json_values.hpp"

namespace tq
{

namespace
{

using pg::Named;

constexpr int kMaxTags = 32;
constexpr const char *kOnParentFailure[] = {"cancel", "run", nullptr};
constexpr const char *kOptions[] = {"batch", "follow_up",  "lease",	 "on_parent_failure",
									"tags",	 "unique_for", "weight", nullptr};

ArrayType *tags_in(const Named &at, const JsonbValue &v)
{
	if (v.type != jbvBinary || !JsonContainerIsArray(v.val.binary.data))
		pg::bad_value(at, v, "It must be an array of strings.");
	const int n = static_cast<int>(JsonContainerSize(v.val.binary.data));
	if (n > kMaxTags)
		pg::bad_value(at, v, psprintf("It must have at most %d elements.", kMaxTags));
	Datum tags[kMaxTags];
	for (int i = 0; i < n; ++i)
	{
		const JsonbValue *tag = getIthJsonbValueFromContainer(v.val.binary.data, static_cast<uint32>(i));
		if (tag->type != jbvString)
			pg::bad_value(at, *tag, "It must be an array of strings.");
		check_bytes("a tag", tag->val.string.val, static_cast<size_t>(tag->val.string.len), kTagMax,
					HighControl::refused_in_utf8);
		tags[i] = PointerGetDatum(cstring_to_text_with_len(tag->val.string.val, tag->val.string.len));
	}
	return n > 0 ? construct_array(tags, n, TEXTOID, -1, false, TYPALIGN_INT) : nullptr;
}

} // namespace

void check_key(const char *name, const text *key, int max)
{
	check_bytes(name, VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key), static_cast<size_t>(max), HighControl::refused_in_utf8);
}

void check_row_name(const char *name, const text *key, int max)
{
	check_bytes(name, VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key), static_cast<size_t>(max), HighControl::refused);
}

const char *const *job_option_names() noexcept { return kOptions; }

UniqueMode parse_unique_mode(const text *mode)
{
	// in the order of the enum
	static constexpr const char *kModes[] = {"skip",		"skip_waiting", "ignore", "replace", "replace_waiting",
											 "keep_run_at", "error",		nullptr};
	const char *name = text_to_cstring(mode);
	for (int i = 0; kModes[i] != nullptr; ++i)
		if (strcmp(name, kModes[i]) == 0)
			return static_cast<UniqueMode>(i);
	pg::unknown_word(psprintf("unknown unique_mode \"%s\"", name), name, "Known modes are", kModes);
}

Jsonb *checked_retry(Jsonb *retry)
{
	static_cast<void>(parse_retry(retry, core::RetryPolicy{}, "argument"));
	return retry;
}

void parse_options(Jsonb *options, journal::JobRow *row, core::Micros *unique_for)
{
	if (!JB_ROOT_IS_OBJECT(options))
		pg::not_an_object("options", options);
	pg::Members m = pg::members_of(options, kOptions, "options");
	while (pg::next_member(&m))
	{
		const char *key = m.key;
		const JsonbValue &v = m.value;
		const Named at{"option", key};
		if (strcmp(key, "lease") == 0)
			row->lease = pg::duration_in(at, v, 1000, kLongestLease);
		else if (strcmp(key, "unique_for") == 0)
			*unique_for = pg::duration_in(at, v, 0, pg::kLongest);
		else if (strcmp(key, "weight") == 0)
			row->weight = static_cast<float4>(pg::number_in(at, v, kMinWeight, kMaxWeight));
		else if (strcmp(key, "tags") == 0)
			row->tags = tags_in(at, v);
		else if (strcmp(key, "follow_up") == 0)
		{
			if (v.type != jbvBool || v.val.boolean) // false: no follow-up, even if the queue has one
				static_cast<void>(parse_follow_up(v, "option"));
		}
		else if (strcmp(key, "batch") == 0)
			static_cast<void>(pg::integer_in(at, v, 1, journal::kLastId));
		else
			static_cast<void>(pg::word_in(at, v, kOnParentFailure));
	}
	row->options = options;
}

namespace
{

const JsonbValue *member(Jsonb *options, const char *key)
{
	if (options == nullptr || !JB_ROOT_IS_OBJECT(options))
		return nullptr;
	return getKeyJsonValueFromContainer(&options->root, key, static_cast<int>(strlen(key)), nullptr);
}

} // namespace

void check_option_target(Db &db, Jsonb *options)
{
	const JsonbValue *v = member(options, "follow_up");
	if (v != nullptr && v->type == jbvBinary)
		check_target(db, parse_follow_up(*v, "option"));
}

bool runs_anyway(Jsonb *options)
{
	const JsonbValue *v = member(options, "on_parent_failure");
	return v != nullptr && v->type == jbvString && strcmp(pg::string_of(*v), "run") == 0;
}

core::JobId batch_in(Jsonb *options)
{
	const JsonbValue *v = member(options, "batch");
	return v != nullptr && v->type == jbvNumeric ? pg::integer_in({"option", "batch"}, *v, 1, journal::kLastId) : 0;
}

core::Micros own_unique_for(Jsonb *options)
{
	const JsonbValue *v = member(options, "unique_for");
	const Interval *interval = v != nullptr && v->type == jbvString ? pg::interval_of(pg::string_of(*v)) : nullptr;
	if (interval == nullptr || interval->month != 0)
		return core::kUnset;
	return interval->time + static_cast<core::Micros>(interval->day) * pg::kDay;
}

} // namespace tq
