// Server-sent events: figures of all queues each second, and changes of a queue or a job.
#pragma once

#include "exchange.hpp"
#include "pool.hpp"
#include "statement.hpp"

#include <chrono>
#include <functional>
#include <map>

namespace gateway
{

class Events
{
public:
	explicit Events(Pool &pool) : pool_(pool) {}

	// Begins a stream. role: what the credentials say of the client now; when that changes or is refused, the stream ends.
	// last: the id of the last event that the client got, or empty. Raises what the first look raises.
	tq::Task<Answer> begin(std::vector<Given> arguments, std::function<std::string()> role, std::string last);

	void stop() { stopped_ = true; }

private:
	struct Stream
	{
		std::function<std::string()> role_now;
		std::string role;
		tq::Value queue, job;
		std::string after; // of a queue: the cursor
		std::string state; // of a job: what was sent last
	};

	// Each returns what is new, as events.
	tq::Task<std::string> changes_of_queue(Stream &stream);
	tq::Task<std::string> changes_of_job(Stream &stream);
	tq::Task<std::string> figures(std::string role);
	tq::Task<> send(Stream stream, std::string first, Sink &sink);

	// The same for all viewers of a role.
	struct Figures
	{
		std::chrono::steady_clock::time_point at;
		std::string event;
	};

	Pool &pool_;
	std::map<std::string, Figures> figures_;
	bool stopped_ = false;
};

} // namespace gateway
