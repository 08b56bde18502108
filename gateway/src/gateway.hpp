// Answers requests, whatever server they come through.
#pragma once

#include "claims.hpp"
#include "ends.hpp"
#include "events.hpp"
#include "exchange.hpp"
#include "options.hpp"
#include "pool.hpp"
#include "pushes.hpp"
#include "shared_calls.hpp"
#include "statement.hpp"
#include "who.hpp"

#include <cstdint>
#include <map>

namespace gateway
{

class Gateway
{
public:
	explicit Gateway(const Options &options);

	// Never raises: what goes wrong is a problem.
	tq::Task<Answer> answer(Request request, Client &client);
	tq::Task<Answer> answer(Route route, Request request, Client &client);

	// Serves those that wait, for ever.
	tq::Task<> run();
	// Keeps what it knows of callers fresh, for ever.
	tq::Task<> keep_keys() { return who_.run(); }
	void stop();
	// Whether all deliveries have ended, and no claimed jobs are left to give back.
	bool idle() const noexcept { return pushes_.idle() && claims_.idle(); }
	void reload() { who_.reload(); }

	const Options &options() const noexcept { return options_; }
	// Open connections of clients; kept by the server.
	std::int64_t clients = 0;

private:
	tq::Task<Answer> dispatch(Route route, Request request, Client &client);
	tq::Task<Answer> call(const Operation &operation, std::vector<Given> arguments, std::string role);
	tq::Task<Answer> enqueue(std::vector<Given> arguments, std::string role, Client &client);
	tq::Task<Answer> complete(std::vector<Given> arguments, std::string role);
	tq::Task<Answer> job(std::string id, std::chrono::microseconds wait, std::string role, Client &client);
	tq::Task<Answer> outcomes(const Operation &operation, std::vector<Given> arguments, std::string role,
							  Client &client);
	// What a look at jobs has found: the answer, and the jobs that have to end before it is sent.
	struct Seen
	{
		Answer answer;
		std::vector<std::string> open;
	};
	// Looks until no job is open, or `wait` has passed.
	tq::Task<Answer> look(std::function<tq::Task<Seen>()> once, bool first, std::chrono::microseconds wait,
						  Client &client);
	tq::Task<Answer> define(const Operation &operation, std::vector<Given> arguments, std::string role);
	tq::Task<Answer> ready();
	Answer metrics() const;
	// Raises Refusal.
	tq::Task<std::chrono::microseconds> length(tq::Value interval, std::string role);

	const Options options_;
	Pool pool_;
	SharedCalls shared_;
	Claims claims_;
	Ends ends_;
	Events events_;
	Pushes pushes_;
	Who who_;
	bool stopping_ = false;
	std::map<std::pair<std::string, unsigned>, std::uint64_t> answered_; // by operation and status
	std::map<std::string, std::chrono::microseconds> lengths_;			 // of the intervals that callers gave
};

} // namespace gateway
