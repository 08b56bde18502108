#include "waits.hpp"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>

namespace asio = boost::asio;
using namespace std::chrono_literals;

namespace gateway
{

namespace
{

constexpr std::chrono::milliseconds kFirstPause = 100ms, kLastPause = 5000ms; // after failures

} // namespace

tq::Task<> sleep(std::chrono::microseconds time)
{
	asio::steady_timer timer(co_await asio::this_coro::executor, time);
	co_await timer.async_wait(asio::use_awaitable);
}

tq::Task<> for_ever(asio::steady_timer &idle, std::function<bool()> nothing_to_do, std::function<tq::Task<>()> round,
					std::string failure)
{
	auto pause = kFirstPause;
	for (;;)
	{
		if (nothing_to_do())
		{
			idle.expires_at(asio::steady_timer::time_point::max());
			boost::system::error_code error;
			co_await idle.async_wait(asio::redirect_error(asio::use_awaitable, error));
			continue;
		}
		std::string reason;
		try
		{
			co_await round();
			pause = kFirstPause;
		}
		catch (const std::exception &error)
		{
			reason = error.what();
		}
		if (reason.empty())
			continue;
		if (pause == kFirstPause)
			spdlog::warn("{}: {}", failure, reason);
		co_await sleep(pause);
		pause = std::min(pause * 2, kLastPause);
	}
}

} // namespace gateway
