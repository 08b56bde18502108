// Pauses between attempts to connect.
#pragma once

#include <tq/connection.hpp>

#include <algorithm>
#include <chrono>
#include <random>

namespace tq::detail
{

// Begins at 0.1 s and is doubled each time, up to 30 s, with a random deviation of up to a half.
class Backoff
{
public:
	Duration next()
	{
		const double factor = std::uniform_real_distribution<>(0.5, 1.5)(random_);
		const Duration pause(std::int64_t(double(pause_.count()) * factor));
		pause_ = std::min<Duration>(pause_ * 2, std::chrono::seconds(30));
		return pause;
	}

private:
	Duration pause_ = std::chrono::milliseconds(100);
	std::mt19937 random_{std::random_device()()};
};

} // namespace tq::detail
