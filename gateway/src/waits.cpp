#include "waits.hpp"

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace asio = boost::asio;

namespace gateway
{

tq::Task<> sleep(std::chrono::microseconds time)
{
	asio::steady_timer timer(co_await asio::this_coro::executor, time);
	co_await timer.async_wait(asio::use_awaitable);
}

} // namespace gateway
