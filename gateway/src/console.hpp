// The console: files that are built in.
#pragma once

#include "exchange.hpp"

#include <optional>

namespace gateway
{

// The answer if the request is for a file of the console.
std::optional<Answer> console(const Request &request);

} // namespace gateway
