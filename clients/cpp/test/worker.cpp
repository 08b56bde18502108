// A worker for the cases.   usage: tq_test_worker handlers|ledger QUEUE NAME [OPTION=VALUE...]
//
// handlers: handlers by kind, each with a behaviour of its own. late: calls of a job that follow the end of its worker. ledger: next() in several coroutines, which end jobs in
// every way and note in the file LEDGER what they claim, send and hear (test/chaos/ledger.py). With hold=stop a job runs
// until it is asked to stop, with hold=FILE until the file is there, else for up to 20 ms.
#include <tq/tq.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/concurrent_channel.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <cstdlib>
#include <fcntl.h>
#include <iostream>
#include <random>
#include <semaphore>
#include <unistd.h>

using namespace std::chrono_literals;
namespace asio = boost::asio;

namespace
{

struct Blocked : std::runtime_error
{
	using std::runtime_error::runtime_error;
};

void say(const std::string &text)
{
	const std::string line = text + "\n";
	(void)!write(STDOUT_FILENO, line.data(), line.size());
}

const char *name_of(tq::StopReason reason)
{
	switch (reason)
	{
		case tq::StopReason::kNone:
			return "none";
		case tq::StopReason::kCancel:
			return "cancel";
		case tq::StopReason::kLost:
			return "lost";
		case tq::StopReason::kShutdown:
			return "shutdown";
	}
	return "?";
}

// Blocks its thread until it is asked to stop. Progress says that it has begun.
void until_stop(const tq::Job &job)
{
	job.progress("\"begun\"");
	std::binary_semaphore stopped(0);
	std::stop_callback on_stop(job.stop(), [&stopped] { stopped.release(); });
	stopped.acquire();
	say("job " + std::to_string(job->id) + " is asked to stop: " + name_of(job.stop_reason()));
}

tq::Task<std::string> in_transaction(tq::Job job)
{
	tq::Connection connection = co_await tq::Connection::open("");
	co_await connection.query("BEGIN");
	co_await connection.query("INSERT INTO work VALUES (" + std::to_string(job->id) + ")");
	co_await job.complete_in(connection, "\"in it\"");
	co_await connection.query("COMMIT");
	co_return "\"not sent\"";
}

tq::Task<> roll_back(tq::Job job)
{
	tq::Connection connection = co_await tq::Connection::open("");
	co_await connection.query("BEGIN");
	co_await job.complete_in(connection);
	co_await connection.query("ROLLBACK");
	throw Blocked("rolled back");
}

tq::Task<> keep_checkpoint(tq::Job job)
{
	if (job->checkpoint)
		throw tq::Fatal("the checkpoint is " + *job->checkpoint);
	tq::HeartbeatOptions options;
	options.checkpoint = "{\"page\": 3}";
	options.progress = "7";
	if (co_await job.heartbeat(options) != tq::Action::kRun)
		throw tq::Bury("the answer is not run");
	throw tq::Retry(0s);
}

void handle(tq::Worker &worker)
{
	worker.on("echo", [](tq::Job job) { return job->payload; });
	worker.on("fatal", [](tq::Job) { throw tq::Fatal("for good"); });
	worker.on("bury", [](tq::Job) { throw tq::Bury("odd"); });
	worker.on("retry", [](tq::Job) { throw tq::Retry(1h, "later"); });
	worker.on("release", [](tq::Job) { throw tq::Release(1h); });
	worker.on("raise", [](tq::Job) {
		try
		{
			throw std::out_of_range("inner");
		}
		catch (...)
		{
			std::throw_with_nested(Blocked("outer"));
		}
	});
	worker.on("bad result", [](tq::Job) { return std::string("{no json"); });
	worker.on("error in Latin-1", [](tq::Job) { throw tq::Plain("caf\xe9"); });
	worker.on("reason in Latin-1", [](tq::Job) { throw tq::Bury("caf\xe9!"); });
	worker.on("result in Latin-1", [](tq::Job) { return std::string("\"caf\xe9\""); });
	worker.on("long error", [](tq::Job) { throw Blocked(std::string(8182, 'x') + "é"); });
	worker.on("stop", [](tq::Job job) {
		until_stop(job);
		throw Blocked("stopped");
	});
	worker.on("stop and complete", [](tq::Job job) {
		until_stop(job);
		return std::string("\"late\"");
	});
	worker.on("forever", [](tq::Job job) {
		job.progress("\"begun\"");
		std::binary_semaphore(0).acquire();
	});
	worker.on("transaction", in_transaction);
	worker.on("rollback", roll_back);
	worker.on("checkpoint", keep_checkpoint);
	worker.use([](tq::Job job, tq::Worker::Handler inner) -> tq::Task<std::optional<std::string>> {
		say("before " + std::to_string(job->id));
		auto result = co_await inner(job);
		say("after " + std::to_string(job->id));
		co_return result;
	});
}

tq::Task<> call_late(tq::Worker &worker)
{
	const auto job = co_await worker.next();
	worker.stop();
	worker.stop();
	say("exit code " + std::to_string(worker.join()));
	say(co_await job->complete() ? "completed" : "not completed");
	say(co_await job->heartbeat() == tq::Action::kLost ? "lost" : "not lost");
	say(job->heartbeat_and_wait() == tq::Action::kLost ? "lost" : "not lost");
	say(co_await worker.next() ? "a job" : "no job");
	worker.stop();
}

class Ledger
{
public:
	explicit Ledger(std::string who)
		: who_(std::move(who)),
		  file_(open(std::getenv("LEDGER") ? std::getenv("LEDGER") : "/dev/null", O_WRONLY | O_APPEND | O_CREAT, 0644))
	{}

	// The worker ends some jobs by itself: "job 42, lease 4711, is released before it started".
	void note_log(const std::string &text)
	{
		long long job = 0, lease = 0;
		char line[256];
		if (std::sscanf(text.c_str(), "job %lld, lease %lld, is released", &job, &lease) != 2)
			return;
		const int length = std::snprintf(line, sizeof line, "%.6f %s end %lld %lld 0 release\n",
										 seconds(std::chrono::system_clock::now()), who_.c_str(), job, lease);
		(void)!write(file_, line, std::size_t(length));
	}

	void note(const tq::Job &job, const std::string &event, const std::string &words)
	{
		char line[512];
		const int length =
			std::snprintf(line, sizeof line, "%.6f %s %s %lld %lld %d %s\n", seconds(std::chrono::system_clock::now()),
						  who_.c_str(), event.c_str(), static_cast<long long>(job->id),
						  static_cast<long long>(job->lease), job->attempt, words.c_str());
		(void)!write(file_, line, std::size_t(length));
	}

	static double seconds(tq::Time time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

private:
	std::string who_;
	int file_;
};

// Waits until the job is asked to stop.
tq::Task<> asked_to_stop(const tq::Job &job)
{
	asio::experimental::concurrent_channel<void(boost::system::error_code)> asked(co_await asio::this_coro::executor,
																				  1);
	std::stop_callback on_stop(job.stop(), [&asked] { asked.try_send(boost::system::error_code()); });
	co_await asked.async_receive(asio::use_awaitable);
}

tq::Task<> work(const tq::Job &job, const std::string &hold, unsigned random)
{
	if (hold == "stop")
	{
		co_await asked_to_stop(job);
		co_return;
	}
	asio::steady_timer timer(co_await asio::this_coro::executor);
	do
	{
		timer.expires_after(std::chrono::milliseconds(hold.empty() ? random % 20 : 10));
		co_await timer.async_wait(asio::use_awaitable);
	} while (!hold.empty() && access(hold.c_str(), F_OK) != 0); // poll
}

tq::Task<> take_jobs(tq::Worker &worker, Ledger &ledger, const tq::WorkerOptions &options, const std::string &hold,
					 unsigned seed)
{
	std::mt19937 random(seed);
	while (auto job = co_await worker.next())
	{
		const std::string payload = (*job)->payload; // {"t": "TOKEN"}
		ledger.note(*job, "start",
					std::to_string(Ledger::seconds(*(*job)->lease_expires_at)) + " " +
						payload.substr(7, payload.size() - 9) + " " +
						std::to_string(std::chrono::duration<double>(options.lease).count()));
		co_await work(*job, hold, random());
		const unsigned dice = random() % 100;
		ledger.note(*job, "end",
					dice < 80	? "complete"
					: dice < 88 ? "fail"
					: dice < 94 ? "release"
					: dice < 97 ? "bury"
								: "kill");
		bool ok = false;
		if (dice < 80)
			ok = co_await job->complete("1");
		else if (dice < 88)
			ok = co_await job->fail("as asked");
		else if (dice < 94)
			ok = co_await job->release();
		else if (dice < 97)
			ok = co_await job->bury("as asked");
		else
			ok = co_await job->fail("for good", {}, true);
		if (ok)
			ledger.note(*job, "told", "ok");
	}
}

} // namespace

int main(int count, char **arguments)
{
	tq::WorkerOptions options;
	std::string hold;
	options.queues = {arguments[2]};
	options.name = arguments[3];
	for (int i = 4; i < count; ++i)
	{
		const std::string text = arguments[i];
		const std::string option = text.substr(0, text.find('=')), value = text.substr(text.find('=') + 1);
		if (option == "lease_ms")
			options.lease = std::chrono::milliseconds(std::stoi(value));
		else if (option == "shutdown_ms")
			options.shutdown_timeout = std::chrono::milliseconds(std::stoi(value));
		else if (option == "cancel_ms")
			options.cancel_timeout = std::chrono::milliseconds(std::stoi(value));
		else if (option == "buffer")
			options.buffer = std::stoi(value);
		else if (option == "concurrency")
			options.concurrency = std::stoi(value);
		else if (option == "hold")
			hold = value;
		else if (option == "queue")
			options.queues.push_back(value);
		else if (option == "kind")
			options.kinds.push_back(value);
		else if (option == "drain")
			options.drain = true;
		else if (option == "max_jobs")
			options.max_jobs = std::stoi(value);
		else if (option == "key")
			options.codec =
				std::make_shared<tq::Codec>(std::map<std::string, std::string>{{"k", tq::base64_decode(value)}}, "k");
	}
	const bool with_ledger = std::string("ledger") == arguments[1];
	Ledger ledger(options.name);
	if (with_ledger)
		options.log = [&ledger](tq::LogLevel, const std::string &text) {
			ledger.note_log(text);
			std::cerr << text + "\n";
		};
	tq::Worker worker(options);
	int code = 0;
	if (with_ledger)
	{
		worker.start();
		asio::io_context context(1);
		for (unsigned i = 0; i < unsigned(options.concurrency); ++i)
			asio::co_spawn(context, take_jobs(worker, ledger, options, hold, i), [](std::exception_ptr error) {
				if (error)
					std::rethrow_exception(error);
			});
		context.run();
		code = worker.join();
	}
	else if (std::string("late") == arguments[1])
	{
		worker.start();
		tq::run(call_late(worker));
	}
	else
	{
		handle(worker);
		code = worker.run();
	}
	std::cout.flush();
	std::_Exit(code); // a handler may run for ever
}
