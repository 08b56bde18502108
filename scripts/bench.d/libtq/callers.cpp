// Callers in one process and thread, each of which enqueues a job, or takes and finishes one, again and again.
//
// usage: callers SYSTEM ADDRESS JOBS CALLERS
//
// SYSTEM is tq, tq_shared or tq_worker (ADDRESS: a connection string), redis or beanstalkd (ADDRESS: a Unix socket). The
// callers enqueue JOBS jobs, then take and finish them. Prints jobs per second of both as JSON. PAYLOAD in the environment
// is the payload.
#include <tq/tq.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <cstdio>
#include <cstdlib>

namespace asio = boost::asio;

namespace
{

// One caller's way to a system.
struct Caller
{
	virtual ~Caller() = default;
	virtual tq::Task<> enqueue() = 0;
	// Takes a job and finishes it; false: there is none.
	virtual tq::Task<bool> take() = 0;
};
using Open = std::function<tq::Task<std::unique_ptr<Caller>>(std::string)>;

const std::string &payload()
{
	static const std::string text = std::getenv("PAYLOAD") ? std::getenv("PAYLOAD") : "{}";
	return text;
}

// A connection for each caller, and a commit for each call.
struct Tq : Caller
{
	explicit Tq(tq::Connection opened) : connection(std::move(opened)) { connection.prepare_statements(); }

	tq::Task<> enqueue() override { co_await tq::enqueue(connection, "calls", payload()); }

	tq::Task<bool> take() override
	{
		std::vector<std::string> queues{"calls"};
		const std::vector<tq::JobData> jobs = co_await tq::claim(connection, std::move(queues));
		if (jobs.empty())
			co_return false;
		co_await complete(jobs.front());
		co_return true;
	}

	virtual tq::Task<> complete(const tq::JobData &job) { co_await tq::complete(connection, job.id, job.lease); }

	static tq::Task<std::unique_ptr<Caller>> open(std::string dsn)
	{
		co_return std::make_unique<Tq>(co_await tq::Connection::open(dsn));
	}

	tq::Connection connection;
};

// What all callers use to share commits.
std::shared_ptr<tq::Shared> shared_calls(const asio::any_io_executor &executor, const std::string &dsn)
{
	static std::weak_ptr<tq::Shared> of_all;
	std::shared_ptr<tq::Shared> shared = of_all.lock();
	if (!shared)
	{
		tq::SharedOptions options;
		options.dsn = dsn;
		of_all = shared = std::make_shared<tq::Shared>(executor, std::move(options));
	}
	return shared;
}

// Enqueues and finishes share commits. Claims wait for no commit; each caller has a connection for them.
struct TqShared : Tq
{
	TqShared(tq::Connection opened, std::shared_ptr<tq::Shared> calls) : Tq(std::move(opened)), shared(std::move(calls))
	{}

	tq::Task<> enqueue() override { co_await shared->enqueue("calls", payload()); }
	tq::Task<> complete(const tq::JobData &job) override { co_await shared->complete(job.id, job.lease); }

	static tq::Task<std::unique_ptr<Caller>> open(std::string dsn)
	{
		const auto executor = co_await asio::this_coro::executor;
		tq::Connection connection = co_await tq::Connection::open(dsn);
		co_return std::make_unique<TqShared>(std::move(connection), shared_calls(executor, dsn));
	}

	std::shared_ptr<tq::Shared> shared;
};

// A worker holds one job for each caller: it claims several at once, and finishes in batches. Enqueues share commits.
struct TqWorker : Caller
{
	TqWorker(std::shared_ptr<tq::Shared> calls, std::string address) : shared(std::move(calls)), dsn(std::move(address))
	{
		++callers;
	}

	tq::Task<> enqueue() override { co_await shared->enqueue("calls", payload()); }

	tq::Task<bool> take() override
	{
		if (!worker)
		{
			tq::WorkerOptions options;
			options.dsn = dsn;
			options.queues = {"calls"};
			options.concurrency = callers;
			options.drain = true;
			options.handle_signals = false;
			worker = std::make_unique<tq::Worker>(std::move(options));
			worker->start();
		}
		const std::optional<tq::Job> job = co_await worker->next();
		if (!job)
			co_return false;
		const bool completed = co_await job->complete();
		co_return completed;
	}

	static tq::Task<std::unique_ptr<Caller>> open(std::string dsn)
	{
		const auto executor = co_await asio::this_coro::executor;
		co_return std::make_unique<TqWorker>(shared_calls(executor, dsn), dsn);
	}

	static inline std::unique_ptr<tq::Worker> worker; // of all callers
	static inline int callers = 0;
	std::shared_ptr<tq::Shared> shared;
	std::string dsn;
};

// A connection of a line protocol.
struct Lines : Caller
{
	using Socket = asio::local::stream_protocol::socket;

	explicit Lines(Socket opened) : socket(std::move(opened)) {}

	tq::Task<std::string> line()
	{
		const std::size_t size = co_await asio::async_read_until(socket, asio::dynamic_buffer(input), "\r\n", asio::use_awaitable);
		std::string text = input.substr(0, size - 2);
		input.erase(0, size);
		co_return text;
	}

	// A block of bytes and its end of line.
	tq::Task<> skip(std::size_t size)
	{
		if (input.size() < size + 2)
			co_await asio::async_read(socket, asio::dynamic_buffer(input), asio::transfer_at_least(size + 2 - input.size()), asio::use_awaitable);
		input.erase(0, size + 2);
	}

	tq::Task<std::string> ask(std::string request)
	{
		co_await asio::async_write(socket, asio::buffer(request), asio::use_awaitable);
		co_return co_await line();
	}

	// Raises unless the answer begins so.
	tq::Task<> expect(std::string request, std::string beginning)
	{
		const std::string answer = co_await ask(std::move(request));
		if (!answer.starts_with(beginning))
			throw std::runtime_error("the answer is " + answer);
	}

	template <class System>
	static tq::Task<std::unique_ptr<Caller>> open(std::string path)
	{
		Socket socket(co_await asio::this_coro::executor);
		const asio::local::stream_protocol::endpoint endpoint(path);
		co_await socket.async_connect(endpoint, asio::use_awaitable);
		co_return std::make_unique<System>(std::move(socket));
	}

	Socket socket;
	std::string input;
};

// A list of jobs, and one of those in work, as the manual of Redis describes a reliable queue.
struct Redis : Lines
{
	using Lines::Lines;

	static std::string command(const std::vector<std::string> &words)
	{
		std::string text = "*" + std::to_string(words.size()) + "\r\n";
		for (const std::string &word : words)
			text += "$" + std::to_string(word.size()) + "\r\n" + word + "\r\n";
		return text;
	}

	tq::Task<> enqueue() override
	{
		std::string request = command({"LPUSH", "jobs", payload()});
		co_await expect(std::move(request), ":");
	}

	tq::Task<bool> take() override
	{
		std::string request = command({"LMOVE", "jobs", "work", "RIGHT", "LEFT"});
		const std::string answer = co_await ask(std::move(request));
		if (!answer.starts_with("$"))
			throw std::runtime_error("the answer is " + answer);
		if (answer == "$-1")
			co_return false;
		co_await skip(std::stoul(answer.substr(1)));
		request = command({"LREM", "work", "1", payload()});
		co_await expect(std::move(request), ":1");
		co_return true;
	}
};

struct Beanstalkd : Lines
{
	using Lines::Lines;

	tq::Task<> enqueue() override
	{
		std::string request = "put 100 0 60 " + std::to_string(payload().size()) + "\r\n" + payload() + "\r\n";
		co_await expect(std::move(request), "INSERTED ");
	}

	tq::Task<bool> take() override
	{
		const std::string answer = co_await ask("reserve-with-timeout 0\r\n");
		unsigned long id = 0, size = 0;
		if (std::sscanf(answer.c_str(), "RESERVED %lu %lu", &id, &size) != 2)
		{
			if (answer != "TIMED_OUT")
				throw std::runtime_error("the answer is " + answer);
			co_return false;
		}
		co_await skip(size);
		std::string request = "delete " + std::to_string(id) + "\r\n";
		co_await expect(std::move(request), "DELETED");
		co_return true;
	}
};

const std::map<std::string, Open> kSystems = {
	{"tq", Tq::open},
	{"tq_shared", TqShared::open},
	{"tq_worker", TqWorker::open},
	{"redis", Lines::open<Redis>},
	{"beanstalkd", Lines::open<Beanstalkd>}};

tq::Task<> enqueues(Caller *caller, long *left)
{
	while ((*left)-- > 0)
		co_await caller->enqueue();
}

tq::Task<> takes(Caller *caller, long *taken)
{
	for (;;)
	{
		const bool found = co_await caller->take(); // g++ 12 miscompiles a co_await in the condition of a loop
		if (!found)
			co_return;
		++*taken;
	}
}

using Callers = std::vector<std::unique_ptr<Caller>>;

tq::Task<> open_all(Callers *callers, Open open, std::string address, int number)
{
	for (int i = 0; i < number; ++i)
		callers->push_back(co_await open(address));
}

// Runs one coroutine for each caller; returns the seconds until all have ended. Raises the first error of one.
double seconds(asio::io_context &context, const Callers &callers, tq::Task<> (*work)(Caller *, long *), long *count)
{
	std::exception_ptr error;
	const auto begin = std::chrono::steady_clock::now();
	for (const std::unique_ptr<Caller> &caller : callers)
		asio::co_spawn(context, work(caller.get(), count), [&error](std::exception_ptr raised) { error = error ? error : raised; });
	context.restart();
	context.run();
	if (error)
		std::rethrow_exception(error);
	return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

} // namespace

int main(int argc, char **argv)
try
{
	if (argc != 5 || !kSystems.contains(argv[1]))
	{
		std::fputs("usage: callers tq|tq_shared|tq_worker|redis|beanstalkd ADDRESS JOBS CALLERS\n", stderr);
		return 2;
	}
	const long jobs = std::atol(argv[3]);
	asio::io_context context(1);
	Callers callers;
	std::exception_ptr error;
	asio::co_spawn(context, open_all(&callers, kSystems.at(argv[1]), argv[2], std::atoi(argv[4])),
				   [&error](std::exception_ptr raised) { error = raised; });
	context.run();
	if (error)
		std::rethrow_exception(error);
	long left = jobs, taken = 0;
	const double enqueuing = seconds(context, callers, enqueues, &left), taking = seconds(context, callers, takes, &taken);
	if (taken != jobs)
		throw std::runtime_error(std::to_string(taken) + " of " + std::to_string(jobs) + " jobs were there");
	std::printf("{\"enqueue\": %.1f, \"take\": %.1f}\n", double(jobs) / enqueuing, double(jobs) / taking);
	return 0;
}
catch (const std::exception &error)
{
	std::fprintf(stderr, "callers: %s\n", error.what());
	return 1;
}
