// tq import: takes over the jobs of another queue in the same database.
#include "command.hpp"

#include <tq/calls.hpp>

#include <CLI/CLI.hpp>

#include <iostream>
#include <map>

namespace cli
{

namespace
{

struct Import
{
	std::string table = "delayed_jobs";
	int max_attempts = 25;
};

// Deletes rows and makes jobs of them, as the backend of clients/ruby writes them. Rows that a worker has locked stay, but
// failed ones keep the lock of the worker that gave them up.
std::string taken(const std::string &table, bool failed)
{
	return "WITH gone AS (DELETE FROM " + table + " WHERE " +
		   (failed ? "failed_at IS NOT NULL" : "failed_at IS NULL AND locked_at IS NULL") + R"( RETURNING *), taken AS (
		SELECT id, coalesce(nullif(queue, ''), 'delayed_job') AS queue, attempts, run_at::timestamptz AS run_at, last_error,
			least(greatest(priority, -32768), 32767) AS priority,
			jsonb_strip_nulls(jsonb_build_object('handler', handler, 'priority', priority, 'last_error', last_error,
				'attempts', nullif(attempts)" +
		   (failed ? " - 1" : "") + R"(, 0))) AS payload
		FROM gone))";
}

// Ready before all others, to be claimed and failed.
constexpr std::string_view kFailed = R"(
	SELECT tq_enqueue(queue, payload, kind => 'delayed_job', priority => -32768, max_attempts => 1) AS id, queue,
		coalesce(last_error, 'failed') AS error
	FROM taken)";

// In chunks, since arrays have limits.
constexpr std::string_view kWaiting = R"(
	SELECT coalesce(sum(cardinality(tq_enqueue_many(queue, payloads, kind => 'delayed_job', priorities => priorities,
		run_ats => run_ats, max_attempts => greatest($1::int - attempts, 1)))), 0) AS jobs
	FROM (
		SELECT queue, attempts, array_agg(payload ORDER BY number) AS payloads,
			array_agg(priority ORDER BY number) AS priorities,
			array_agg(CASE WHEN run_at > now() THEN run_at END ORDER BY number) AS run_ats
		FROM (
			SELECT *, row_number() OVER (PARTITION BY queue, attempts ORDER BY priority, run_at, id) AS number FROM taken
		) numbered
		GROUP BY queue, attempts, (number - 1) / 1000
		ORDER BY queue, attempts, min(number)
	) chunks)";

// Fails the jobs, which this transaction has enqueued to the queue. Other jobs of the queue are given back.
tq::Task<> fail_all(tq::Connection &connection, std::string queue, std::map<std::int64_t, std::string> errors)
{
	std::vector<tq::JobData> others;
	std::vector<std::string> queues(1, queue);
	tq::ClaimOptions options;
	options.max_jobs = 100;
	options.worker = "tq import";
	options.kinds.push_back("delayed_job");
	while (!errors.empty())
	{
		const std::vector<tq::JobData> jobs = co_await tq::claim(connection, queues, options);
		if (jobs.empty())
			throw tq::Error({}, "failed jobs of queue \"" + queue + "\" cannot be claimed", {},
							"A queue that is paused or limited takes no failed jobs.");
		for (const tq::JobData &job : jobs)
		{
			const auto found = errors.find(job.id);
			if (found == errors.end())
			{
				others.push_back(job);
				continue;
			}
			co_await tq::fail(connection, job.id, job.lease, found->second, {}, true);
			errors.erase(found);
		}
	}
	for (const tq::JobData &job : others)
		co_await tq::release(connection, job.id, job.lease);
}

tq::Task<int> import_delayed_job(Global global, Import import)
{
	tq::Connection connection = co_await connect(global);
	co_await connection.query("BEGIN");
	// a time without a time zone is in UTC
	co_await connection.query("SET LOCAL TimeZone = 'UTC'");
	co_await connection.query("SET LOCAL tq.claim_own = on");
	std::vector<tq::Value> table = tq::values(import.table), most = tq::values(import.max_attempts);
	const tq::Result name = co_await connection.query("SELECT $1::regclass::text", table);
	const std::string quoted(name.text(0, 0));
	const tq::Result failed = co_await connection.query(taken(quoted, true) + std::string(kFailed));
	std::map<std::string, std::map<std::int64_t, std::string>> by_queue;
	for (int row = 0; row < failed.rows(); ++row)
		by_queue[std::string(failed.text(row, "queue"))][failed.integer(row, "id")] = failed.text(row, "error");
	for (const auto &[queue, errors] : by_queue)
		co_await fail_all(connection, queue, errors);
	const tq::Result waiting = co_await connection.query(taken(quoted, false) + std::string(kWaiting), most);
	const tq::Result locked = co_await connection.query("SELECT count(*) AS jobs FROM " + quoted);
	co_await connection.query("COMMIT");
	const std::string counts[] = {std::string(waiting.text(0, "jobs")), std::to_string(failed.rows()),
								  std::string(locked.text(0, "jobs"))};
	if (global.json)
		std::cout << "{\"waiting\":" << counts[0] << ",\"dead\":" << counts[1] << ",\"locked\":" << counts[2] << "}\n";
	else
		std::cout << counts[0] << " waiting and " << counts[1] << " failed jobs were imported; " << counts[2]
				  << " rows are locked by workers, and stay\n";
	co_return 0;
}

} // namespace

void add_import(CLI::App &app, const Global &global, Action &action)
{
	auto import = std::make_shared<Import>();
	CLI::App *sub =
		add_path(app, "import delayed_job", "Move the jobs of a table of delayed_job to tq, in one transaction",
				 "--table delayed_jobs");
	sub->add_option("--table", import->table, "the table of delayed_job")->capture_default_str();
	sub->add_option("--max-attempts", import->max_attempts, "Delayed::Worker.max_attempts")
		->check(CLI::Range(1, 65535))
		->capture_default_str();
	sub->callback([import, &global, &action] {
		action = [import, &global] { return tq::run(import_delayed_job(global, *import)); };
	});
}

} // namespace cli
