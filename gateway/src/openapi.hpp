// The description of the REST interface, made from the table of operations.
#pragma once

#include <string>

namespace gateway
{

// openapi.json (OpenAPI 3.1).
const std::string &openapi();

} // namespace gateway
