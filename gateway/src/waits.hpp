// Waiting in a coroutine.
#pragma once

#include <tq/connection.hpp>

#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <functional>
#include <string>

namespace gateway
{

tq::Task<> sleep(std::chrono::microseconds time);

// Repeats a round, for ever. While there is nothing to do, waits until the timer is cancelled. After a round that fails
// it pauses, longer each time. `failure` is what the log says before the reason of the first one.
tq::Task<> for_ever(boost::asio::steady_timer &idle, std::function<bool()> nothing_to_do,
					std::function<tq::Task<>()> round, std::string failure);

} // namespace gateway
