// One poll() loop per program: its pipes, its end (a pidfd), and an eventfd for the stop request.
#include "process.hpp"

#include "guard.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>
#include <utility>

extern char **environ;

namespace cli
{

namespace
{

using Clock = std::chrono::steady_clock;

constexpr int kLines = 3; // the program's descriptor for progress
constexpr std::size_t kMaxLine = 1 << 20;
constexpr std::chrono::milliseconds kPoll{20};

[[noreturn]] void fail(const char *what) { throw std::system_error(errno, std::generic_category(), what); }

class Descriptor
{
public:
	explicit Descriptor(int fd = -1) : fd_(fd) {}
	Descriptor(Descriptor &&other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
	Descriptor &operator=(Descriptor &&other) noexcept
	{
		std::swap(fd_, other.fd_);
		return *this;
	}
	~Descriptor() { close(); }
	void close()
	{
		if (fd_ >= 0)
			::close(fd_);
		fd_ = -1;
	}
	int get() const { return fd_; }
	bool open() const { return fd_ >= 0; }

private:
	int fd_;
};

struct Pipe
{
	Pipe()
	{
		int ends[2];
		if (pipe2(ends, O_CLOEXEC) != 0)
			fail("cannot make a pipe");
		read = Descriptor(ends[0]);
		write = Descriptor(ends[1]);
	}
	Descriptor read, write;
};

std::vector<char *> pointers(const std::vector<std::string> &texts)
{
	std::vector<char *> list;
	for (const std::string &text : texts)
		list.push_back(const_cast<char *>(text.c_str()));
	list.push_back(nullptr);
	return list;
}

std::vector<std::string> merged_environment(const std::vector<std::string> &added)
{
	std::vector<std::string> all = added;
	for (char **entry = environ; *entry; ++entry)
	{
		const std::string_view text(*entry);
		const std::string_view name = text.substr(0, text.find('=') + 1);
		if (std::none_of(added.begin(), added.end(), [name](const std::string &one) { return one.starts_with(name); }))
			all.emplace_back(text);
	}
	return all;
}

// Between fork and exec only async-signal-safe calls are allowed, since this process has threads.
[[noreturn]] void become(const std::array<int, 4> &descriptors, char *const *arguments, char *const *environment)
{
	setpgid(0, 0);
	guard_group(getpid()); // without a parent no process renews the lease
	for (int i = 0; i < int(descriptors.size()); ++i)
	{
		// above 9, so that none is overwritten before its turn
		if (dup2(descriptors[std::size_t(i)], i) < 0)
			_exit(127);
	}
	for (int number : {SIGPIPE, SIGTERM, SIGINT, SIGCHLD})
		signal(number, SIG_DFL);
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, nullptr);
	environ = const_cast<char **>(environment);
	execvp(arguments[0], arguments);
	const char *reason = strerrordesc_np(errno);
	(void)!write(2, arguments[0], strlen(arguments[0]));
	(void)!write(2, ": ", 2);
	(void)!write(2, reason, strlen(reason));
	(void)!write(2, "\n", 1);
	_exit(127);
}

// A copy of the descriptor that dup2 to 0..3 cannot overwrite.
Descriptor above(int fd)
{
	Descriptor copy(fcntl(fd, F_DUPFD_CLOEXEC, 10));
	if (!copy.open())
		fail("cannot copy a descriptor");
	return copy;
}

class Running
{
public:
	explicit Running(const Program &program) : program_(program)
	{
		const std::vector<std::string> environment = merged_environment(program.environment);
		const std::vector<char *> arguments = pointers(program.command), variables = pointers(environment);
		Pipe in, out, err, lines;
		const Descriptor child_in = above(in.read.get()), child_out = above(out.write.get()),
						 child_err = above(err.write.get()), child_lines = above(lines.write.get());
		// A signal to the child before exec must not run a handler of this process, which would write to its pipes.
		sigset_t all, before;
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		pid_ = fork();
		if (pid_ == 0)
			become({child_in.get(), child_out.get(), child_err.get(), child_lines.get()}, arguments.data(),
				   variables.data());
		const int error = errno;
		pthread_sigmask(SIG_SETMASK, &before, nullptr);
		errno = error;
		if (pid_ < 0)
			fail("cannot fork");
		setpgid(pid_, pid_); // by the first of the two that comes to it
		in_ = std::move(in.write);
		out_ = std::move(out.read);
		err_ = std::move(err.read);
		lines_ = std::move(lines.read);
		for (const Descriptor *one : {&in_, &out_, &err_, &lines_})
			fcntl(one->get(), F_SETFL, O_NONBLOCK);
		end_ = Descriptor(int(syscall(SYS_pidfd_open, pid_, 0)));
	}

	~Running() { release_group(pid_); }

	Outcome wait(const std::stop_token &stop)
	{
		const Descriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
		std::stop_callback on_stop(stop, [&wake] {
			const std::uint64_t one = 1;
			(void)!::write(wake.get(), &one, sizeof one);
		});
		auto timeout_at = program_.timeout ? Clock::now() + *program_.timeout : Clock::time_point::max();
		auto kill_at = Clock::time_point::max();
		bool asked = false;
		while (!ended())
		{
			const auto now = Clock::now();
			if (!asked && (stop.stop_requested() || now >= timeout_at))
			{
				asked = true;
				outcome_.timed_out = !stop.stop_requested();
				kill(-pid_, SIGTERM);
				kill_at = now + program_.grace;
			}
			if (now >= kill_at)
			{
				kill(-pid_, SIGKILL);
				kill_at = Clock::time_point::max();
			}
			// the stop request was seen, and would be readable from now on
			pump(asked ? -1 : wake.get(), std::min(asked ? Clock::time_point::max() : timeout_at, kill_at));
		}
		// what it wrote before its end; its children may still hold the pipes
		pump(-1, Clock::now());
		if (kill_at != Clock::time_point::max())
			end_children(kill_at);
		finish_lines();
		return std::move(outcome_);
	}

private:
	bool ended()
	{
		int status = 0;
		const pid_t found = waitpid(pid_, &status, WNOHANG);
		if (found == 0)
			return false;
		if (found < 0)
			fail("cannot wait for a program");
		if (found == pid_ && WIFEXITED(status))
			outcome_.status = WEXITSTATUS(status);
		else if (found == pid_)
			outcome_.signal = WTERMSIG(status);
		return true;
	}

	// After SIGTERM: children that outlive the program would go on beside the next attempt.
	void end_children(Clock::time_point kill_at)
	{
		end_.close(); // always readable from now on
		while (kill(-pid_, 0) == 0)
		{
			const auto now = Clock::now();
			if (now >= kill_at)
			{
				kill(-pid_, SIGKILL);
				return;
			}
			pump(-1, std::min(kill_at, now + kPoll));
		}
	}

	void pump(int wake, Clock::time_point until)
	{
		std::vector<pollfd> polls;
		const auto add = [&polls](int fd, short events) {
			if (fd >= 0)
				polls.push_back({fd, events, 0});
		};
		if (written_ == program_.input.size())
			in_.close();
		add(in_.get(), POLLOUT);
		add(out_.get(), POLLIN);
		add(err_.get(), POLLIN);
		add(lines_.get(), POLLIN);
		add(end_.get(), POLLIN);
		add(wake, POLLIN);
		int wait = -1;
		if (until != Clock::time_point::max())
			wait = int(std::clamp<std::int64_t>(
				std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count(), 0, 1000000));
		if (!end_.open()) // a kernel without pidfd
			wait = wait < 0 ? int(kPoll.count()) : std::min(wait, int(kPoll.count()));
		if (poll(polls.data(), nfds_t(polls.size()), wait) < 0 && errno != EINTR)
			fail("cannot poll");
		write_input();
		read_pipe(out_, [this](std::string_view text) {
			const std::size_t room = program_.max_output - std::min(program_.max_output, outcome_.output.size());
			outcome_.output_cut = outcome_.output_cut || text.size() > room;
			outcome_.output += text.substr(0, room);
		});
		read_pipe(err_, [this](std::string_view text) {
			(void)!::write(2, text.data(), text.size());
			outcome_.errors += text;
			if (outcome_.errors.size() > 2 * program_.max_errors)
				outcome_.errors.erase(0, outcome_.errors.size() - program_.max_errors);
		});
		read_pipe(lines_, [this](std::string_view text) {
			line_ += text;
			for (std::size_t end; (end = line_.find('\n')) != std::string::npos; line_.erase(0, end + 1))
				program_.line(line_.substr(0, end));
			if (line_.size() > kMaxLine)
				line_.clear();
		});
	}

	void finish_lines()
	{
		if (!line_.empty())
			program_.line(line_);
		if (outcome_.errors.size() > program_.max_errors)
			outcome_.errors.erase(0, outcome_.errors.size() - program_.max_errors);
	}

	void write_input()
	{
		while (in_.open() && written_ < program_.input.size())
		{
			const ssize_t count =
				::write(in_.get(), program_.input.data() + written_, program_.input.size() - written_);
			if (count < 0 && errno == EAGAIN)
				return;
			if (count < 0 && errno != EINTR)
				in_.close(); // it does not read its input
			else if (count > 0)
				written_ += std::size_t(count);
		}
	}

	// Reads what is in the pipe now: its writer may be as fast as this reader.
	template <class Take>
	void read_pipe(Descriptor &from, Take take)
	{
		char buffer[16384];
		int left = 0;
		if (from.open() && ioctl(from.get(), FIONREAD, &left) != 0)
			left = 0;
		left = std::max(left, 1); // for its end
		while (from.open() && left > 0)
		{
			const ssize_t count = ::read(from.get(), buffer, std::min(sizeof buffer, std::size_t(left)));
			if (count > 0)
				take(std::string_view(buffer, std::size_t(count)));
			else if (count == 0 || (errno != EAGAIN && errno != EINTR))
				from.close();
			else if (errno == EAGAIN)
				return;
			left -= int(std::max<ssize_t>(count, 0));
		}
	}

	const Program &program_;
	pid_t pid_ = -1;
	Descriptor in_, out_, err_, lines_, end_;
	std::size_t written_ = 0;
	std::string line_;
	Outcome outcome_;
};

} // namespace

Outcome run_program(const Program &program, const std::stop_token &stop)
{
	Running running(program);
	return running.wait(stop);
}

} // namespace cli
