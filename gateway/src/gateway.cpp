#include "gateway.hpp"

#include "console.hpp"
#include "once.hpp"
#include "openapi.hpp"
#include "problem.hpp"
#include "raw_json.hpp"
#include "waits.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <optional>

namespace asio = boost::asio;
using namespace std::chrono_literals;

namespace gateway
{

namespace
{

constexpr auto kFirstLook = 20ms, kLastLook = 1000ms; // where only the client's role sees the end of its job
constexpr auto kUnasked = 30s;						  // after this long, a client that waits for an end looks itself
constexpr int kMostAwaited = 1000;					  // jobs of one call
constexpr std::size_t kMostLengths = 1000;			  // that are remembered

} // namespace

Gateway::Gateway(const Options &options)
	: options_(options), pool_(options.dsn, options.connections, options.pool_timeout), shared_(pool_),
	  claims_(pool_, options.dsn), ends_(options.dsn), events_(pool_), pushes_(pool_, claims_, options_), who_(options)
{}

tq::Task<> Gateway::run()
{
	using namespace asio::experimental::awaitable_operators;
	co_await (claims_.run() && ends_.run() && pushes_.run());
}

void Gateway::stop()
{
	stopping_ = true;
	claims_.stop();
	ends_.stop();
	events_.stop();
	pushes_.stop();
}

tq::Task<Answer> Gateway::answer(Request request, Client &client)
{
	if (auto page = console(request))
		co_return *std::move(page);
	Route route;
	std::exception_ptr refused;
	try
	{
		route = route_of(request.method, request.path);
	}
	catch (...)
	{
		refused = std::current_exception();
	}
	if (!refused)
		co_return co_await answer(std::move(route), std::move(request), client);
	Answer result = problem(refused);
	++answered_[{"none", result.status}];
	co_return result;
}

tq::Task<Answer> Gateway::answer(Route route, Request request, Client &client)
{
	const std::string name = route.operation->name;
	Answer result;
	try
	{
		if (!route.operation->open)
			request.role = who_.role_of(request);
		result = co_await dispatch(std::move(route), std::move(request), client);
	}
	catch (...)
	{
		result = problem(std::current_exception());
	}
	++answered_[{name, result.status}];
	co_return result;
}

tq::Task<Answer> Gateway::dispatch(Route route, Request request, Client &client)
{
	const Operation &operation = *route.operation;
	std::vector<Given> arguments = arguments_of(route, request);
	if (const std::string key = request.header("idempotency-key"); operation.once && !key.empty())
		make_once(arguments, request.role, key);
	switch (operation.way)
	{
		case Operation::kCall:
		case Operation::kLook:
			co_return co_await call(operation, std::move(arguments), request.role);
		case Operation::kEnqueue:
			co_return co_await enqueue(std::move(arguments), request.role, client);
		case Operation::kComplete:
			co_return co_await complete(std::move(arguments), request.role);
		case Operation::kClaim: {
			const auto wait = co_await length(take(arguments, "wait"), request.role);
			co_return co_await claims_.claim(std::move(arguments), request.role, wait, client);
		}
		case Operation::kWaitJob: {
			const auto wait = co_await length(take(arguments, "wait"), request.role);
			co_return co_await job(*take(arguments, "id"), wait, request.role, client);
		}
		case Operation::kWaitJobs:
			co_return co_await outcomes(operation, std::move(arguments), request.role, client);
		case Operation::kDefine:
			co_return co_await define(operation, std::move(arguments), request.role);
		case Operation::kMetrics:
			co_return metrics();
		case Operation::kText: {
			Pool::Taken connection = co_await pool_.take(request.role);
			const tq::Result rows = co_await connection->query(std::string("SELECT ") + operation.source + "()");
			Answer answer;
			answer.type = "text/plain; version=0.0.4";
			answer.body = rows.text(0, 0);
			co_return answer;
		}
		case Operation::kReady:
			co_return co_await ready();
		case Operation::kDescribe: {
			Answer answer;
			answer.body = openapi();
			co_return answer;
		}
		case Operation::kChanges: {
			std::string last = request.header("last-event-id");
			// a token may expire, and tokens and keys may be replaced
			auto role = [this, request = std::move(request)] { return who_.role_of(request); };
			co_return co_await events_.begin(std::move(arguments), std::move(role), std::move(last));
		}
		case Operation::kAlive:
			break;
	}
	Answer answer;
	answer.body = "{\"status\":\"ok\"}";
	co_return answer;
}

tq::Task<Answer> Gateway::call(const Operation &operation, std::vector<Given> arguments, std::string role)
{
	Pool::Taken connection = co_await pool_.take(std::move(role));
	const tq::Result rows = co_await connection->query(statement_of(operation, arguments));
	Answer answer;
	answer.status = operation.status;
	if (operation.shape == Operation::kNothing)
		co_return answer;
	if (rows.rows() == 0)
		throw Refusal(404, "there is no such thing, or the role of this call may not see it");
	answer.body = rows.text(0, 0);
	co_return answer;
}

tq::Task<Answer> Gateway::enqueue(std::vector<Given> arguments, std::string role, Client &client)
{
	const tq::Value given = take(arguments, "wait");
	const auto wait = co_await length(given, role); // is refused before there is a job
	const tq::Enqueued enqueued = co_await shared_.enqueue(role, std::move(arguments));
	const std::string id = enqueued.id ? std::to_string(*enqueued.id) : "", outcome = enqueued.outcome;
	Answer answer;
	if (given && !id.empty())
	{
		try
		{
			answer = co_await job(id, wait, role, client);
		}
		catch (const std::exception &)
		{
			// there is a job: a client that got an error would enqueue another one
		}
	}
	if (answer.body.empty())
		answer.body = "{\"id\":" + (id.empty() ? "null" : id) + ",\"outcome\":" + quoted(outcome) + "}";
	answer.status = outcome == "skipped" ? 200 : 201;
	if (!id.empty())
		answer.headers.emplace_back("Location", "/v1/jobs/" + id);
	co_return answer;
}

tq::Task<Answer> Gateway::complete(std::vector<Given> arguments, std::string role)
{
	co_await shared_.complete(std::move(role), std::move(arguments));
	Answer answer;
	answer.body = "{\"state\":\"succeeded\"}";
	co_return answer;
}

tq::Task<Answer> Gateway::job(std::string id, std::chrono::microseconds wait, std::string role, Client &client)
{
	const std::function<tq::Task<Seen>()> once = [&]() -> tq::Task<Seen> {
		std::vector<tq::Value> values{id};
		Pool::Taken connection = co_await pool_.take(role);
		const tq::Result rows =
			co_await connection->query("SELECT finished_at IS NOT NULL, row_to_json(t) FROM (SELECT " +
										   columns_of(operation_named("get_job")) + " FROM tq_get($1::bigint)) t",
									   std::move(values));
		Seen seen;
		if (rows.text(0, 0) != "t")
			seen.open.push_back(id);
		seen.answer.body = rows.text(0, 1);
		co_return seen;
	};
	co_return co_await look(once, false, wait, client);
}

tq::Task<Answer> Gateway::outcomes(const Operation &operation, std::vector<Given> arguments, std::string role,
								   Client &client)
{
	const auto wait = co_await length(take(arguments, "wait"), role);
	const bool first = take(arguments, "first") == "true";
	const std::function<tq::Task<Seen>()> once = [&]() -> tq::Task<Seen> {
		Pool::Taken connection = co_await pool_.take(role);
		Seen seen;
		if (wait > 0us)
		{
			// before the outcomes, so that none of those that count as ended is older
			std::vector<tq::Value> ids{arguments.front().value};
			const tq::Result rows = co_await connection->query(
				"SELECT DISTINCT i, i = ANY (tq_ended($1::bigint[])) FROM unnest($1::bigint[]) i", std::move(ids));
			if (rows.rows() > kMostAwaited)
				throw Refusal(400, "a call waits for at most " + std::to_string(kMostAwaited) + " jobs");
			for (int row = 0; row < rows.rows(); ++row)
			{
				if (rows.text(row, 1) != "t")
					seen.open.emplace_back(rows.text(row, 0));
			}
			if (first && std::ssize(seen.open) < rows.rows())
				seen.open.clear();
		}
		const tq::Result rows = co_await connection->query(statement_of(operation, arguments));
		seen.answer.body = rows.text(0, 0);
		co_return seen;
	};
	co_return co_await look(once, first, wait, client);
}

tq::Task<Answer> Gateway::look(std::function<tq::Task<Seen>()> once, bool first, std::chrono::microseconds wait,
							   Client &client)
{
	using namespace asio::experimental::awaitable_operators;
	using std::chrono::duration_cast, std::chrono::microseconds;
	const auto end = std::chrono::steady_clock::now() + wait;
	bool told = false;
	for (auto pause = kFirstLook;;)
	{
		Seen seen = co_await once();
		const auto left = end - std::chrono::steady_clock::now();
		if (seen.open.empty() || left <= 0ms || stopping_)
			co_return std::move(seen.answer);
		if (told)
		{
			// the gateway's own role may not see the jobs
			const auto nap = duration_cast<microseconds>(std::min<std::chrono::steady_clock::duration>(pause, left));
			const auto which = co_await (sleep(nap) || client.gone());
			if (which.index() == 1 || stopping_)
				co_return std::move(seen.answer);
			pause = std::min(pause * 3 / 2, kLastLook);
		}
		const auto most = duration_cast<microseconds>(std::min<std::chrono::steady_clock::duration>(kUnasked, left));
		const Ends::Why why = co_await ends_.wait(std::move(seen.open), first, most, client);
		if (why == Ends::Why::gone)
			co_return std::move(seen.answer);
		told = why == Ends::Why::told;
	}
}

tq::Task<Answer> Gateway::define(const Operation &operation, std::vector<Given> arguments, std::string role)
{
	Pool::Taken connection = co_await pool_.take(std::move(role));
	Answer answer;
	std::optional<tq::Error> refused;
	try
	{
		tq::Statement statement;
		statement.sql = "SELECT " + call_of(operation.source, arguments, statement.values);
		co_await connection->query(std::move(statement));
		answer.status = 201;
	}
	catch (const tq::Error &error)
	{
		// a role that may create no queue (42501) may still manage one that exists
		if (error.sqlstate() != "42710" && error.sqlstate() != "42501")
			throw;
		refused = error;
	}
	if (!refused)
		co_return answer;
	try
	{
		tq::Statement statement;
		if (std::none_of(arguments.begin(), arguments.end(), [](const Given &one) { return one.name == "settings"; }))
			arguments.push_back({"settings", "jsonb", "{}"});
		statement.sql = "SELECT " + call_of("tq_alter_queue", arguments, statement.values);
		co_await connection->query(std::move(statement));
		answer.status = 204;
	}
	catch (const tq::Error &error)
	{
		if (refused->sqlstate() == "42501" && (error.sqlstate() == "42501" || error.sqlstate() == "TQ002"))
			throw *refused;
		throw;
	}
	co_return answer;
}

tq::Task<Answer> Gateway::ready()
{
	Answer answer;
	if (stopping_)
		throw Refusal(503, "the gateway is stopping");
	if (!who_.ready())
		throw Refusal(503, "the keys of tokens are not known yet");
	Pool::Taken connection = co_await pool_.take("");
	const tq::Result rows = co_await connection->query("SELECT pg_is_in_recovery(), tq_now()");
	if (rows.text(0, 0) == "t")
		throw Refusal(503, "the server is a standby");
	answer.body = "{\"status\":\"ready\"}";
	co_return answer;
}

tq::Task<std::chrono::microseconds> Gateway::length(tq::Value interval, std::string role)
{
	if (!interval)
		co_return 0us;
	// most say it in seconds
	const std::string &text = *interval;
	const std::size_t end = text.find_first_not_of("0123456789");
	std::chrono::microseconds result{};
	if (end != 0 && end != text.npos && end < 8 && text.substr(end) == "s")
		result = std::chrono::seconds(std::stoi(text));
	else if (end != 0 && end != text.npos && end < 8 && text.substr(end) == "ms")
		result = std::chrono::milliseconds(std::stoi(text));
	else if (const auto known = lengths_.find(text); known != lengths_.end())
		result = known->second;
	else
	{
		Pool::Taken connection = co_await pool_.take(std::move(role));
		if (!lengths_.contains(text)) // many may have waited for the connection
		{
			std::vector<tq::Value> values{interval};
			const tq::Result rows = co_await connection->query(
				"SELECT (extract(epoch FROM $1::interval) * 1000000)::bigint AS length", std::move(values));
			if (lengths_.size() >= kMostLengths)
				lengths_.clear();
			lengths_[text] = std::chrono::microseconds(rows.integer(0, "length"));
		}
		result = lengths_[text];
	}
	if (result < 0us)
		throw Refusal(400, "\"wait\" must not be negative");
	co_return std::min<std::chrono::microseconds>(result, options_.max_wait);
}

Answer Gateway::metrics() const
{
	prometheus::Registry registry;
	auto &requests = prometheus::BuildCounter()
						 .Name("tq_gateway_requests_total")
						 .Help("Requests that were answered, by operation and status.")
						 .Register(registry);
	for (const auto &[key, number] : answered_)
		requests.Add({{"operation", key.first}, {"status", std::to_string(key.second)}}).Increment(double(number));
	auto &deliveries = prometheus::BuildCounter()
						   .Name("tq_gateway_deliveries_total")
						   .Help("Deliveries of subscriptions, by outcome.")
						   .Register(registry);
	deliveries.Add({{"outcome", "delivered"}}).Increment(double(pushes_.delivered()));
	deliveries.Add({{"outcome", "failed"}}).Increment(double(pushes_.failed()));
	const auto gauge = [&registry](const char *name, const char *help, double value) {
		prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({}).Set(value);
	};
	gauge("tq_gateway_clients", "Open HTTP connections of clients.", double(clients));
	gauge("tq_gateway_waiting_claims", "Claims that wait for jobs.", double(claims_.waiting()));
	gauge("tq_gateway_waiting_ends", "Calls that wait for the end of a job.", double(ends_.waiting()));
	gauge("tq_gateway_connections", "Connections to the database that calls may use.", pool_.size());
	gauge("tq_gateway_connections_in_use", "Connections to the database in use.", pool_.used());
	gauge("tq_gateway_calls_queued", "Calls that wait for a connection to the database.", double(pool_.waiting()));
	Answer answer;
	answer.type = "text/plain; version=0.0.4";
	answer.body = prometheus::TextSerializer().Serialize(registry.Collect());
	return answer;
}

} // namespace gateway
