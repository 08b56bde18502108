// libFuzzer: the token bucket of rate limits, compared with a list of all admitted calls.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/token_bucket.hpp"
#include "core/rate_text.hpp"

namespace
{

using namespace tq::core;

void check(bool right, const char *what)
{
	if (right)
		return;
	std::fprintf(stderr, "%s\n", what);
	std::abort();
}

constexpr Micros kUptime = Micros{200 * 365} * 86400 * 1'000'000; // the monotonic clock begins at boot

// Numbers from the fuzzer's bytes; zeros when they are used up.
struct Bytes
{
	const uint8_t *at;
	const uint8_t *end;

	// Its first byte sets the number of bits, so that all orders of magnitude are equally likely.
	int64_t number(int64_t most)
	{
		if (at == end)
			return 0;
		int bits = *at++ % 64;
		uint64_t x = 1;
		for (; bits > 0 && at < end; bits -= 8)
			x = x << 8 | *at++;
		return static_cast<int64_t>(x % (static_cast<uint64_t>(most) + 1));
	}
};

struct Start
{
	Micros at;
	int64_t n;
};

class Case
{
public:
	explicit Case(Bytes bytes) : in_(bytes)
	{
		change();
		bucket_.fit(rate_, now_);
	}

	void run()
	{
		while (in_.at < in_.end)
			step();
	}

private:
	Bytes in_;
	Rate rate_;
	Bucket bucket_;
	std::vector<Start> starts_;
	Micros now_ = 0;

	void change()
	{
		static constexpr const char *kRates[] = {"1/d",	  "7/h",	   "1000000/s",	 "3/min",
												 "100/s", "1000000/d", "999999/min", "1/s"};
		rate_ = {};
		parse_rate(kRates[in_.number(7)], &rate_);
		const int64_t burst = 1 + in_.number(INT32_MAX - 1);
		if (burst_fits(rate_, burst))
			rate_.burst = static_cast<int32_t>(burst);
		starts_.clear();
	}

	void step()
	{
		switch (in_.number(7))
		{
			case 0:
				change();
				bucket_.fit(rate_, now_);
				check(bucket_.opens_at(rate_) <= now_ + (rate_.interval + 999) / 1000,
					  "a new rate waits for an old one");
				break;
			case 1:
				now_ = std::min(now_ + in_.number(kUptime), kUptime);
				break;
			case 2: // advance to the promised moment
				wait();
				break;
			case 3:
				bucket_.empty(rate_, now_);
				check(!bucket_.open(rate_, now_), "open after its burst is used up");
				break;
			case 4: // many at once: after the first one is allowed, all are
				if (bucket_.open(rate_, now_))
					take(1 + in_.number(1'000'000'000));
				break;
			default:
				starts();
		}
		answers();
	}

	void wait()
	{
		const Micros opens = bucket_.opens_at(rate_);
		if (opens <= now_ || opens > kUptime)
			return;
		check(!bucket_.open(rate_, opens - 1) && bucket_.open(rate_, opens), "it does not open when it says");
		now_ = opens;
	}

	void starts()
	{
		const int64_t n = bucket_.available(rate_, now_, 1 + in_.number(20));
		for (int64_t i = 0; i < n; ++i)
		{
			check(bucket_.open(rate_, now_), "fewer than were said to be there");
			take(1);
		}
		if (n == 0)
			check(!bucket_.open(rate_, now_), "open, and nothing to be had");
	}

	// No window allows more than the burst plus the refill of that window. Starts that were allowed together count at
	// the time of the first.
	void take(int64_t n)
	{
		bucket_.take(rate_, now_, n);
		if (starts_.size() == 64)
			starts_.erase(starts_.begin());
		starts_.push_back({now_, n});
		double all = 1;
		for (size_t i = starts_.size() - 1; i-- > 0;)
		{
			all += static_cast<double>(starts_[i].n);
			const double fits = static_cast<double>(rate_.burst) +
								static_cast<double>(now_ - starts_[i].at) * 1000 / static_cast<double>(rate_.interval);
			check(all <= fits + 1e-3 + fits * 1e-12, "more than the rate");
		}
	}

	void answers()
	{
		const bool open = bucket_.open(rate_, now_);
		check(open == (bucket_.available(rate_, now_, 1) == 1), "open, and none available, or the other way round");
		check(open == (bucket_.opens_at(rate_) <= now_), "open before it opens");
		check(bucket_.opens_at(rate_) <= bucket_.full_by() && bucket_.full_at >= 0, "full before it opens");
		check(bucket_.available(rate_, now_, INT64_MAX) <= rate_.burst, "more than a burst at once");
		check(bucket_.full_by() > now_ || bucket_.available(rate_, now_, INT64_MAX) == rate_.burst,
			  "full, and not all available");
	}
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	constexpr size_t kMost = 512;
	Case({data, data + std::min(size, kMost)}).run();
	return 0;
}
