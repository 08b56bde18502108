// Runs a program in a process group of its own, with pipes.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

namespace cli
{

struct Program
{
	std::vector<std::string> command;	  // with its arguments
	std::vector<std::string> environment; // NAME=value, in addition to this process's
	std::string input;					  // for standard input
	std::size_t max_output = 0;			  // bytes of standard output that are kept
	std::size_t max_errors = 8192;		  // last bytes of standard error that are kept
	std::optional<std::chrono::microseconds> timeout;
	std::chrono::microseconds grace = std::chrono::seconds(5);
	std::function<void(const std::string &)> line; // gets each line that is written to file descriptor 3
};

struct Outcome
{
	int status = 0; // exit status, if signal is 0
	int signal = 0; // that killed it
	bool timed_out = false;
	bool output_cut = false;
	std::string output, errors;
};

// Runs the program until it ends. When stop is requested or the timeout passes, its group gets SIGTERM, and SIGKILL after
// grace. Standard error is also passed on. There is a Guard (guard.hpp). Raises std::system_error.
Outcome run_program(const Program &program, const std::stop_token &stop);

} // namespace cli
