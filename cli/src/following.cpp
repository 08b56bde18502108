// tq get and tq tail, which wait.
#include "command.hpp"
#include "text.hpp"

#include <tq/calls.hpp>
#include <tq/detail/backoff.hpp>

#include <CLI/CLI.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <charconv>
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

struct GetOptions
{
	std::vector<std::string> ids;
	bool wait = false, first = false;
	std::string timeout;
};

std::int64_t id_of(const std::string &text)
{
	std::int64_t id = 0;
	const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
	if (error != std::errc() || end != text.data() + text.size())
		throw std::invalid_argument("\"" + text + "\" is not the id of a job");
	return id;
}

tq::Task<int> get(Global global, GetOptions options)
{
	std::vector<std::int64_t> ids;
	for (const std::string &id : listed(options.ids))
		ids.push_back(id_of(id));
	using Clock = std::chrono::steady_clock;
	std::optional<Clock::time_point> until;
	if (!options.timeout.empty())
		until = Clock::now() + parse_duration(options.timeout);
	tq::Connection connection = co_await connect(global);
	const auto ended = [&]() -> tq::Task<> {
		std::optional<tq::Duration> longest;
		if (until)
			longest = std::max(std::chrono::duration_cast<tq::Duration>(*until - Clock::now()), tq::Duration());
		co_await tq::wait_jobs(connection, ids, longest, options.first);
	};
	if (options.wait || options.first)
		co_await through_interruptions(global, connection, ended);
	const bool one = ids.size() == 1;
	tq::Statement statement;
	statement.sql = one ? "SELECT * FROM tq_get($1::bigint)" : "SELECT * FROM tq_outcomes($1::bigint[])";
	statement.values.push_back(one ? tq::value(ids.front()) : tq::value(ids));
	co_await run_and_print(connection, std::move(statement), one ? Command::kRow : Command::kRows, global.json);
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
			"FROM tq_changes(after => $1, queue => $2, wait => $3) c";
		statement.values.push_back(tq::value(cursor));
		statement.values.push_back(tq::value(queue));
		// the first page, at once: "now" is later after a lost connection
		statement.values.push_back(cursor == "now" ? "0" : "10 s");
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
	auto wanted = std::make_shared<GetOptions>();
	CLI::App *sub = add_path(app, "get", "Show a job, or states and results of several", "42 43 --wait --timeout 1m");
	sub->add_option("ID", wanted->ids, "a job; - reads one from each line of standard input")->required();
	sub->add_flag("--wait", wanted->wait, "wait until all have ended");
	sub->add_flag("--first", wanted->first, "wait until one has ended");
	sub->add_option("--timeout", wanted->timeout, "for at most this time")->type_name("LENGTH");
	sub->callback([wanted, &global, &action] { action = [wanted, &global] { return tq::run(get(global, *wanted)); }; });

	struct Arguments
	{
		std::int64_t count = 0;
		std::string queue, after;
	};
	auto given = std::make_shared<Arguments>();
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
