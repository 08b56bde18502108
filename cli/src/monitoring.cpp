// tq health, tq check and tq bench.
#include "command.hpp"

#include <tq/calls.hpp>
#include <tq/worker.hpp>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>

#include <atomic>
#include <chrono>
#include <iostream>

namespace cli
{

namespace
{

constexpr int kWarning = 1, kCritical = 2;

// As monitoring plugins do: 0 ok, 1 a warning, 2 an error or no answer.
tq::Task<int> health(Global global, bool all)
{
	try
	{
		global.any_server = true;
		tq::Connection connection = co_await connect(global);
		const tq::Result worst =
			co_await connection.query("SELECT CASE WHEN bool_or(status = 'error') THEN 2 WHEN bool_or(status = 'warn') "
									  "THEN 1 ELSE 0 END AS code, "
									  "coalesce(string_agg(item || ': ' || value, '; ') FILTER (WHERE status <> 'ok'), "
									  "'all items are ok') AS text FROM tq_health()");
		const int code = int(worst.integer(0, "code"));
		if (!global.json)
			std::cout << "TQ "
					  << (code == 0			 ? "OK"
						  : code == kWarning ? "WARNING"
											 : "CRITICAL")
					  << " - " << worst.text(0, "text") << "\n";
		if (all || global.json)
		{
			tq::Statement statement;
			statement.sql = "SELECT item, value, status, hint FROM tq_health()";
			co_await run_and_print(connection, std::move(statement), Command::kRows, global.json);
		}
		co_return code;
	}
	catch (const tq::Error &error)
	{
		if (global.json)
			std::cout << boost::json::serialize(boost::json::array{
							 {{"item", "connection"}, {"value", error.what()}, {"status", "error"}, {"hint", nullptr}}})
					  << "\n";
		else
			std::cout << "TQ CRITICAL - " << error.what() << "\n";
		co_return kCritical;
	}
}

tq::Task<int> check(Global global)
{
	tq::Connection connection = co_await connect(global);
	tq::Statement statement;
	statement.sql =
		global.json
			? "SELECT count(*) FILTER (WHERE expected = 0 AND found <> 0) AS faults, "
			  "json_agg(json_build_object('item', item, 'expected', expected, 'found', found)) AS rows FROM tq_check()"
			: "SELECT item, expected, found, CASE WHEN expected = 0 AND found <> 0 THEN 'fault' ELSE '' END AS "
			  "judgement "
			  "FROM tq_check()";
	const tq::Result rows = co_await connection.query(statement.sql);
	bool fault = false;
	if (global.json)
	{
		std::cout << rows.text(0, "rows") << "\n";
		fault = rows.text(0, "faults") != "0";
	}
	else
	{
		print_table(rows);
		for (int row = 0; row < rows.rows(); ++row)
			fault = fault || rows.text(row, "judgement") == "fault";
	}
	co_return fault ? 1 : 0;
}

tq::Task<> enqueue_all(Global global, std::string queue, std::int64_t jobs)
{
	tq::Connection connection = co_await connect(global);
	for (std::int64_t done = 0; done < jobs;)
	{
		const std::int64_t size = std::min<std::int64_t>(1000, jobs - done);
		std::vector<std::string> payloads(std::size_t(size), "{}");
		co_await tq::enqueue_many(connection, queue, std::move(payloads));
		done += size;
	}
}

// Enqueues jobs that do nothing and runs them in this process.
int bench(const Global &global, const std::string &queue, std::int64_t jobs, int concurrency, int buffer)
{
	using Clock = std::chrono::steady_clock;
	const auto seconds = [](Clock::duration length) { return std::chrono::duration<double>(length).count(); };
	const auto begin = Clock::now();
	tq::run(enqueue_all(global, queue, jobs));
	const auto enqueued = Clock::now();
	tq::WorkerOptions options;
	options.dsn = global.dsn;
	options.queues = {queue};
	options.concurrency = concurrency;
	options.buffer = buffer;
	options.threads = 1;
	options.drain = true;
	tq::Worker worker(options);
	std::atomic<std::int64_t> ran = 0;
	worker.on_any([&ran](tq::Job) { ++ran; });
	const int code = worker.run();
	const double per_second = double(ran) / seconds(Clock::now() - enqueued);
	const double enqueued_per_second = double(jobs) / seconds(enqueued - begin);
	if (global.json)
		std::cout << "{\"jobs\": " << ran << ", \"enqueued_per_second\": " << std::int64_t(enqueued_per_second)
				  << ", \"run_per_second\": " << std::int64_t(per_second) << "}\n";
	else
		std::cout << ran << " jobs; enqueued " << std::int64_t(enqueued_per_second) << " per second, ran "
				  << std::int64_t(per_second) << " per second\n";
	return code;
}

} // namespace

void add_monitoring(CLI::App &app, const Global &global, Action &action)
{
	struct Arguments
	{
		bool all = false;
		std::string queue = "tq_bench";
		std::int64_t jobs = 10000;
		int concurrency = 10, buffer = 200;
	};
	auto given = std::make_shared<Arguments>();
	CLI::App *sub =
		add_path(app, "health", "Judge the state of the server, with the exit codes of monitoring plugins", "");
	sub->add_flag("--all", given->all, "also show the items that are ok");
	sub->callback(
		[given, &global, &action] { action = [given, &global] { return tq::run(health(global, given->all)); }; });

	sub = add_path(app, "check", "Compare memory and journal, and correct counters", "");
	sub->callback([&global, &action] { action = [&global] { return tq::run(check(global)); }; });

	sub = add_path(app, "bench", "Measure jobs that do nothing; run it on a queue that nothing else uses",
				   "--jobs 10000");
	sub->add_option("--queue", given->queue, "the queue")->capture_default_str();
	sub->add_option("--jobs", given->jobs, "how many")->check(CLI::Range(1, 10000000))->capture_default_str();
	sub->add_option("--concurrency", given->concurrency, "jobs that run at once")
		->check(CLI::Range(1, 1000))
		->capture_default_str();
	sub->add_option("--buffer", given->buffer, "jobs held at most")->check(CLI::Range(1, 10000))->capture_default_str();
	sub->callback([given, &global, &action] {
		action = [given, &global] {
			return bench(global, given->queue, given->jobs, given->concurrency, given->buffer);
		};
	});
}

} // namespace cli
