// libpq under coroutines. Connecting and cancelling block in libpq (name lookup, one host after the other), for ever if the
// server is frozen, so each has a thread of its own. Statements wait for the socket in the executor.
#include "answer.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <cstdlib>
#include <map>
#include <optional>
#include <thread>

#include <libpq-fe.h>

namespace asio = boost::asio;
using asio::use_awaitable;
using asio::posix::stream_descriptor;

namespace tq
{

namespace
{

constexpr std::size_t kMaxPrepared = 32; // on a connection

using SharedConn = std::shared_ptr<PGconn>;

// Runs a function in a thread of its own and waits for what it returns.
Task<SharedConn> in_thread(std::function<SharedConn()> function)
{
	detail::Answer<SharedConn> answer(co_await asio::this_coro::executor);
	std::thread([function = std::move(function), sender = answer.sender()] { sender.send(function()); }).detach();
	co_return co_await answer.get();
}

std::string message_of(PGconn *conn)
{
	std::string message = PQerrorMessage(conn);
	while (!message.empty() && message.back() == '\n')
		message.pop_back();
	return message.empty() ? "the connection to the server is lost" : message;
}

Error error_of(const PGresult *result)
{
	auto field = [result](int code) {
		const char *text = PQresultErrorField(result, code);
		return std::string(text ? text : "");
	};
	std::string message = field(PG_DIAG_MESSAGE_PRIMARY);
	if (message.empty())
		message = PQresultErrorMessage(result);
	const std::string state = field(PG_DIAG_SQLSTATE);
	std::string hint = field(PG_DIAG_MESSAGE_HINT);
	// a function or table that is not there
	if ((state == "42883" || state == "42P01") && message.find("tq_") != std::string::npos)
		hint =
			"Install the extension tq in this database with CREATE EXTENSION tq. If it is older than this program, run "
			"ALTER EXTENSION tq UPDATE.";
	return {state, message, field(PG_DIAG_MESSAGE_DETAIL), hint};
}

// The error of the server for a zero byte, at which libpq would cut the text.
std::optional<Error> refusal(const Statement &statement)
{
	for (const Value &value : statement.values)
	{
		if (value && value->find('\0') != std::string::npos)
			return Error("22021", "invalid byte sequence for encoding \"UTF8\": 0x00");
	}
	return std::nullopt;
}

using Settings = std::vector<std::pair<std::string, std::string>>;

// Settings in the order in which later ones override earlier ones. The environment loses against any setting, so a
// default yields to its variable here.
SharedConn connect(const std::string &dsn, const Settings &defaults)
{
	Settings settings = {{"connect_timeout", "10"}, {"keepalives_idle", "10"},	   {"keepalives_interval", "3"},
						 {"keepalives_count", "3"}, {"tcp_user_timeout", "20000"}, {"fallback_application_name", "tq"}};
	// otherwise the server would take the bytes of a text for its own encoding
	if (!std::getenv("PGCLIENTENCODING"))
		settings.emplace_back("client_encoding", "UTF8");
	settings.insert(settings.end(), defaults.begin(), defaults.end());
	for (auto [name, variable] :
		 {std::pair{"connect_timeout", "PGCONNECT_TIMEOUT"}, std::pair{"target_session_attrs", "PGTARGETSESSIONATTRS"}})
	{
		if (std::getenv(variable))
			std::erase_if(settings, [name = name](const auto &setting) { return setting.first == name; });
	}
	settings.emplace_back("dbname", dsn);
	std::vector<const char *> names, texts;
	for (const auto &[name, text] : settings)
	{
		names.push_back(name.c_str());
		texts.push_back(text.c_str());
	}
	names.push_back(nullptr);
	texts.push_back(nullptr);
	// an empty connection string would be taken for the name of a database
	if (dsn.empty())
		names[names.size() - 2] = nullptr;
	return {PQconnectdbParams(names.data(), texts.data(), 1), PQfinish};
}

} // namespace

struct Connection::State
{
	State(asio::any_io_executor executor, SharedConn connected)
		: conn(connected.get()), socket(executor), owned(std::move(connected))
	{}
	~State() { close(); }

	void close() noexcept
	{
		if (socket.is_open())
			socket.release(); // libpq closes it
		conn = nullptr;
		owned.reset();
	}

	[[noreturn]] void lost()
	{
		const std::string message = conn ? message_of(conn) : "the connection is closed";
		close();
		throw ConnectionError(message);
	}

	Task<> wait(stream_descriptor::wait_type what)
	{
		boost::system::error_code error;
		co_await socket.async_wait(what, asio::redirect_error(use_awaitable, error));
		// of two waits in flush() the slower one is aborted; close() aborts both
		if (error && error != asio::error::operation_aborted)
			lost();
	}

	// Sends what libpq has buffered. The server may have to send before it reads on, so this reads as well.
	Task<> flush()
	{
		using namespace asio::experimental::awaitable_operators;
		for (;;)
		{
			const int left = PQflush(conn);
			if (left < 0)
				lost();
			if (left == 0)
				co_return;
			co_await (wait(stream_descriptor::wait_write) || wait(stream_descriptor::wait_read));
			if (!conn || !PQconsumeInput(conn))
				lost();
		}
	}

	Task<PGresult *> next()
	{
		while (PQisBusy(conn))
		{
			co_await wait(stream_descriptor::wait_read);
			if (!conn || !PQconsumeInput(conn))
				lost();
		}
		co_return PQgetResult(conn);
	}

	void send(const Statement &statement)
	{
		std::vector<const char *> texts;
		for (const Value &value : statement.values)
			texts.push_back(value ? value->c_str() : nullptr);
		const auto name = prepared.find(statement.sql);
		if (conn && name != prepared.end())
		{
			if (!PQsendQueryPrepared(conn, name->second.c_str(), int(texts.size()), texts.data(), nullptr, nullptr, 0))
				lost();
			return;
		}
		if (!conn || !PQsendQueryParams(conn, statement.sql.c_str(), int(texts.size()), nullptr, texts.data(), nullptr,
										nullptr, 0))
			lost();
	}

	bool is_worth_preparing(const Statement &statement) const
	{
		return prepares && statement.often && !prepared.contains(statement.sql) && prepared.size() < kMaxPrepared;
	}

	// Returns the error, if any.
	Task<std::optional<Error>> prepare(const Statement &statement)
	{
		const std::string name = "tq" + std::to_string(prepared.size());
		if (!conn || !PQsendPrepare(conn, name.c_str(), statement.sql.c_str(), 0, nullptr))
			lost();
		const Reply answer = co_await first_reply();
		if (const Error *error = std::get_if<Error>(&answer))
			co_return *error;
		prepared.emplace(statement.sql, name);
		co_return std::nullopt;
	}

	// The reply to the statement that was sent.
	Task<Reply> first_reply()
	{
		// mostly, nothing is left to send, and the rest of an answer is there: each coroutine that is spared counts
		if (PQflush(conn) != 0)
			co_await flush();
		std::optional<Reply> first;
		for (;;)
		{
			PGresult *result = nullptr;
			if (PQisBusy(conn))
				result = co_await next();
			else
				result = PQgetResult(conn);
			if (!result)
				break;
			Reply one = reply(result);
			if (!first)
				first = std::move(one);
		}
		// an error that came with the end of the connection
		if (PQstatus(conn) == CONNECTION_BAD || !first)
			lost();
		co_return std::move(*first);
	}

	// The reply that a result stands for. Raises ConnectionError if the server ended the connection with it.
	Reply reply(PGresult *result)
	{
		const ExecStatusType status = PQresultStatus(result);
		if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK)
			return Result(result);
		Error error = error_of(result);
		PQclear(result);
		if (status == PGRES_COPY_IN || status == PGRES_COPY_OUT || status == PGRES_COPY_BOTH)
		{
			close(); // libpq would return the same result for ever
			throw Error("0A000", "a connection of libtq cannot COPY");
		}
		if (PQstatus(conn) == CONNECTION_BAD)
			ended(error);
		return error;
	}

	[[noreturn]] void ended(const Error &error)
	{
		close();
		throw ConnectionError(error.what(), error.sqlstate());
	}

	PGconn *conn;
	stream_descriptor socket;
	SharedConn owned;
	std::function<void(const std::string &)> notice;
	bool prepares = false;
	std::map<std::string, std::string> prepared; // names by SQL
};

Connection::Connection() = default;
Connection::Connection(Connection &&) noexcept = default;
Connection &Connection::operator=(Connection &&) noexcept = default;
Connection::~Connection() = default;

Task<Connection> Connection::open(std::string dsn, Settings defaults)
{
	const auto executor = co_await asio::this_coro::executor;
	// a variable: g++ 12 destroys a lambda of the coroutine's expression twice
	std::function<SharedConn()> connects = [dsn, defaults] { return connect(dsn, defaults); };
	SharedConn connected = co_await in_thread(std::move(connects));
	PGconn *conn = connected.get();
	Connection connection;
	connection.state_ = std::make_shared<State>(executor, std::move(connected));
	if (!conn || PQstatus(conn) != CONNECTION_OK)
		connection.state_->lost();
	PQsetnonblocking(conn, 1);
	PQsetNoticeReceiver(
		conn,
		[](void *state, const PGresult *result) {
			const char *text = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
			if (static_cast<State *>(state)->notice && text)
				static_cast<State *>(state)->notice(text);
		},
		connection.state_.get());
	connection.state_->socket.assign(PQsocket(conn));
	co_return connection;
}

Task<Result> Connection::query(std::string sql, std::vector<Value> values)
{
	return query(Statement{std::move(sql), std::move(values)});
}

Task<Result> Connection::query(Statement statement)
{
	const auto state = state_;
	if (const auto refused = refusal(statement))
		throw *refused;
	std::optional<Error> unprepared;
	if (state->is_worth_preparing(statement))
		unprepared = co_await state->prepare(statement);
	state->send(statement);
	const Reply reply = co_await state->first_reply();
	if (const Error *error = std::get_if<Error>(&reply))
	{
		// a transaction that the first error ended says nothing about it
		const bool ended = unprepared && error->sqlstate() == "25P02";
		throw ended ? *unprepared : *error;
	}
	co_return std::get<Result>(reply);
}

Task<std::vector<Reply>> Connection::pipeline(std::vector<Statement> statements)
{
	const auto state = state_;
	for (const Statement &statement : statements)
	{
		if (state->is_worth_preparing(statement))
			co_await state->prepare(statement); // sent as it is, the statement raises the error itself
	}
	if (!state->conn || !PQenterPipelineMode(state->conn))
		state->lost();
	for (const Statement &statement : statements)
	{
		if (refusal(statement))
			continue;
		state->send(statement);
		if (!PQpipelineSync(state->conn))
			state->lost();
	}
	co_await state->flush();
	std::vector<Reply> replies;
	for (const Statement &statement : statements)
	{
		if (auto refused = refusal(statement))
		{
			replies.emplace_back(std::move(*refused));
			continue;
		}
		std::optional<Reply> first;
		for (;;)
		{
			PGresult *result = co_await state->next();
			if (!result)
			{
				if (PQstatus(state->conn) == CONNECTION_BAD)
					state->lost();
				continue;
			}
			if (PQresultStatus(result) == PGRES_PIPELINE_SYNC)
			{
				PQclear(result);
				break;
			}
			Reply reply = state->reply(result);
			if (!first)
				first = std::move(reply);
		}
		replies.push_back(std::move(*first));
	}
	if (!PQexitPipelineMode(state->conn))
		state->lost();
	co_return replies;
}

void Connection::cancel()
{
	if (!is_open())
		return;
	std::shared_ptr<PGcancel> cancel(PQgetCancel(state_->conn), PQfreeCancel);
	std::thread([cancel] {
		char error[256];
		PQcancel(cancel.get(), error, sizeof error);
	}).detach();
}

void Connection::prepare_statements() noexcept { state_->prepares = true; }

bool Connection::is_open() const noexcept { return state_ && state_->conn && PQstatus(state_->conn) == CONNECTION_OK; }

void Connection::close() noexcept
{
	if (state_)
		state_->close();
}

int Connection::backend_pid() const noexcept { return state_ && state_->conn ? PQbackendPID(state_->conn) : 0; }

PGconn *Connection::native() noexcept { return state_ ? state_->conn : nullptr; }

void Connection::on_notice(std::function<void(const std::string &)> function) { state_->notice = std::move(function); }

} // namespace tq
