// libFuzzer: random operations on an engine with two queues, with a full recount after each.
#include <cstdio>
#include <cstdlib>

#include "unit/driver.hpp"

namespace
{

using namespace tq::test;

// Numbers from the fuzzer's bytes; zeros when they are used up.
struct Bytes
{
	const uint8_t **at;
	const uint8_t *end;

	uint32_t operator()(uint32_t n) const
	{
		uint32_t x = 0;
		for (uint32_t most = 1; most < n && *at < end; most = most << 8 | 0xFF)
			x = x << 8 | *(*at)++;
		return x % n;
	}
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	constexpr size_t kMost = 1024; // longer inputs reach no new code, only take longer
	const uint8_t *at = data, *const end = data + std::min(size, kMost);
	Driver<Bytes> driver({20, 5, 2, 1, 2, 2, 4}, Bytes{&at, end});
	while (at < end)
	{
		const std::string wrong = driver.step();
		if (!wrong.empty())
		{
			std::fprintf(stderr, "%s\n", wrong.c_str());
			std::abort();
		}
	}
	return 0;
}
