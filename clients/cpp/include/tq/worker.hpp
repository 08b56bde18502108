// The worker runtime: claims jobs, renews their leases, finishes them in batches, stops gracefully. clients/README.md says
// what all libraries do alike.
#pragma once

#include <tq/calls.hpp>
#include <tq/codec.hpp>

#include <functional>
#include <memory>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <type_traits>
#include <vector>

namespace tq
{

namespace detail
{
struct Runtime;
struct Handle;
} // namespace detail

// A handler raises one of these to end its job otherwise than by completing or failing it.
class Retry : public std::runtime_error // fails the job, which is tried again after delay
{
public:
	explicit Retry(Duration in, const std::string &error = "the handler asked for a retry")
		: std::runtime_error(error), delay(in)
	{}
	Duration delay;
};
class Plain : public std::runtime_error // fails the job with this text alone, without the name of a class
{
public:
	using std::runtime_error::runtime_error;
};
class Fatal : public std::runtime_error // fails the job, which is not tried again
{
public:
	using std::runtime_error::runtime_error;
};
class Bury : public std::runtime_error // sets the job aside
{
public:
	using std::runtime_error::runtime_error;
};
class Release : public std::runtime_error // gives the job back; the attempt does not count
{
public:
	explicit Release(Duration after = {}) : std::runtime_error("the handler released the job"), delay(after) {}
	Duration delay;
};

// Why a job should stop.
enum class StopReason
{
	kNone,
	kCancel,   // tq_cancel
	kLost,	   // the lease is lost; the result is dropped
	kShutdown, // the worker stops
};

// A job that the worker holds. Copies are the same job. All functions may be called from any thread. A job of next()
// whose last copy goes before it was finished is failed.
class Job
{
public:
	explicit Job(std::shared_ptr<detail::Handle> handle) : handle_(std::move(handle)) {}

	const JobData *operator->() const noexcept;

	// Requested when the job should stop.
	std::stop_token stop() const noexcept;
	StopReason stop_reason() const noexcept;

	// Shows progress in tq_running. Does not wait; only the latest progress is sent.
	void progress(std::string json) const;
	// Keeps a checkpoint. Does not wait; a refusal is logged.
	void checkpoint(std::string json) const;
	// Sends a heartbeat with progress or checkpoint, and returns the answer. Raises Error.
	Task<Action> heartbeat(HeartbeatOptions options = {}) const;
	// The same, for handlers that are no coroutines. Blocks the thread.
	Action heartbeat_and_wait(HeartbeatOptions options = {}) const;

	// End the job, for users of Worker::next(). They return false if the lease is lost. complete() also does so if the
	// server refuses the result, which fails the job.
	Task<bool> complete(std::optional<std::string> result = {}) const;
	Task<bool> fail(std::string error, std::optional<Duration> retry_in = {}, bool fatal = false) const;
	Task<bool> release(std::optional<Duration> delay = {}) const;
	Task<bool> bury(std::string reason) const;

	// Completes the job in the transaction that is open on the caller's connection: the work takes effect exactly once. The
	// worker does not finish the job then. Raises Error; roll back then.
	Task<> complete_in(Connection &connection, std::optional<std::string> result = {}) const;

private:
	std::shared_ptr<detail::Handle> handle_;
};

enum class LogLevel
{
	kInfo,
	kWarning,
	kError,
};

struct WorkerOptions
{
	std::string dsn;				 // connection string; what it leaves out comes from the environment of libpq
	std::string name;				 // empty: host name and process id
	std::vector<std::string> queues; // 1 to 8
	std::vector<std::string> kinds;	 // claim only these; empty: all
	int concurrency = 10;			 // jobs that run at once
	int buffer = 0;					 // jobs that the worker holds at most, running ones included; 0: concurrency
	int threads = 0;				 // threads that run handlers; 0: concurrency. Coroutines need fewer.
	Duration lease = std::chrono::seconds(30);
	Duration flush_interval = std::chrono::milliseconds(1); // how long the first finished job waits for others
	Duration shutdown_timeout = std::chrono::seconds(25);	// how long running jobs may go on after stop()
	Duration cancel_timeout = std::chrono::seconds(1);		// and how long after their cancellation
	std::shared_ptr<const Codec> codec;						// of payloads, results and checkpoints
	bool accept_plain = false;								// with a codec: run jobs whose payload is not encoded
	bool drain = false;										// end when no job is ready
	std::int64_t max_jobs = 0;								// end after so many jobs; 0: never
	bool handle_signals = true;								// SIGTERM and SIGINT call stop()
	std::function<void(LogLevel, const std::string &)> log; // called from several threads; empty: standard error
};

class Worker
{
public:
	// The result of a job as JSON, or none.
	using Handler = std::function<Task<std::optional<std::string>>(Job)>;
	using Middleware = std::function<Task<std::optional<std::string>>(Job, Handler)>;

	// Raises std::invalid_argument.
	explicit Worker(WorkerOptions options);
	// Stops as a second signal does, if the worker runs.
	~Worker();
	Worker(const Worker &) = delete;
	Worker &operator=(const Worker &) = delete;

	// Sets the handler of a kind. It is a function of a Job, or a coroutine (a function that returns Task), and returns
	// nothing, or its result as JSON. Functions may block: each runs on a thread of its own.
	template <class Function>
	Worker &on(const std::string &kind, Function function)
	{
		return set_handler(kind, adapt(std::move(function)));
	}
	// Sets the handler of all jobs whose kind has none.
	template <class Function>
	Worker &on_any(Function function)
	{
		return set_handler({}, adapt(std::move(function)));
	}
	// Runs around each handler; the first one is the outermost.
	Worker &use(Middleware middleware);

	// Works until stop(), a signal, or the end of drain or max_jobs. Returns 0 if all jobs ended, 1 if some were released.
	// Raises Error if the first connection or claim is refused.
	int run();

	// For workers without handlers: starts the worker, whose jobs next() returns.
	void start();
	// The next job; nothing when the worker has stopped.
	Task<std::optional<Job>> next();
	// Waits for the end, as run().
	int join();

	// Claims no more, lets jobs end for shutdown_timeout, cancels them, and releases those that do not end. The second call
	// releases them at once. From any thread.
	void stop();

private:
	template <class Function>
	static Handler adapt(Function function)
	{
		using Returned = std::invoke_result_t<Function, Job>;
		return [function = std::move(function)](Job job) -> Task<std::optional<std::string>> {
			if constexpr (std::is_same_v<Returned, Task<>>)
			{
				co_await function(job);
				co_return std::nullopt;
			}
			else if constexpr (std::is_void_v<Returned>)
			{
				function(job);
				co_return std::nullopt;
			}
			else if constexpr (std::is_convertible_v<Returned, std::optional<std::string>>)
				co_return function(job);
			else
				co_return co_await function(job);
		};
	}
	Worker &set_handler(std::optional<std::string> kind, Handler handler);

	std::shared_ptr<detail::Runtime> runtime_;
};

} // namespace tq
