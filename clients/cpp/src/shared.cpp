// A call waits in State::waiting until a line takes it. A line is one statement: it gets a connection, takes the oldest
// call and all that go with it, and asks the server. Calls that would go with those of a line under way wait for its
// end: in a second line they would need a second flush of the WAL, which comes after the first. Everything runs on one
// strand.
//
// A statement that is refused is sent again in halves, since nothing of it took effect; so the calls that are at fault
// come to stand alone. Where a statement answers with a status for each call, a call that did not succeed is sent
// alone, and gets the error of the single function.
#include "call_results.hpp"
#include "session.hpp"

#include <tq/shared.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <deque>

namespace asio = boost::asio;

namespace tq
{

namespace
{

constexpr std::size_t kMostCalls = 1000, kMostBytes = 1 << 20; // of a statement, unless one call is larger

// An argument of the function for one call, and its array in the function for many.
struct Each
{
	std::string_view one, many, type;
};

struct Verb
{
	std::string_view one, many, columns_of_one, columns_of_many;
	std::vector<Each> each;
};

const Verb kEnqueue = {"tq_enqueue_info",
					   "tq_enqueue_many_info",
					   "id, outcome",
					   "id, outcome",
					   {{"payload", "payloads", "jsonb"},
						{"unique_key", "unique_keys", "text"},
						{"kind", "kinds", "text"},
						{"priority", "priorities", "int"},
						{"run_at", "run_ats", "timestamptz"},
						{"group_key", "group_keys", "text"}}};
constexpr std::size_t kPayload = 0, kUniqueKey = 1;
const Verb kComplete = {"tq_complete",
						"tq_complete_many",
						"NULL AS id, 'ok' AS outcome",
						"id, status AS outcome",
						{{"id", "ids", "bigint"}, {"lease", "leases", "bigint"}, {"result", "results", "jsonb"}}};
const Verb kFail = {"tq_fail",
					"tq_fail_many",
					"NULL AS id, 'ok' AS outcome",
					"id, status AS outcome",
					{{"id", "ids", "bigint"}, {"lease", "leases", "bigint"}, {"error", "errors", "text"}}};

struct Call
{
	// Sorts the arguments into those of each call and those that all calls of a statement have in common.
	Call(const asio::any_io_executor &executor, const Verb &what, std::vector<Argument> arguments)
		: verb(what), each(what.each.size()), wake(executor, asio::steady_timer::time_point::max())
	{
		// the server refuses both; but a run_at of many overrides the delay of all
		const bool delayed = std::any_of(arguments.begin(), arguments.end(), [](const Argument &argument) {
			return argument.name == "delay" && argument.value;
		});
		common = verb.one;
		for (Argument &argument : arguments)
		{
			if (!argument.value)
				continue;
			size += argument.value->size();
			const auto found = std::find_if(verb.each.begin(), verb.each.end(), [&argument](const Each &one) {
				return one.one == argument.name;
			});
			if (found != verb.each.end() && !(delayed && argument.name == "run_at"))
			{
				each[std::size_t(found - verb.each.begin())] = std::move(argument.value);
				continue;
			}
			common += '\0' + argument.name + '\0' + std::to_string(argument.value->size()) + '\0' + *argument.value;
			rest.push_back(std::move(argument));
		}
		if (&verb == &kEnqueue && !each[kPayload])
			each[kPayload] = "{}";
		if (may_wait())
			common += '\0';
	}

	// The server may let it wait for a transaction that has inserted the same key. Others do not wait with it.
	bool may_wait() const { return &verb == &kEnqueue && each[kUniqueKey]; }

	const Verb &verb;
	std::string common; // equal in calls that one statement can make
	std::vector<Argument> rest;
	std::vector<Value> each;
	std::size_t size = 0;

	bool taken = false, done = false;
	Enqueued answer; // of a finish: outcome is ok
	std::exception_ptr error;
	asio::steady_timer wake;
};

using Calls = std::vector<std::shared_ptr<Call>>;

Statement statement_of(const Calls &calls)
{
	const Verb &verb = calls.front()->verb;
	const bool many = calls.size() > 1;
	std::vector<Argument> arguments = calls.front()->rest;
	for (std::size_t i = 0; i < verb.each.size(); ++i)
	{
		const Each &each = verb.each[i];
		if (!many)
		{
			arguments.push_back({std::string(each.one), std::string(each.type), calls.front()->each[i]});
			continue;
		}
		std::vector<Value> values;
		for (const auto &call : calls)
			values.push_back(call->each[i]);
		// an array of nulls says nothing
		if (std::any_of(values.begin(), values.end(), [](const Value &one) { return one.has_value(); }))
			arguments.push_back({std::string(each.many), std::string(each.type) + "[]", value(values)});
	}
	Statement statement =
		call(many ? verb.many : verb.one, arguments, many ? verb.columns_of_many : verb.columns_of_one);
	statement.often = true;
	return statement;
}

std::exception_ptr unknown_outcome(const ConnectionError &error)
{
	const std::string message = std::string(error.what()) + " (it is unknown whether the call took effect)";
	return std::make_exception_ptr(ConnectionError(message, error.sqlstate()));
}

void end(const std::shared_ptr<Call> &call, std::exception_ptr error = nullptr)
{
	if (std::exchange(call->done, true))
		return;
	call->error = std::move(error);
	call->wake.cancel();
}

} // namespace

struct Shared::State : std::enable_shared_from_this<Shared::State>
{
	State(asio::any_io_executor executor, SharedOptions given)
		: options(std::move(given)), strand(asio::make_strand(executor)),
		  ended(strand, asio::steady_timer::time_point::max())
	{}

	// Whether a line may take the call now.
	bool can_start(const Call &call) const
	{
		if (waits && call.may_wait())
			return false;
		const auto goes_with = [&call](const std::string *common) { return *common == call.common; };
		return waiting.size() >= kMostCalls || std::none_of(under_way.begin(), under_way.end(), goes_with);
	}

	// Starts a line for calls that wait, unless one is about to take them.
	void start()
	{
		if (waiting.empty() && lines == 0)
			ended.cancel();
		if (gathering || lines >= options.lines ||
			std::none_of(waiting.begin(), waiting.end(), [this](const auto &call) { return can_start(*call); }))
			return;
		gathering = true;
		++lines;
		asio::co_spawn(
			strand, [self = shared_from_this()] { return self->run_line(); }, asio::detached);
	}

	// The oldest call and those that go with it.
	Calls take()
	{
		Calls calls;
		std::size_t bytes = 0;
		for (const auto &call : waiting)
		{
			if (!calls.empty() && (calls.size() == kMostCalls || bytes + call->size > kMostBytes))
				break;
			if (!can_start(*call) || (!calls.empty() && call->common != calls.front()->common))
				continue;
			calls.push_back(call);
			call->taken = true;
			bytes += call->size;
		}
		std::erase_if(waiting, [](const auto &call) { return call->taken; });
		return calls;
	}

	Task<> run_line()
	{
		const auto self = shared_from_this();
		// who is about to call joins
		asio::steady_timer pause(strand, options.flush_interval);
		co_await pause.async_wait(asio::use_awaitable);
		Calls calls;
		bool own_wait = false, begun = false;
		std::function<Task<>(Connection &)> use = [&](Connection &connection) -> Task<> {
			begun = true;
			calls = take();
			own_wait = std::any_of(calls.begin(), calls.end(), [](const auto &call) { return call->may_wait(); });
			waits = waits || own_wait;
			if (!calls.empty())
				under_way.push_back(&calls.front()->common);
			gathering = false;
			start();
			co_await flush(connection, calls);
		};
		std::exception_ptr failure;
		try
		{
			if (options.with_connection)
				co_await options.with_connection(use);
			else
				co_await with_own_connection(use);
		}
		catch (const ConnectionError &error)
		{
			failure = begun ? unknown_outcome(error) : std::current_exception();
		}
		catch (...)
		{
			failure = std::current_exception();
		}
		if (!begun)
		{
			// there is no connection: nothing was sent
			calls.assign(waiting.begin(), waiting.end());
			waiting.clear();
			gathering = false;
		}
		for (const auto &call : calls)
			end(call, failure);
		if (begun && !calls.empty())
			std::erase(under_way, &calls.front()->common);
		waits = waits && !own_wait;
		--lines;
		start();
	}

	// Ends each call, or raises what keeps some from having an answer.
	Task<> flush(Connection &connection, Calls calls)
	{
		// two processes that insert the same keys in different orders would wait for each other
		if (std::any_of(calls.begin(), calls.end(), [](const auto &call) { return call->may_wait(); }))
			std::stable_sort(calls.begin(), calls.end(), [](const auto &left, const auto &right) {
				return left->each[kUniqueKey] < right->each[kUniqueKey];
			});
		std::deque<Calls> parts;
		if (!calls.empty())
			parts.push_back(std::move(calls));
		while (!parts.empty())
		{
			const Calls part = std::move(parts.front());
			parts.pop_front();
			Statement statement = statement_of(part);
			Result rows;
			std::optional<Error> refused;
			try
			{
				rows = co_await connection.query(std::move(statement));
			}
			catch (const ConnectionError &)
			{
				throw;
			}
			catch (const Error &error)
			{
				refused = error;
			}
			const bool read_only = refused && refused->sqlstate() == "25006";
			if (refused && part.size() > 1 && !read_only)
			{
				const auto middle = part.begin() + std::ptrdiff_t(part.size() / 2);
				parts.emplace_front(middle, part.end());
				parts.emplace_front(part.begin(), middle);
				continue;
			}
			for (std::size_t i = 0; i < part.size(); ++i)
			{
				Call &call = *part[i];
				if (refused)
				{
					end(part[i], std::make_exception_ptr(*refused));
					continue;
				}
				call.answer = {rows.optional_integer(int(i), "id"), std::string(rows.text(int(i), "outcome"))};
				if (&call.verb != &kEnqueue && call.answer.outcome != "ok")
					parts.emplace_back(1, part[i]);
				else
					end(part[i]);
			}
			// another server may have been promoted
			if (read_only)
			{
				connection.close();
				for (const Calls &left : parts)
					for (const auto &call : left)
						end(call, std::make_exception_ptr(*refused));
				co_return;
			}
		}
	}

	Task<> with_own_connection(std::function<Task<>(Connection &)> use)
	{
		Connection connection;
		while (!idle.empty() && !connection.is_open())
		{
			connection = std::move(idle.back());
			idle.pop_back();
			if (!detail::is_quiet(connection))
				connection.close();
		}
		if (!connection.is_open())
		{
			std::vector<std::pair<std::string, std::string>> defaults;
			defaults.emplace_back("target_session_attrs", "read-write");
			connection = co_await Connection::open(options.dsn, std::move(defaults));
			co_await prepare_if_direct(connection);
		}
		co_await use(connection);
		if (connection.is_open() && !(closing && waiting.empty()))
			idle.push_back(std::move(connection));
	}

	// On the strand. The answer is in the call.
	Task<> ask(std::shared_ptr<Call> call)
	{
		struct Withdraw
		{
			explicit Withdraw(State &of, std::shared_ptr<Call> what) : state(of), call(std::move(what)) {}
			~Withdraw()
			{
				if (!call->taken)
					std::erase(state.waiting, call);
			}
			State &state;
			std::shared_ptr<Call> call;
		};
		const auto self = shared_from_this();
		if (closing)
			throw Error("", "no more calls are taken: Shared is closed");
		const Withdraw withdraw(*this, call);
		waiting.push_back(call);
		start();
		boost::system::error_code error;
		while (!call->done)
		{
			co_await call->wake.async_wait(asio::redirect_error(asio::use_awaitable, error));
			const auto cancellation = co_await asio::this_coro::cancellation_state;
			if (!call->done && cancellation.cancelled() != asio::cancellation_type::none)
				throw boost::system::system_error(asio::error::operation_aborted);
		}
		if (call->error)
			std::rethrow_exception(call->error);
	}

	Task<> end_all()
	{
		const auto self = shared_from_this();
		closing = true;
		idle.clear();
		boost::system::error_code error;
		while (!waiting.empty() || lines > 0)
			co_await ended.async_wait(asio::redirect_error(asio::use_awaitable, error));
	}

	const SharedOptions options;
	const asio::any_io_executor strand;
	std::deque<std::shared_ptr<Call>> waiting;
	std::vector<Connection> idle;
	int lines = 0;			// that run
	bool gathering = false; // one of them takes calls soon
	std::vector<const std::string *> under_way; // Call::common of each line that has taken calls
	// A line has calls with unique keys. They may wait for transactions of others, and must not take all lines.
	bool waits = false;
	bool closing = false;
	asio::steady_timer ended;
};

Shared::Shared(asio::any_io_executor executor, SharedOptions options)
	: state_(std::make_shared<State>(std::move(executor), std::move(options)))
{}

Shared::~Shared()
{
	asio::post(state_->strand, [state = state_] {
		state->closing = true;
		state->idle.clear();
	});
}

Task<> Shared::close()
{
	const auto state = state_;
	co_await asio::co_spawn(state->strand, state->end_all(), asio::use_awaitable);
}

Task<Enqueued> Shared::enqueue(std::string queue, std::string payload, EnqueueOptions options)
{
	return enqueue(detail::enqueue_arguments(queue, payload, options));
}

Task<Enqueued> Shared::enqueue(std::vector<Argument> arguments)
{
	const auto state = state_;
	const auto call = std::make_shared<Call>(state->strand, kEnqueue, std::move(arguments));
	co_await asio::co_spawn(state->strand, state->ask(call), asio::use_awaitable);
	co_return call->answer;
}

Task<> Shared::complete(std::int64_t id, std::int64_t lease, std::optional<std::string> result)
{
	const auto state = state_;
	std::vector<Argument> arguments = detail::job_arguments(id, lease);
	arguments.push_back({"result", "jsonb", value(result)});
	const auto call = std::make_shared<Call>(state->strand, kComplete, std::move(arguments));
	co_await asio::co_spawn(state->strand, state->ask(call), asio::use_awaitable);
}

Task<> Shared::fail(std::int64_t id, std::int64_t lease, std::string error)
{
	const auto state = state_;
	std::vector<Argument> arguments = detail::job_arguments(id, lease);
	arguments.push_back({"error", "text", std::move(error)});
	const auto call = std::make_shared<Call>(state->strand, kFail, std::move(arguments));
	co_await asio::co_spawn(state->strand, state->ask(call), asio::use_awaitable);
}

} // namespace tq
