// SHA-256.
#pragma once

#include <string>
#include <string_view>

namespace gateway
{

// In hexadecimal.
std::string sha256(std::string_view text);

} // namespace gateway
