#include "session.hpp"

#include <tq/calls.hpp>

#include <libpq-fe.h>
#include <poll.h>

namespace tq
{

Task<bool> prepare_if_direct(Connection &connection)
{
	const Result pid = co_await connection.query("SELECT pg_backend_pid() AS pid");
	const bool direct = pid.integer(0, "pid") == connection.backend_pid();
	if (direct)
		connection.prepare_statements();
	co_return direct;
}

namespace detail
{

bool is_quiet(Connection &connection)
{
	if (!connection.is_open())
		return false;
	pollfd socket{PQsocket(connection.native()), POLLIN, 0};
	return poll(&socket, 1, 0) == 0;
}

} // namespace detail

} // namespace tq
