#pragma once

#include <string>
#include <string_view>

namespace tq
{

// The text with U+FFFD in place of what PostgreSQL does not store: invalid UTF-8 and zero bytes.
std::string valid_utf8(std::string_view text);

} // namespace tq
