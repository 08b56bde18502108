// The inside of a worker. A thread of its own runs two coroutines: fetch() waits and claims on one connection, deliver()
// sends heartbeats and finishes on another. Handlers run in other threads and reach the runtime by posting to its
// executor, so a handler that blocks delays no heartbeat.
#pragma once

#include <tq/worker.hpp>

#include <boost/asio/experimental/concurrent_channel.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>

namespace tq::detail
{

using Clock = std::chrono::steady_clock;

enum class Verb
{
	kComplete,
	kFail,
	kRelease,
	kBury,
};

// How a job ends.
struct Finish
{
	Verb verb = Verb::kComplete;
	Value text; // result, error or reason
	std::optional<Duration> delay;
	bool fatal = false;
};

// A claimed job from its claim until the server has answered its end, or its lease is lost.
struct Held
{
	enum Start
	{
		kWaiting,
		kStarted,
		kWithdrawn, // released before it started
	};

	JobData data;
	std::stop_source stop;
	std::atomic<Start> start = kWaiting;
	std::atomic<StopReason> reason = StopReason::kNone;
	std::atomic<bool> completed_by_caller = false; // Job::complete_in
	std::mutex progress_mutex;
	Value progress; // the latest, not sent yet; under progress_mutex

	// the rest is used in the runtime's thread only
	Clock::time_point lease_until;
	bool quiet = false; // the last heartbeat answered so
	bool gone = false;	// ended or lost: a result is dropped
	std::optional<Finish> finish;
	Clock::time_point finish_at; // not earlier
	bool alone = false;			 // the server refused a batch with it
	std::function<void(bool)> answered;

	Value take_progress()
	{
		std::lock_guard lock(progress_mutex);
		return std::exchange(progress, {});
	}

	void request_stop(StopReason why)
	{
		StopReason none = StopReason::kNone;
		reason.compare_exchange_strong(none, why);
		stop.request_stop();
	}
};

// What the copies of a Job share.
struct Handle
{
	Handle(std::shared_ptr<Runtime> owner, std::shared_ptr<Held> job) : runtime(std::move(owner)), held(std::move(job))
	{}
	~Handle();

	std::shared_ptr<Runtime> runtime;
	std::shared_ptr<Held> held;
	std::atomic<bool> finished = false;
};

struct Beat
{
	std::shared_ptr<Held> held;
	HeartbeatOptions options;
	std::function<void(std::exception_ptr, Action)> answered;
};

// Wakes the one coroutine that waits for it. Used in the runtime's thread only.
class Event
{
public:
	explicit Event(boost::asio::io_context &context) : timer_(context) {}
	void notify() { timer_.cancel(); }
	Task<> wait(Clock::time_point until = Clock::time_point::max());

private:
	boost::asio::steady_timer timer_;
};

// Class and message of the exception that is being handled, and of those nested in it; bounded.
std::string describe_current_exception();

struct Runtime : std::enable_shared_from_this<Runtime>
{
	explicit Runtime(WorkerOptions given);

	// from any thread
	Task<std::shared_ptr<Handle>> next();
	// answered gets whether the server took it; false: the lease is lost, or a result was refused.
	void finish(const std::shared_ptr<Held> &job, Finish how, std::function<void(bool)> answered = {});
	void send_beat(Beat beat);
	void set_progress(const std::shared_ptr<Held> &held, std::string json);
	// The caller finished the job on a connection of its own.
	void forget(const std::shared_ptr<Held> &job);
	void stop();
	// The result of a job as it is stored: valid text, encoded.
	Value stored_result(const Held &job, Value json) const;
	void log_unstarted(const Held &job) const;
	void log(LogLevel level, const std::string &text) const;

	void start();
	int join();

	// Runs the function in the runtime's thread, or in the caller's after that has ended.
	void post(std::function<void()> function);

	// in the runtime's thread
	Task<> fetch();
	Task<> deliver();
	Task<> watch();
	Task<> end_after_timeout();
	Task<> handle_jobs();
	Task<Connection> connect(const char *purpose, Event &event, bool first);
	Task<> room();
	void take(std::vector<JobData> jobs, Clock::time_point asked);
	void end(const std::shared_ptr<Held> &held, bool ok);
	void lost(const std::shared_ptr<Held> &job);
	void release_all();
	void fail_worker(std::exception_ptr error);
	void close_ready();
	void delivered_all();

	// of deliver()
	struct Round;
	Clock::time_point next_delivery() const;
	void collect(Round &round);
	void collect_finishes(Round &round);
	void add_heartbeats(Round &round);
	void add_finish(Round &round, const std::shared_ptr<Held> &job);
	void add_many(Round &round, std::string_view function, std::vector<std::shared_ptr<Held>> jobs);
	void answered_many(const std::vector<std::shared_ptr<Held>> &jobs, const Reply &reply);
	void answered_one(const std::shared_ptr<Held> &job, const Reply &reply);
	void heard(const std::shared_ptr<Held> &job, Action action, Clock::time_point sent);
	void again(const std::shared_ptr<Held> &job, Duration pause);

	WorkerOptions options;
	std::map<std::string, Worker::Handler> handlers;
	Worker::Handler other_handler;
	std::vector<Worker::Middleware> middleware;

	boost::asio::io_context io{1};
	Event fetch_event{io}, deliver_event{io}, watch_event{io}, stop_event{io};
	boost::asio::signal_set signals{io};
	boost::asio::experimental::concurrent_channel<void(boost::system::error_code, std::shared_ptr<Handle>)> ready;
	std::thread thread;
	std::unique_ptr<boost::asio::thread_pool> pool;

	std::map<std::int64_t, std::shared_ptr<Held>> held;
	std::map<std::int64_t, std::weak_ptr<Handle>> running; // also those whose lease is lost
	std::deque<std::shared_ptr<Held>> finishing;
	std::deque<Beat> beats, sent_beats;	 // to be sent; sent and not answered yet
	std::set<std::string> unknown_kinds; // already logged
	std::mutex unknown_mutex;
	Clock::time_point last_heartbeat;
	std::int64_t taken = 0;
	Connection claiming;
	bool in_call = false, stopping = false, fetching = true, at_once = false, released_some = false,
		 progress_waits = false, delivered = false, beats_refused = false;
	Clock::time_point give_up = Clock::time_point::max();
	std::exception_ptr failure;

	std::recursive_mutex end_mutex;
	bool ended = false; // the thread; under end_mutex
};

} // namespace tq::detail
