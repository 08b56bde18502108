// Small documents from elsewhere.
#pragma once

#include <tq/connection.hpp>

#include <string>

namespace gateway
{

// Whether a text names a document by HTTP.
bool is_url(const std::string &text);
// Raises std::invalid_argument if it is no URL of HTTPS, or of HTTP on loopback.
void check_url(const std::string &url);
// Gets a document of at most 1 MB within 10 seconds. Follows no redirection. Raises std::exception.
tq::Task<std::string> fetch(std::string url);

} // namespace gateway
