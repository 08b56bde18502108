// Ends what programs have started when this process ends, also by SIGKILL.
#pragma once

#include <sys/types.h>

namespace cli
{

// A process that waits for the end of this object or of this process, and then kills the groups that are still guarded.
// There is one at most, made before there are threads. Raises std::system_error.
class Guard
{
public:
	Guard();
	~Guard();
	Guard(const Guard &) = delete;
	Guard &operator=(const Guard &) = delete;

private:
	pid_t pid_;
};

// For a program between fork and exec: its group, which it has made. Async-signal-safe.
void guard_group(pid_t group) noexcept;

// The program has ended.
void release_group(pid_t group) noexcept;

} // namespace cli
