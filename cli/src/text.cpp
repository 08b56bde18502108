#include "text.hpp"

#include <tq/utf8.hpp>

#include <boost/json.hpp>

#include <charconv>
#include <cmath>
#include <map>
#include <stdexcept>

namespace json = boost::json;

namespace cli
{

namespace
{

constexpr std::size_t kMaxDepth = 1000;

} // namespace

tq::Duration parse_duration(std::string_view text)
{
	static const std::map<std::string_view, double> kUnits = {{"us", 1},	 {"ms", 1e3},	{"", 1e6},
															  {"s", 1e6},	 {"sec", 1e6},	{"m", 60e6},
															  {"min", 60e6}, {"h", 3600e6}, {"d", 86400e6}};
	double number = 0;
	const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
	std::string_view unit = text.substr(std::size_t(end - text.data()));
	while (!unit.empty() && unit.front() == ' ')
		unit.remove_prefix(1);
	const auto found = kUnits.find(unit);
	if (error != std::errc() || found == kUnits.end() || !std::isfinite(number) || number < 0 ||
		number * found->second > 9e15)
		throw std::invalid_argument("\"" + std::string(text) +
									"\" is no length of time; examples are 500ms, 30s, 10m, 2h");
	return tq::Duration(std::llround(number * found->second));
}

bool is_json(std::string_view text)
{
	json::parse_options options;
	options.max_depth = kMaxDepth;
	boost::system::error_code error;
	json::parse(text, error, {}, options);
	return !error;
}

std::string json_string(std::string_view text) { return json::serialize(json::string(tq::valid_utf8(text))); }

} // namespace cli
