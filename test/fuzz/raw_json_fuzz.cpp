// libFuzzer: JSON that is taken apart. What is accepted is JSON for the library's own parser, too, and the parts put
// together again are taken apart in the same way.
#include "../../gateway/src/raw_json.cpp" // with all of the library, which a server has as a shared one

#include <boost/json/src.hpp>

#include <cstdio>
#include <cstdlib>

namespace
{

using gateway::Raw;

void check(bool right, const char *what, std::string_view text)
{
	if (right)
		return;
	std::fprintf(stderr, "%s: %.*s\n", what, int(text.size()), text.data());
	std::abort();
}

void check_part(const Raw &part, std::string_view text)
{
	boost::json::error_code error;
	boost::json::parse_options options;
	options.max_depth = 6000;
	const boost::json::value value = boost::json::parse(part.text, error, {}, options);
	check(!error, "a part is no JSON", text);
	check((part.kind == Raw::kString) == value.is_string(), "a part is of another kind", text);
	check(part.kind != Raw::kString || part.string == value.get_string(), "a string has other characters", text);
}

void check_object(std::string_view text)
{
	std::string again;
	std::vector<std::pair<std::string, Raw>> parts;
	try
	{
		parts = gateway::members_of(text);
	}
	catch (const gateway::BadJson &)
	{
		return;
	}
	for (const auto &[name, part] : parts)
	{
		check_part(part, text);
		again += (again.empty() ? "{" : ",") + gateway::quoted(name) + ":" + part.text;
	}
	again += again.empty() ? "{}" : "}";
	const auto twice = gateway::members_of(again);
	check(twice.size() == parts.size(), "another number of members", text);
	for (std::size_t i = 0; i < parts.size(); ++i)
		check(twice[i].first == parts[i].first && twice[i].second.text == parts[i].second.text, "other members", text);
}

void check_array(std::string_view text)
{
	std::string again;
	std::vector<Raw> parts;
	try
	{
		parts = gateway::elements_of(text);
	}
	catch (const gateway::BadJson &)
	{
		return;
	}
	for (const Raw &part : parts)
	{
		check_part(part, text);
		again += (again.empty() ? "[" : ",") + part.text;
	}
	again += again.empty() ? "[]" : "]";
	const auto twice = gateway::elements_of(again);
	check(twice.size() == parts.size(), "another number of elements", text);
	for (std::size_t i = 0; i < parts.size(); ++i)
		check(twice[i].text == parts[i].text, "other elements", text);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char *data, std::size_t size)
{
	const std::string_view text(reinterpret_cast<const char *>(data), size);
	check_object(text);
	check_array(text);
	return 0;
}
