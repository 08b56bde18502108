// Waiting in a coroutine.
#pragma once

#include <tq/connection.hpp>

#include <chrono>

namespace gateway
{

tq::Task<> sleep(std::chrono::microseconds time);

} // namespace gateway
