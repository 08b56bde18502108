// tq::Shared, with a real server.   usage: tq_test_shared QUEUE
#include "judge.hpp"

#include <boost/asio/executor_work_guard.hpp>

#include <algorithm>
#include <set>
#include <thread>

namespace asio = boost::asio;

namespace
{

// The number of transactions that wrote rows of a table. 0 would mean that the table has none.
tq::Task<std::int64_t> transactions(tq::Connection &connection, std::string table, std::vector<std::int64_t> ids)
{
	const std::string column = table == "tq.job" ? "id" : "job_id";
	std::vector<tq::Value> values(1, tq::value(ids));
	const tq::Result row = co_await connection.query("SELECT count(DISTINCT xmin::text) AS n FROM " + table +
														 " WHERE " + column + " = ANY ($1::bigint[])",
													 std::move(values));
	co_return row.integer(0, "n");
}

tq::Task<std::vector<std::int64_t>> ids_of(tq::Connection &connection, std::string queue)
{
	std::vector<tq::Value> values(1, queue);
	const tq::Result rows = co_await connection.query("SELECT id FROM tq_jobs WHERE queue = $1", std::move(values));
	std::vector<std::int64_t> ids;
	for (int row = 0; row < rows.rows(); ++row)
		ids.push_back(rows.integer(row, "id"));
	co_return ids;
}

tq::Task<> enqueue_together(tq::Connection &connection, tq::Shared &shared, std::string queue)
{
	std::vector<std::int64_t> ids(100);
	co_await at_once(100, [&](int i) -> tq::Task<> {
		tq::EnqueueOptions options;
		options.kind = "k" + std::to_string(i);
		if (i % 2)
			options.priority = i;
		const tq::Enqueued job = co_await shared.enqueue(queue, std::to_string(i), options);
		ids[std::size_t(i)] = *job.id;
	});
	const std::int64_t commits = co_await transactions(connection, "tq.job", ids);
	judge(commits >= 1 && commits <= 3, "calls at once share commits: " + std::to_string(commits));
	bool own = true;
	for (int i = 0; i < 100; ++i)
	{
		const tq::JobInfo job = co_await tq::get(connection, ids[std::size_t(i)]);
		own = own && job.payload == std::to_string(i) && job.kind == "k" + std::to_string(i) &&
			  (i % 2 ? job.priority == i : job.priority == 100);
	}
	judge(own, "each caller gets the id of its own job");

	std::int64_t last = 0;
	bool ordered = true;
	for (int i = 0; i < 5; ++i)
	{
		const tq::Enqueued job = co_await shared.enqueue(queue);
		ordered = ordered && *job.id > last;
		last = *job.id;
	}
	judge(ordered, "calls that wait for each other keep their order");
}

tq::Task<> refuse_some(tq::Connection &connection, tq::Shared &shared, std::string queue)
{
	tq::EnqueueOptions taken;
	taken.unique_key = "taken";
	co_await tq::enqueue(connection, queue, "{}", taken);
	std::vector<std::string> errors(40);
	std::vector<std::string> expected(40);
	expected[3] = "22003";
	expected[7] = "22P02";
	expected[11] = "TQ008";
	expected[12] = "22023";
	expected[13] = "22P02";
	co_await at_once(40, [&](int i) -> tq::Task<> {
		std::vector<tq::Argument> arguments;
		arguments.push_back({"queue", "text", queue});
		arguments.push_back({"payload", "jsonb", i == 7 ? "{no json" : std::to_string(i)});
		if (i == 3)
			arguments.push_back({"priority", "int", "99999999999"});
		if (i == 11)
			arguments.push_back({"unique_key", "text", "taken"});
		arguments.push_back({"unique_mode", "text", "error"});
		if (i == 12)
			arguments.push_back({"run_at", "timestamptz", "2100-01-01"});
		if (i == 12 || i == 20) // cannot go with the others
			arguments.push_back({"delay", "interval", "1 h"});
		if (i == 13)
			arguments.push_back({"headers", "jsonb", "nothing"});
		errors[std::size_t(i)] = co_await error_of(shared.enqueue(std::move(arguments)));
	});
	judge(errors == expected, "each caller gets its own error");
	const std::vector<std::int64_t> ids = co_await ids_of(connection, queue);
	judge(ids.size() == 36, "the others are enqueued once");
	tq::EnqueueOptions wrong;
	wrong.priority = 100000;
	const std::string alone = co_await error_of(shared.enqueue(queue, "{}", wrong));
	judge(alone == "22023", "a call that comes alone gets its error, too");
}

tq::Task<> finish_together(tq::Connection &connection, tq::Shared &shared, std::string queue)
{
	std::vector<std::string> payloads(40, "{}"), queues(1, queue);
	co_await tq::enqueue_many(connection, queue, payloads);
	tq::ClaimOptions claims;
	claims.max_jobs = 40;
	const std::vector<tq::JobData> jobs = co_await tq::claim(connection, queues, claims);
	std::vector<std::int64_t> completed;
	for (std::size_t i = 0; i < 20; ++i)
		completed.push_back(jobs[i].id);
	std::vector<std::string> errors(23);
	co_await at_once(23, [&](int i) -> tq::Task<> {
		const tq::JobData &job = jobs[std::size_t(i) % 21];
		// 20: a lost lease; 21: the job of 0 again; 22: no such job
		errors[std::size_t(i)] = co_await error_of(
			shared.complete(i == 22 ? 999999999 : job.id, i == 20 ? 1 : job.lease, std::to_string(i)));
	});
	const bool one_of_two = (errors[0] == "" && errors[21] == "TQ001") || (errors[0] == "TQ001" && errors[21] == "");
	judge(one_of_two && std::count(errors.begin(), errors.end(), "") == 20 && errors[20] == "TQ001" &&
			  errors[22] == "TQ004",
		  "each finish gets its own answer");
	bool own = true;
	for (int i = 1; i < 20; ++i)
	{
		const tq::JobInfo job = co_await tq::get(connection, jobs[std::size_t(i)].id);
		own = own && job.state == "succeeded" && job.result == std::to_string(i);
	}
	judge(own, "... and each job its own result");
	std::vector<tq::Value> values(1, tq::value(completed));
	const tq::Result row = co_await connection.query(
		"SELECT count(DISTINCT xmin::text) AS n FROM tq.event WHERE type = 's' AND job_id = ANY ($1::bigint[])",
		std::move(values));
	judge(row.integer(0, "n") <= 3, "finishes share commits: " + std::string(row.text(0, "n")));
	co_await at_once(10, [&](int i) -> tq::Task<> {
		const tq::JobData &job = jobs[std::size_t(25 + i)];
		co_await shared.fail(job.id, job.lease, "e" + std::to_string(i));
	});
	const tq::JobInfo failed = co_await tq::get(connection, jobs[27].id);
	judge(failed.error == "e2" && failed.state == "delayed", "failures share commits, too");
	// a result that the server refuses
	std::vector<std::string> refused(3);
	co_await at_once(3, [&](int i) -> tq::Task<> {
		const tq::JobData &job = jobs[std::size_t(35 + i)];
		refused[std::size_t(i)] = co_await error_of(shared.complete(job.id, job.lease, i == 1 ? "{no json" : "1"));
	});
	judge(refused[0] == "" && refused[1] == "22P02" && refused[2] == "", "a result that is no JSON refuses one call");
}

// Calls of two moments, while a line with the same kind of calls is under way.
tq::Task<> wait_for_a_line(tq::Connection &connection, std::string queue)
{
	const auto executor = co_await asio::this_coro::executor;
	asio::steady_timer goes_on(executor, asio::steady_timer::time_point::max());
	boost::system::error_code error;
	int lines = 0, answered = 0;
	tq::SharedOptions options;
	options.with_connection = [&](std::function<tq::Task<>(tq::Connection &)> use) -> tq::Task<> {
		const bool first = lines++ == 0;
		tq::Connection own = co_await tq::Connection::open("");
		co_await use(own);
		if (first)
			co_await goes_on.async_wait(asio::redirect_error(asio::use_awaitable, error));
	};
	tq::Shared shared(executor, options);
	co_await shared.enqueue(queue);
	tq::EnqueueOptions later;
	later.delay = std::chrono::hours(1); // does not go with the others
	co_await shared.enqueue(queue, "{}", later);
	judge(lines == 2, "a call that cannot go with those of a line does not wait for it");
	co_await at_once(21, [&](int i) -> tq::Task<> {
		asio::steady_timer pause(executor, std::chrono::milliseconds(i < 10 ? 0 : 30));
		co_await pause.async_wait(asio::use_awaitable);
		if (i < 20)
		{
			co_await shared.enqueue(queue);
			++answered;
			co_return;
		}
		judge(answered == 0, "calls wait for a line with calls of their kind");
		goes_on.cancel();
	});
	const std::vector<std::int64_t> ids = co_await ids_of(connection, queue);
	judge(lines == 3 && ids.size() == 22, "... and then go together: " + std::to_string(lines) + " lines");
	co_await shared.close();
}

tq::Task<> beside_a_transaction(tq::Connection &connection, tq::Shared &shared, std::string queue)
{
	tq::Connection own = co_await tq::Connection::open("");
	co_await own.query("BEGIN");
	tq::EnqueueOptions keyed;
	keyed.unique_key = "held";
	co_await tq::enqueue(own, queue, "\"rolled back\"", keyed);
	std::vector<std::string> outcomes(2);
	bool free_one_first = false;
	co_await at_once(3, [&](int i) -> tq::Task<> {
		if (i < 2)
		{
			tq::EnqueueOptions options = keyed;
			if (i == 1)
				options.delay = std::chrono::hours(1); // goes apart
			const tq::Enqueued job = co_await shared.enqueue(queue, "\"waited\"", options);
			outcomes[std::size_t(i)] = job.outcome;
			co_return;
		}
		for (int round = 0; round < 3; ++round)
			co_await shared.enqueue(queue, "\"free\"");
		free_one_first = outcomes[0].empty() && outcomes[1].empty();
		co_await own.query("ROLLBACK");
	});
	judge(free_one_first, "calls that wait for a unique key leave a line to the others");
	std::sort(outcomes.begin(), outcomes.end());
	const std::vector<std::int64_t> ids = co_await ids_of(connection, queue);
	judge(outcomes[0] == "created" && outcomes[1] == "skipped" && ids.size() == 4,
		  "calls are not part of the transaction of a caller");
}

tq::Task<> kill_sessions(tq::Connection &connection, std::string where)
{
	const tq::Result killed = co_await connection.query(
		"SELECT count(pg_terminate_backend(pid, 180000)) AS n FROM pg_stat_activity WHERE application_name = 'shared'" + where);
	(void)killed;
}

tq::Task<> lose_connections(tq::Connection &connection, tq::Shared &shared, std::string queue)
{
	co_await shared.enqueue(queue);
	co_await kill_sessions(connection, "");
	const std::string idle = co_await error_of(shared.enqueue(queue));
	judge(idle == "", "a connection that was lost while idle is replaced");

	tq::Connection own = co_await tq::Connection::open("");
	co_await own.query("BEGIN");
	tq::EnqueueOptions keyed;
	keyed.unique_key = "held";
	co_await tq::enqueue(own, queue, "{}", keyed);
	std::vector<std::string> errors(5);
	co_await at_once(6, [&](int i) -> tq::Task<> {
		if (i < 5)
		{
			tq::EnqueueOptions options;
			options.unique_key = i == 0 ? "held" : "k" + std::to_string(i);
			errors[std::size_t(i)] = co_await error_of(shared.enqueue(queue, "{}", options));
			co_return;
		}
		for (;;)
		{
			const tq::Result row = co_await connection.query(
				"SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = 'shared' AND wait_event_type = 'Lock'");
			if (row.integer(0, "n") > 0)
				break;
		}
		co_await kill_sessions(connection, " AND wait_event_type = 'Lock'");
		co_await own.query("ROLLBACK");
	});
	judge(std::count(errors.begin(), errors.end(), "lost") == 5, "all calls of a lost statement raise ConnectionError");
	const std::vector<std::int64_t> ids = co_await ids_of(connection, queue);
	judge(ids.size() == 2, "... and none is repeated");
	const std::string after = co_await error_of(shared.enqueue(queue));
	judge(after == "", "the next call gets a new connection");

	tq::SharedOptions nowhere;
	nowhere.dsn = "host=127.0.0.1 port=1";
	tq::Shared lost(co_await asio::this_coro::executor, nowhere);
	std::vector<std::string> nobody(3);
	co_await at_once(
		3, [&](int i) -> tq::Task<> { nobody[std::size_t(i)] = co_await error_of(lost.enqueue(queue)); });
	judge(std::count(nobody.begin(), nobody.end(), "lost") == 3, "without a server all calls raise ConnectionError");
}

tq::Task<> close_down(tq::Connection &connection, std::string queue)
{
	tq::Shared shared(co_await asio::this_coro::executor);
	std::vector<std::string> errors(21);
	co_await at_once(21, [&](int i) -> tq::Task<> {
		if (i < 20)
			errors[std::size_t(i)] = co_await error_of(shared.enqueue(queue));
		else
		{
			co_await shared.close();
			const std::vector<std::int64_t> ids = co_await ids_of(connection, queue);
			judge(ids.size() == 20, "close waits for calls that were made");
		}
	});
	judge(std::count(errors.begin(), errors.end(), "") == 21, "... which succeed");
	bool refused = false;
	try
	{
		co_await shared.enqueue(queue);
	}
	catch (const tq::Error &)
	{
		refused = true;
	}
	judge(refused, "... and refuses others");
}

// Callers in threads of their own.
void call_from_threads(const std::string &queue)
{
	asio::io_context context(1);
	auto guard = asio::make_work_guard(context);
	std::thread server([&context] { context.run(); });
	std::mutex mutex;
	std::set<std::int64_t> ids;
	{
		tq::Shared shared(context.get_executor());
		std::vector<std::thread> callers;
		for (int n = 0; n < 4; ++n)
			callers.emplace_back([&] {
				const auto call = [&]() -> tq::Task<> {
					for (int i = 0; i < 50; ++i)
					{
						const tq::Enqueued job = co_await shared.enqueue(queue);
						std::lock_guard lock(mutex);
						ids.insert(*job.id);
					}
				};
				tq::run(call());
			});
		for (std::thread &caller : callers)
			caller.join();
		tq::run(shared.close());
	}
	guard.reset();
	server.join();
	judge(ids.size() == 200, "calls come from several threads");
}

tq::Task<> call_all(std::string queue)
{
	tq::Connection connection = co_await tq::Connection::open("");
	tq::SharedOptions options;
	options.dsn = "application_name=shared";
	tq::Shared shared(co_await asio::this_coro::executor, options);
	for (const char *end : {"a", "b", "c", "d", "e", "f", "g"})
		co_await tq::create_queue(connection, queue + end, "{\"retry\": {\"policy\": \"fixed\", \"delay\": \"1 h\"}}");
	co_await enqueue_together(connection, shared, queue + "a");
	co_await refuse_some(connection, shared, queue + "b");
	co_await finish_together(connection, shared, queue + "c");
	co_await beside_a_transaction(connection, shared, queue + "d");
	co_await lose_connections(connection, shared, queue + "e");
	co_await close_down(connection, queue + "f");
	co_await wait_for_a_line(connection, queue + "g");
	co_await shared.close();
}

} // namespace

int main(int, char **arguments)
{
	program_name = "shared";
	tq::run(call_all(arguments[1]));
	call_from_threads(arguments[1]);
	return failures != 0;
}
