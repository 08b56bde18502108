// The guard reads a pipe. This process has the other end, and so has each program until its exec: a program that runs
// is known to the guard before the pipe ends.
#include "guard.hpp"

#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <fcntl.h>
#include <set>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

namespace cli
{

namespace
{

constexpr int kDescriptors = 1024; // that may be open at the start

int to_guard = -1;

[[noreturn]] void fail(const char *what) { throw std::system_error(errno, std::generic_category(), what); }

// A write of so few bytes is atomic, so the pipe has whole numbers only.
void send(pid_t number) noexcept { (void)!write(to_guard, &number, sizeof number); }

[[noreturn]] void watch(int from)
{
	setsid(); // signals of a terminal, or to the group of this process's parent
	prctl(PR_SET_NAME, "tq guard");
	for (int number : {SIGTERM, SIGINT, SIGHUP})
		signal(number, SIG_IGN);
	// a reader of the parent's output waits until all copies of the descriptor are closed
	dup2(from, 0);
	if (close_range(1, UINT_MAX, 0) != 0) // Linux before 5.9; with the pipe's other end open it would never end
		for (int fd = 1; fd < kDescriptors; ++fd)
			close(fd);
	std::set<pid_t> groups;
	std::array<pid_t, 256> numbers;
	for (ssize_t size; (size = read(0, numbers.data(), sizeof numbers)) > 0 || (size < 0 && errno == EINTR);)
	{
		for (ssize_t i = 0; i < size / ssize_t(sizeof(pid_t)); ++i)
		{
			const pid_t number = numbers[std::size_t(i)];
			if (number > 0)
				groups.insert(number);
			else
				groups.erase(-number);
		}
	}
	for (pid_t group : groups)
		kill(-group, SIGKILL);
	_exit(0);
}

} // namespace

Guard::Guard()
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC) != 0)
		fail("cannot make a pipe");
	pid_ = fork();
	if (pid_ < 0)
		fail("cannot fork");
	if (pid_ == 0)
		watch(ends[0]);
	close(ends[0]);
	to_guard = fcntl(ends[1], F_DUPFD_CLOEXEC, 10); // a program has 0 to 3
	if (to_guard < 0)
		fail("cannot copy a descriptor");
	close(ends[1]);
}

Guard::~Guard()
{
	// threads that still run keep a valid descriptor
	const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	if (null < 0)
		return;
	dup3(null, to_guard, O_CLOEXEC);
	close(null);
	while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR)
	{}
}

void guard_group(pid_t group) noexcept { send(group); }

void release_group(pid_t group) noexcept { send(-group); }

} // namespace cli
