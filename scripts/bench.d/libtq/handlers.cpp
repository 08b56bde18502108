// A worker of libtq beside what bounds it.
//
// usage: handlers latency DSN SAMPLES      from an enqueue to its handler, one at a time, on an idle worker
//        handlers spawn JOBS THREADS       fork and exec of `true`, which `tq work true` does for each job
//
// Prints JSON. Times are milliseconds: p50 and p99 from the answer to the enqueue until the handler runs (0 if the
// handler was first), sent_p50 and sent_p99 from sending the enqueue, so with the commit.
#include <tq/tq.hpp>

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <semaphore>
#include <spawn.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace
{

double ms(Clock::duration length) { return std::chrono::duration<double, std::milli>(length).count(); }

void print(const char *prefix, std::vector<double> &samples, const char *end)
{
	std::sort(samples.begin(), samples.end());
	std::printf("\"%sp50\": %.4f, \"%sp99\": %.4f%s", prefix, samples[samples.size() / 2], prefix,
				samples[samples.size() * 99 / 100], end);
}

struct Handled
{
	std::atomic<std::int64_t> at = 0; // of Clock
	std::binary_semaphore ran{0};
};

tq::Task<> enqueue_each(std::string dsn, int samples, Handled *handled, std::vector<double> *answered, std::vector<double> *sent)
{
	tq::Connection connection = co_await tq::Connection::open(dsn);
	connection.prepare_statements();
	std::mt19937 random(1);
	for (int n = -samples / 10; n < samples; ++n) // the first ones warm up
	{
		// until the worker waits again, and not in step with periodic work
		std::this_thread::sleep_for(3ms + std::chrono::microseconds(random() % 2000));
		const Clock::time_point begin = Clock::now();
		co_await tq::enqueue(connection, "latency");
		const Clock::time_point committed = Clock::now();
		if (!handled->ran.try_acquire_for(30s))
			throw std::runtime_error("a job did not come within 30 s");
		const Clock::time_point at{Clock::duration(handled->at.load())};
		if (n < 0)
			continue;
		answered->push_back(ms(std::max(at - committed, Clock::duration(0))));
		sent->push_back(ms(at - begin));
	}
}

int latency(const std::string &dsn, int samples)
{
	Handled handled;
	tq::WorkerOptions options;
	options.dsn = dsn;
	options.queues = {"latency"};
	options.threads = 1;
	tq::Worker worker(options);
	worker.on_any([&handled](tq::Job) {
		handled.at = Clock::now().time_since_epoch().count();
		handled.ran.release();
	});
	std::thread runs([&worker] { worker.run(); });
	std::vector<double> answered, sent;
	std::exception_ptr error;
	try
	{
		tq::run(enqueue_each(dsn, samples, &handled, &answered, &sent));
	}
	catch (...)
	{
		error = std::current_exception();
	}
	worker.stop();
	runs.join();
	if (error)
		std::rethrow_exception(error);
	std::printf("{");
	print("", answered, ", ");
	print("sent_", sent, "}\n");
	return 0;
}

int spawn(int jobs, int threads)
{
	std::atomic<int> left = jobs, failed = 0;
	const Clock::time_point begin = Clock::now();
	std::vector<std::jthread> running;
	for (int i = 0; i < threads; ++i)
		running.emplace_back([&left, &failed] {
			char name[] = "true";
			char *arguments[] = {name, nullptr};
			while (left-- > 0)
			{
				pid_t pid;
				int status = 1;
				if (posix_spawnp(&pid, name, nullptr, nullptr, arguments, environ) != 0 || waitpid(pid, &status, 0) != pid || status != 0)
					++failed;
			}
		});
	running.clear(); // joins
	std::printf("{\"rate\": %.1f}\n", jobs / ms(Clock::now() - begin) * 1000);
	return failed == 0 ? 0 : 1;
}

} // namespace

int main(int argc, char **argv)
try
{
	if (argc == 4 && std::strcmp(argv[1], "latency") == 0)
		return latency(argv[2], std::atoi(argv[3]));
	if (argc == 4 && std::strcmp(argv[1], "spawn") == 0)
		return spawn(std::atoi(argv[2]), std::atoi(argv[3]));
	std::fputs("usage: handlers latency DSN SAMPLES | spawn JOBS THREADS\n", stderr);
	return 2;
}
catch (const std::exception &error)
{
	std::fprintf(stderr, "handlers: %s\n", error.what());
	return 1;
}
