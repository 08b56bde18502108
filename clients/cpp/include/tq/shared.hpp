// Calls of one process that share commits. The calls that come while others are under way go to the server together, as
// one tq_enqueue_many_info, tq_complete_many or tq_fail_many. Each caller gets the answer of its own call.
#pragma once

#include <tq/calls.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tq
{

struct SharedOptions
{
	SharedOptions() {}
	std::string dsn;			  // connection string; what it leaves out comes from the environment of libpq
	int lines = 2;				  // calls go over so many connections at once
	Duration flush_interval = {}; // how long the first call waits for others; 0: it goes at once if a line is free
	// Gives a connection to the function and takes it back afterwards. Empty: connections of its own.
	std::function<Task<>(std::function<Task<>(Connection &)>)> with_connection;
};

// Its functions may be called from any executor and thread. Calls that wait for each other keep their order; between
// calls that are made at once there is none.
//
// If one call is refused, the others of its statement still take effect. They raise Error, as the calls of calls.hpp do;
// or ConnectionError, and then it is unknown whether the call took effect. No call is repeated after that.
//
// Calls are never part of a transaction of the caller: those are made on its own connection.
class Shared
{
public:
	// Statements run on a strand of this executor.
	explicit Shared(boost::asio::any_io_executor executor, SharedOptions options = {});
	// Calls that were made still end.
	~Shared();
	Shared(const Shared &) = delete;
	Shared &operator=(const Shared &) = delete;

	Task<Enqueued> enqueue(std::string queue, std::string payload = "{}", EnqueueOptions options = {});
	// The same, with the arguments of tq_enqueue_info.
	Task<Enqueued> enqueue(std::vector<Argument> arguments);
	Task<> complete(std::int64_t id, std::int64_t lease, std::optional<std::string> result = {});
	Task<> fail(std::int64_t id, std::int64_t lease, std::string error);

	// Refuses further calls, and waits for the end of those that were made.
	Task<> close();

private:
	struct State;
	std::shared_ptr<State> state_;
};

} // namespace tq
