// Texts: small letters, SHA-256.
#pragma once

#include <string>
#include <string_view>

namespace gateway
{

// ASCII letters become small ones.
std::string lower(std::string text);
// In hexadecimal.
std::string sha256(std::string_view text);

} // namespace gateway
