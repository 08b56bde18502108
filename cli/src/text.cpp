#include "text.hpp"

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
constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// The length of the valid character at the beginning of the text, or 0.
std::size_t character_length(std::string_view text)
{
	const auto byte = [text](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
	const unsigned first = byte(0);
	if (first == 0)
		return 0;
	if (first < 0x80)
		return 1;
	const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
	if (first < 0xc2 || first > 0xf4)
		return 0;
	for (std::size_t i = 1; i < length; ++i)
	{
		if ((byte(i) & 0xc0) != 0x80)
			return 0;
	}
	// overlong forms, surrogates, and what is beyond Unicode
	const unsigned second = byte(1);
	if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) || (first == 0xf0 && second < 0x90) ||
		(first == 0xf4 && second > 0x8f))
		return 0;
	return length;
}

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

std::string valid_utf8(std::string_view text)
{
	std::string valid;
	while (!text.empty())
	{
		const std::size_t length = character_length(text);
		valid += length ? text.substr(0, length) : kReplacement;
		text.remove_prefix(length ? length : 1);
	}
	return valid;
}

std::string json_string(std::string_view text) { return json::serialize(json::string(valid_utf8(text))); }

} // namespace cli
