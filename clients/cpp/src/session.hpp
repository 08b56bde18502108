// What libtq finds out about the server process behind a connection.
#pragma once

#include <tq/connection.hpp>

namespace tq::detail
{

// Whether an idle connection is open and the server has said nothing on it. What it says is mostly that it ends.
bool is_quiet(Connection &connection);

} // namespace tq::detail
