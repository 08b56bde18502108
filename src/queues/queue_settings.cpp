#include "queues/queue_settings.hpp"

#include "guc.hpp"
#include "core/rate_text.hpp"
#include "queues/queue_names.hpp"
#include "pg/interval.hpp"
#include "pg/json_values.hpp"

namespace tq
{

namespace
{

using core::QueueSettings;
using pg::Named;

constexpr int64 kLongestMs = pg::kLongest / 1000;
constexpr char kEndTypes[] = "sdbxe"; // event types of ends, by bit
constexpr char kChannel[] = "tq"; // for queues whose `notify` is true
constexpr int64 kMaxExact = (int64{1} << 53) - 1; // the largest integer that every JSON reader keeps exact

enum class Type : uint8
{
	small,
	large,
	duration, // interval, kept in milliseconds
	number,
	boolean,
	flag,
	rate,
	burst,
	on_lost,
	group_order,
	order,
	retry,
	notify,
	follow_up,
};

struct KeySpec
{
	const char *name;
	Type type;
	int64 low = 0;
	int64 high = 0;
	int32_t QueueSettings::*small = nullptr;
	int64_t QueueSettings::*large = nullptr;
	bool QueueSettings::*boolean = nullptr;
	core::Flag QueueSettings::*flag = nullptr;
	core::Rate QueueSettings::*rate = nullptr;
};

constexpr KeySpec small(const char *name, int64 low, int64 high, int32_t QueueSettings::*where)
{
	return {.name = name, .type = Type::small, .low = low, .high = high, .small = where};
}

constexpr KeySpec duration(const char *name, int64 low, int64 high, int64_t QueueSettings::*where)
{
	return {.name = name, .type = Type::duration, .low = low, .high = high, .large = where};
}

constexpr KeySpec rate(const char *name, core::Rate QueueSettings::*where)
{
	return {.name = name, .type = Type::rate, .rate = where};
}

constexpr KeySpec kKeys[] = {
	{.name = "burst", .type = Type::burst},
	duration("cancel_grace", 0, kLongestMs, &QueueSettings::cancel_grace_ms),
	duration("change_retention", 0, kLongestMs, &QueueSettings::change_retention_ms),
	duration("dead_retention", 0, kLongestMs, &QueueSettings::dead_retention_ms),
	rate("enqueue_rate", &QueueSettings::enqueue_rate),
	small("executors", 0, 1000, &QueueSettings::executors),
	duration("expires_in", 0, kLongestMs, &QueueSettings::expires_in_ms),
	{.name = "fair", .type = Type::boolean, .boolean = &QueueSettings::fair},
	{.name = "follow_up", .type = Type::follow_up},
	small("group_max_running", 0, PG_INT32_MAX, &QueueSettings::group_max_running),
	{.name = "group_order", .type = Type::group_order},
	rate("group_rate", &QueueSettings::group_rate),
	duration("lease", 1, UINT32_MAX, &QueueSettings::lease_ms),
	duration("lease_grace", 0, 3600000, &QueueSettings::lease_grace_ms),
	small("max_attempts", 1, 65535, &QueueSettings::max_attempts),
	{.name = "max_depth", .type = Type::large, .low = 0, .high = kMaxExact, .large = &QueueSettings::max_depth},
	small("max_running", 0, PG_INT32_MAX, &QueueSettings::max_running),
	{.name = "notify", .type = Type::notify},
	{.name = "on_lost", .type = Type::on_lost},
	{.name = "order", .type = Type::order},
	small("priority", PG_INT16_MIN, PG_INT16_MAX, &QueueSettings::priority),
	rate("rate", &QueueSettings::rate),
	duration("retention", 0, kLongestMs, &QueueSettings::retention_ms),
	{.name = "retry", .type = Type::retry},
	{.name = "strict_timeout", .type = Type::flag, .flag = &QueueSettings::strict_timeout},
	duration("timeout", 0, kLongestMs, &QueueSettings::timeout_ms),
	duration("unique_for", 0, kLongestMs, &QueueSettings::unique_for_ms),
	{.name = "weight", .type = Type::number},
};
constexpr int kKeyCount = static_cast<int>(std::size(kKeys));

const KeySpec &spec_of(const JsonbValue &key)
{
	const char *name = pg::string_of(key);
	for (const KeySpec &k : kKeys)
		if (strcmp(k.name, name) == 0)
			return k;
	const char *known[kKeyCount + 1] = {};
	for (int i = 0; i < kKeyCount; ++i)
		known[i] = kKeys[i].name;
	pg::unknown_word(psprintf("unknown setting \"%s\"", name), name, "Known settings are", known);
}

// Parses true, false or the name of a channel; null: no channel.
const char *channel_in(const Named &at, const JsonbValue &v)
{
	if (v.type == jbvBool)
		return v.val.boolean ? kChannel : nullptr;
	const char *name = v.type == jbvString ? pg::string_of(v) : "";
	if (*name == '\0' || strlen(name) >= NAMEDATALEN)
		pg::bad_value(at, v,
					  psprintf("It must be true, false, or the name of a channel, of 1 to %d bytes.", NAMEDATALEN - 1));
	return name;
}

// Sets one key. `burst` receives the burst of `rate`, which may come later.
void set(QueueSettings &out, const KeySpec &k, const JsonbValue &v, int64 *burst)
{
	static constexpr const char *kOnLost[] = {"retry", "bury", "dead", nullptr}; // as enum OnLost, from 1
	static constexpr const char *kGroupOrder[] = {"strict", "loose", nullptr};
	static constexpr const char *kOrder[] = {"enqueued", "ready", nullptr};
	const Named at{"setting", k.name};
	switch (k.type)
	{
		case Type::small:
			out.*k.small = static_cast<int32_t>(pg::integer_in(at, v, k.low, k.high));
			break;
		case Type::large:
			out.*k.large = pg::integer_in(at, v, k.low, k.high);
			break;
		case Type::duration:
			// Rounds up, because zero often means none.
			out.*k.large = (pg::duration_in(at, v, k.low * 1000, k.high * 1000) + 999) / 1000;
			break;
		case Type::number:
			out.weight = static_cast<float>(pg::number_in(at, v, kMinWeight, kMaxWeight));
			break;
		case Type::boolean:
			out.*k.boolean = pg::boolean_in(at, v);
			break;
		case Type::flag:
			out.*k.flag = pg::boolean_in(at, v) ? core::Flag::on : core::Flag::off;
			break;
		case Type::rate:
			out.*k.rate = pg::rate_in(at, v);
			break;
		case Type::burst:
			*burst = pg::integer_in(at, v, 1, core::kMaxRateCount);
			break;
		case Type::on_lost:
			out.on_lost = static_cast<core::OnLost>(pg::word_in(at, v, kOnLost) + 1);
			break;
		case Type::group_order:
			out.loose_groups = pg::word_in(at, v, kGroupOrder) == 1;
			break;
		case Type::order:
			out.by_readiness = pg::word_in(at, v, kOrder) == 1;
			break;
		case Type::retry:
			if (v.type != jbvBinary)
				pg::bad_value(at, v, "It must be a JSON object.");
			out.retry = parse_retry(JsonbValueToJsonb(const_cast<JsonbValue *>(&v)), guc::retry);
			out.has_retry = true;
			break;
		case Type::follow_up:
			out.followed = parse_follow_up(v, "setting").on;
			break;
		case Type::notify:
			out.notifies = channel_in(at, v) != nullptr;
			break;
	}
}

} // namespace

uint8 end_bit(journal::EventType type) noexcept
{
	const char *at = type != journal::EventType{} ? strchr(kEndTypes, static_cast<char>(type)) : nullptr;
	return at != nullptr ? static_cast<uint8>(1 << (at - kEndTypes)) : 0;
}

FollowUp parse_follow_up(const JsonbValue &v, const char *word)
{
	static constexpr const char *kFollowKeys[] = {"by",		"kind",		"on",	 "outcome",
												  "payload", "priority", "queue", nullptr};
	// As kEndTypes.
	static constexpr const char *kEnds[] = {"succeeded", "dead", "buried", "cancelled", "expired", nullptr};
	FollowUp f;
	const Named whole{word, "follow_up"};
	if (v.type != jbvBinary || !JsonContainerIsObject(v.val.binary.data))
		pg::bad_value(whole, v, "It must be a JSON object.");
	pg::Members m = pg::members_of(JsonbValueToJsonb(const_cast<JsonbValue *>(&v)), kFollowKeys, "follow_up");
	while (pg::next_member(&m))
	{
		const Named at{word, psprintf("follow_up.%s", m.key)};
		if (strcmp(m.key, "priority") == 0)
			f.priority = static_cast<int32>(pg::integer_in(at, m.value, PG_INT16_MIN, PG_INT16_MAX));
		else if (strcmp(m.key, "outcome") == 0)
			f.outcome = pg::boolean_in(at, m.value);
		else if (strcmp(m.key, "payload") == 0)
			f.payload = pg::boolean_in(at, m.value);
		else if (strcmp(m.key, "on") == 0)
		{
			const bool array = m.value.type == jbvBinary && JsonContainerIsArray(m.value.val.binary.data);
			const int n = array ? static_cast<int>(JsonContainerSize(m.value.val.binary.data)) : 0;
			if (n == 0)
				pg::bad_value(at, m.value, psprintf("It must be an array of %s.", pg::listed(kEnds)));
			f.on = 0;
			for (int i = 0; i < n; ++i)
				f.on |= static_cast<uint8>(
					1 << pg::word_in(
						at, *getIthJsonbValueFromContainer(m.value.val.binary.data, static_cast<uint32>(i)), kEnds));
		}
		else if (strcmp(m.key, "by") == 0)
		{
			if (m.value.type != jbvString)
				pg::bad_value(at, m.value, "It must be a string.");
			f.by = pg::string_of(m.value);
		}
		else
		{
			if (m.value.type != jbvString)
				pg::bad_value(at, m.value, "It must be a name.");
			const char *name = pg::string_of(m.value);
			check_name(m.key, name);
			if (strcmp(m.key, "kind") == 0 && has_high_control(name, strlen(name)))
				pg::bad_value(at, m.value, "It must not contain control characters.");
			(strcmp(m.key, "queue") == 0 ? f.queue : f.kind) = name;
		}
	}
	if (f.queue == nullptr)
		pg::bad_value(whole, v, "It must name a \"queue\".");
	return f;
}

core::RetryPolicy parse_retry(Jsonb *json, const core::RetryPolicy &base, const char *word)
{
	static constexpr const char *kPolicies[] = {"exponential", "linear", "fixed", "list", nullptr}; // as enum Backoff
	static constexpr const char *kRetryKeys[] = {"policy", "delay",	 "max",		"factor",
												 "jitter", "delays", "on_lost", nullptr};
	core::RetryPolicy p = base;
	if (!JB_ROOT_IS_OBJECT(json))
		pg::bad_value(Named{word, "retry"}, pg::shown(json), "It must be a JSON object.");
	bool list = false, delays = false, max = false;
	pg::Members m = pg::members_of(json, kRetryKeys, "retry");
	while (pg::next_member(&m))
	{
		const char *key = m.key;
		const JsonbValue &v = m.value;
		const Named at{word, psprintf("retry.%s", key)};
		if (strcmp(key, "policy") == 0)
		{
			p.backoff = static_cast<core::Backoff>(pg::word_in(at, v, kPolicies));
			list = p.backoff == core::Backoff::list;
		}
		else if (strcmp(key, "delay") == 0)
			p.delay = pg::duration_in(at, v, 0, pg::kLongest);
		else if (strcmp(key, "max") == 0)
		{
			p.max = pg::duration_in(at, v, 0, pg::kLongest);
			max = true;
		}
		else if (strcmp(key, "on_lost") == 0)
			p.on_lost = pg::duration_in(at, v, 0, pg::kLongest);
		else if (strcmp(key, "factor") == 0)
			p.factor = static_cast<float>(pg::number_in(at, v, 1, 1000));
		else if (strcmp(key, "jitter") == 0)
			p.jitter = static_cast<float>(pg::number_in(at, v, 0, 1));
		else
		{
			if (v.type != jbvBinary || !JsonContainerIsArray(v.val.binary.data) ||
				JsonContainerIsScalar(v.val.binary.data))
				pg::bad_value(at, v, "It must be an array of intervals.");
			const int n = static_cast<int>(JsonContainerSize(v.val.binary.data));
			if (n < 1 || n > core::kMaxDelays)
				pg::bad_value(at, v, psprintf("It must have 1 to %d elements.", core::kMaxDelays));
			for (int i = 0; i < n; ++i)
				p.delays[i] = pg::duration_in(
					at, *getIthJsonbValueFromContainer(v.val.binary.data, static_cast<uint32>(i)), 0, pg::kLongest);
			p.ndelays = static_cast<uint8_t>(n);
			delays = true;
		}
	}
	// a list must have its own delays, because those of `base` may change
	if (list && !delays)
		pg::bad_value(Named{word, "retry"}, pg::shown(json), "The policy \"list\" needs \"delays\".");
	if (list && !max)
		p.max = pg::kLongest; // a list has its own delays and no cap
	return p;
}

const char *channel_of(Jsonb *settings)
{
	const JsonbValue *v =
		JB_ROOT_IS_OBJECT(settings)
			? getKeyJsonValueFromContainer(&settings->root, "notify", static_cast<int>(strlen("notify")), nullptr)
			: nullptr;
	return v != nullptr && v->type != jbvNull ? channel_in(Named{"setting", "notify"}, *v) : nullptr;
}

core::QueueSettings parse_settings(Jsonb *settings)
{
	QueueSettings out;
	if (!JB_ROOT_IS_OBJECT(settings))
		pg::not_an_object("settings", settings);
	JsonbIterator *it = JsonbIteratorInit(&settings->root);
	JsonbValue v;
	JsonbIteratorToken token;
	const KeySpec *spec = nullptr;
	int64 burst = 0;
	while ((token = JsonbIteratorNext(&it, &v, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			spec = &spec_of(v);
		else if (token == WJB_VALUE && spec != nullptr && v.type != jbvNull)
			set(out, *spec, v, &burst);
	}
	if (burst > 0 && out.rate.limits())
	{
		if (!core::burst_fits(out.rate, burst))
			pg::bad_value(Named{"setting", "burst"}, psprintf("%lld", static_cast<long long>(burst)),
						  "At this rate so many take more than ten years.");
		out.rate.burst = static_cast<int32_t>(burst);
	}
	return out;
}

} // namespace tq
