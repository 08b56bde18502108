// tq get and tq tail, which wait.
#include "command.hpp"
#include "text.hpp"

#include <tq/calls.hpp>
#include <tq/detail/backoff.hpp>

#include <CLI/CLI.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <iostream>

namespace cli
{

namespace
{

// Whether the connection is lost, or the server has just started and loads the queues. Else it is a refusal.
bool is_interruption(const tq::Error &error)
{
	return dynamic_cast<const tq::ConnectionError *>(&error) || error.sqlstate() == "TQ009";
}

// Calls the function with the connection until it returns. After an interruption it is called again, with a new
// connection.
template <class Function>
tq::Task<> through_interruptions(const Global &global, tq::Connection &connection, Function function)
{
	tq::detail::Backoff backoff;
	for (bool said = false;;)
	{
		std::string trouble;
		try
		{
			if (!connection.is_open())
				connection = co_await connect(global);
			co_await function();
			if (said)
				std::cerr << "tq: connected again\n";
			co_return;
		}
		catch (const tq::Error &error)
		{
			if (!is_interruption(error))
				throw;
			trouble = error.what();
			connection.close();
		}
		if (!std::exchange(said, true))
			std::cerr << "tq: the connection is lost, trying again: " << trouble << "\n";
		boost::asio::steady_timer timer(co_await boost::asio::this_coro::executor, backoff.next());
		co_await timer.async_wait(boost::asio::use_awaitable);
	}
}

tq::Task<int> get(Global global, std::int64_t id, bool wait, std::string timeout)
{
	using Clock = std::chrono::steady_clock;
	std::optional<Clock::time_point> until;
	if (!timeout.empty())
		until = Clock::now() + parse_duration(timeout);
	tq::Connection connection = co_await connect(global);
	const std::vector<std::int64_t> ids(1, id);
	const auto ended = [&]() -> tq::Task<> {
		std::optional<tq::Duration> longest;
		if (until)
			longest = std::max(std::chrono::duration_cast<tq::Duration>(*until - Clock::now()), tq::Duration());
		co_await tq::wait_jobs(connection, ids, longest);
	};
	if (wait)
		co_await through_interruptions(global, connection, ended);
	tq::Statement statement;
	statement.sql = "SELECT * FROM tq_get($1::bigint)";
	statement.values.push_back(tq::value(id));
	co_await run_and_print(connection, std::move(statement), Command::kRow, global.json);
	co_return 0;
}

tq::Task<int> tail(Global global, std::optional<std::string> queue, std::optional<std::string> after,
				   std::int64_t count)
{
	tq::Connection connection = co_await connect(global);
	std::string cursor = after.value_or("now");
	std::optional<tq::Result> rows;
	const auto read = [&]() -> tq::Task<> {
		tq::Statement statement;
		statement.sql =
			"SELECT next_after, event IS NOT NULL AS change, at, id, queue, event, state, to_json(c) AS json "
			"FROM tq_changes(after => $1, queue => $2, wait => '10 s') c";
		statement.values.push_back(tq::value(cursor));
		statement.values.push_back(tq::value(queue));
		rows = co_await connection.query(statement.sql, statement.values);
	};
	for (std::int64_t shown = 0;;)
	{
		co_await through_interruptions(global, connection, read);
		for (int row = 0; row < rows->rows(); ++row)
		{
			cursor = rows->text(row, "next_after");
			if (rows->text(row, "change") != "t")
				continue;
			if (global.json)
				std::cout << rows->text(row, "json") << "\n";
			else
				std::cout << rows->text(row, "at") << "  " << rows->text(row, "id") << "  " << rows->text(row, "queue")
						  << "  " << rows->text(row, "event") << "  " << rows->text(row, "state") << "\n";
			if (++shown == count)
				co_return 0;
		}
		std::cout.flush();
		if (!std::cout)
			co_return 0; // the reader has gone
	}
}

} // namespace

void add_following(CLI::App &app, const Global &global, Action &action)
{
	struct Arguments
	{
		std::int64_t id = 0, count = 0;
		bool wait = false;
		std::string timeout, queue, after;
	};
	auto given = std::make_shared<Arguments>();
	CLI::App *sub = add_path(app, "get", "Show a job", "42 --wait --timeout 1m");
	sub->add_option("ID", given->id, "the job")->required();
	sub->add_flag("--wait", given->wait, "wait until it has ended");
	sub->add_option("--timeout", given->timeout, "for at most this time")->type_name("LENGTH");
	sub->callback([given, &global, &action] {
		action = [given, &global] { return tq::run(get(global, given->id, given->wait, given->timeout)); };
	});

	sub = add_path(app, "tail", "Follow what happens to jobs of queues with change_retention", "mail");
	sub->add_option("QUEUE", given->queue, "the queue; else all");
	sub->add_option("--after", given->after, "begin after this cursor; else now");
	sub->add_option("--count", given->count, "end after so many changes")->check(CLI::PositiveNumber);
	sub->callback([given, &global, &action] {
		const auto optional = [](const std::string &text) { return text.empty() ? std::nullopt : std::optional(text); };
		action = [given, &global, optional] {
			return tq::run(tail(global, optional(given->queue), optional(given->after), given->count));
		};
	});
}

} // namespace cli
