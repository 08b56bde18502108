#include "core/retry.hpp"

#include <algorithm>
#include <cmath>

namespace tq::core
{

Micros retry_delay(const RetryPolicy &policy, int attempt, uint64_t random) noexcept
{
	const int n = std::max(attempt, 1);
	double delay = static_cast<double>(policy.delay);
	switch (policy.backoff)
	{
		case Backoff::exponential:
			if (delay > 0) // 0 times infinity is not a number
				delay *= std::pow(static_cast<double>(policy.factor), n - 1);
			break;
		case Backoff::linear:
			delay *= n;
			break;
		case Backoff::fixed:
			break;
		case Backoff::list:
			if (policy.ndelays > 0)
				delay = static_cast<double>(policy.delays[std::min<int>(n, policy.ndelays) - 1]);
			break;
	}
	// pow may return infinity: apply the cap before rounding
	const double cap = static_cast<double>(policy.max);
	if (!(delay < cap))
		delay = cap;
	const double share = static_cast<double>(random >> 11) * 0x1.0p-53;
	delay += delay * static_cast<double>(policy.jitter) * share;
	return static_cast<Micros>(std::max(delay, 0.0));
}

} // namespace tq::core
