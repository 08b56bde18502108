// For test/cron/compare.py: reads lines "SECONDS N EXPRESSION", SECONDS since 1970. Answers each line with the next N
// fire times in UTC, or with "refused" and the reason.
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>

#include "core/cron_text.hpp"

int main()
{
	using namespace tq::core;
	constexpr int64_t kUnix2000 = 946684800;
	std::string line;
	while (std::getline(std::cin, line))
	{
		std::istringstream in(line);
		int64_t start = 0;
		int n = 0;
		std::string text;
		in >> start >> n;
		std::getline(in, text);
		Cron cron{};
		CronError error{};
		if (!parse_cron(text.c_str(), &cron, &error))
		{
			std::printf("refused at %d, %s: %s\n", error.position, cron_field_name(error.field), error.text);
			continue;
		}
		Micros at = (start - kUnix2000) * kSecond;
		for (int i = 0; i < n; ++i)
		{
			at = next_fire(cron, at, kUtc);
			if (at == kNever)
				break;
			std::printf("%s%lld", i > 0 ? " " : "", static_cast<long long>(at / kSecond + kUnix2000));
		}
		std::printf("\n");
	}
	return 0;
}
