// JSON that is taken apart, not read: the parts keep the text of their numbers, so nothing is rounded.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gateway
{

struct Raw
{
	enum Kind
	{
		kNull,
		kBool,
		kNumber,
		kString,
		kArray,
		kObject,
	};

	Kind kind = kNull;
	std::string text;	// as JSON
	std::string string; // of a string: its characters
};

// A text that is no JSON, or no object or array. what() says where.
struct BadJson : std::runtime_error
{
	using std::runtime_error::runtime_error;
};

// How deep a request may be. PostgreSQL's own limit is of that order. Answers wrap what requests have brought.
constexpr std::size_t kDepthOfRequest = 5000, kDepthOfAnswer = kDepthOfRequest + 10;

// The members of an object, in order. Raises BadJson, also if a name comes twice.
std::vector<std::pair<std::string, Raw>> members_of(std::string_view object, std::size_t max_depth = kDepthOfRequest);
// The elements of an array. Raises BadJson.
std::vector<Raw> elements_of(std::string_view array, std::size_t max_depth = kDepthOfRequest);
// A string as JSON.
std::string quoted(std::string_view text);

} // namespace gateway
