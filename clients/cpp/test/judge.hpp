// What the test programs share.
#pragma once

#include <tq/tq.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <functional>
#include <iostream>
#include <string>

inline int failures = 0;
inline std::string program_name;

inline void judge(bool held, const std::string &name)
{
	std::cout << (held ? "ok - " : "not ok - ") << program_name << ": " << name << std::endl;
	failures += !held;
}

// The SQLSTATE that the call raised, or nothing; "lost" for a connection.
template <class T>
tq::Task<std::string> error_of(tq::Task<T> call)
{
	try
	{
		co_await std::move(call);
		co_return "";
	}
	catch (const tq::ConnectionError &)
	{
		co_return "lost";
	}
	catch (const tq::Error &error)
	{
		co_return error.sqlstate();
	}
}

// Runs that many coroutines at once, and waits for all of them. They raise nothing.
inline tq::Task<> at_once(int number, std::function<tq::Task<>(int)> function)
{
	namespace asio = boost::asio;
	const auto executor = co_await asio::this_coro::executor;
	asio::steady_timer ended(executor, asio::steady_timer::time_point::max());
	int left = number;
	for (int i = 0; i < number; ++i)
		asio::co_spawn(executor, function(i), [&left, &ended](std::exception_ptr error) {
			if (error)
				std::rethrow_exception(error);
			if (--left == 0)
				ended.cancel();
		});
	boost::system::error_code error;
	while (left > 0)
		co_await ended.async_wait(asio::redirect_error(asio::use_awaitable, error));
}
