// Definition of tq::run; see tq/connection.hpp.
#pragma once

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_future.hpp>

namespace tq
{

template <class T>
T run(Task<T> task)
{
	boost::asio::io_context context(1);
	auto future = boost::asio::co_spawn(context, std::move(task), boost::asio::use_future);
	context.run();
	return future.get();
}

} // namespace tq
