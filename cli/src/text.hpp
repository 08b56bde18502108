// Small conversions of text.
#pragma once

#include <tq/result.hpp>

#include <string>
#include <string_view>

namespace cli
{

// "500ms", "30s", "10m", "2h", "1d", or a number of seconds. Raises std::invalid_argument.
tq::Duration parse_duration(std::string_view text);

// Whether the text is one JSON value.
bool is_json(std::string_view text);

// The text as a JSON string. What jsonb does not store (invalid UTF-8, zero bytes) becomes U+FFFD.
std::string json_string(std::string_view text);

} // namespace cli
