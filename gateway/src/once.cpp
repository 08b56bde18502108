#include "once.hpp"

#include "problem.hpp"
#include "raw_json.hpp"
#include "text.hpp"

#include <algorithm>

namespace gateway
{

namespace
{

constexpr std::size_t kMaxKey = 255;
constexpr const char *kWindow = "\"unique_for\":\"24 h\"";

std::string options_with_window(const tq::Value &given)
{
	if (!given)
		return "{" + std::string(kWindow) + "}";
	const auto members = members_of(*given);
	if (members.empty())
		return "{" + std::string(kWindow) + "}";
	if (std::any_of(members.begin(), members.end(), [](const auto &one) { return one.first == "unique_for"; }))
		throw Refusal(400, "Idempotency-Key and \"unique_for\" do not go together");
	return given->substr(0, given->size() - 1) + "," + kWindow + "}";
}

} // namespace

void make_once(std::vector<Given> &arguments, const std::string &role, const std::string &key)
{
	if (key.size() > kMaxKey)
		throw Refusal(400, "the Idempotency-Key has more than 255 bytes");
	tq::Value payloads;
	for (const Given &given : arguments)
	{
		if (given.name == "unique_key" || given.name == "unique_keys" || given.name == "unique_mode")
			throw Refusal(400, "Idempotency-Key and \"" + given.name + "\" do not go together");
		if (given.name == "payloads")
			payloads = given.value;
	}
	const auto name = [&](std::size_t number) {
		return "idempotency:" + sha256(role + '\n' + key + '\n' + std::to_string(number));
	};
	try
	{
		std::string options = options_with_window(take(arguments, "options"));
		arguments.push_back({"options", "jsonb", std::move(options)});
	}
	catch (const BadJson &)
	{
		throw Refusal(400, "\"options\" must be an object");
	}
	if (!payloads)
	{
		arguments.push_back({"unique_key", "text", name(0)});
		return;
	}
	std::vector<std::string> keys;
	for (std::size_t i = 0; i < tq::parse_array(*payloads).size(); ++i)
		keys.push_back(name(i + 1));
	arguments.push_back({"unique_keys", "text[]", tq::value(keys)});
}

} // namespace gateway
