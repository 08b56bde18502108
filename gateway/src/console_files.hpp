// What the build makes of the console's files (gateway/CMakeLists.txt).
#pragma once

#include <string_view>
#include <vector>

namespace gateway
{

struct ConsoleFile
{
	std::string_view name; // assets/main-1a2b.js
	std::string_view plain, gzip;
};

extern const std::vector<ConsoleFile> console_files;

} // namespace gateway
