// Texts: small letters, SHA-256, files.
#pragma once

#include <string>
#include <string_view>

namespace gateway
{

// ASCII letters become small ones.
std::string lower(std::string text);
// In hexadecimal.
std::string sha256(std::string_view text);
// Of a file. Raises std::runtime_error if it cannot be read.
std::string contents(const std::string &path);

} // namespace gateway
