// A connection to PostgreSQL that never blocks its executor: libpq under Boost.Asio coroutines.
#pragma once

#include <tq/error.hpp>
#include <tq/result.hpp>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

struct pg_conn;

namespace tq
{

template <class T = void>
using Task = boost::asio::awaitable<T>;

struct Statement
{
	Statement() {}
	explicit Statement(std::string text, std::vector<Value> arguments = {})
		: sql(std::move(text)), values(std::move(arguments))
	{}

	std::string sql; // with $1, $2, ...
	std::vector<Value> values;
	bool often = false; // prepare it, if the connection may; see Connection::prepare_statements
};

// What a statement of a pipeline came to.
using Reply = std::variant<Result, Error>;

// One connection, used by one coroutine at a time. Its calls run on the executor of the coroutine that opened it.
class Connection
{
public:
	Connection();
	Connection(Connection &&) noexcept;
	Connection &operator=(Connection &&) noexcept;
	~Connection();

	// Connects. dsn is a connection string or URI, with any number of hosts; what it leaves out comes from the environment
	// of libpq. Unless given, client_encoding is UTF8, connect_timeout is 10 s for each host, and a dead connection is
	// noticed within 20 s.
	// defaults are further settings that dsn and environment override. Raises ConnectionError.
	static Task<Connection> open(std::string dsn, std::vector<std::pair<std::string, std::string>> defaults = {});

	// Runs one statement. Raises Error, or ConnectionError if the connection is lost. A COPY from or to the client
	// raises Error and closes the connection.
	Task<Result> query(std::string sql, std::vector<Value> values = {});
	Task<Result> query(Statement statement);

	// Sends all statements at once (pipeline mode). Each is a transaction of its own. Raises ConnectionError.
	Task<std::vector<Reply>> pipeline(std::vector<Statement> statements);

	// Asks the server to cancel the running statement, which then raises 57014. Does not wait. Any coroutine of the executor
	// may call it.
	void cancel();

	// From now on the server parses statements that are marked "often" once. Not for a connection through a pooler that
	// gives each transaction another server connection.
	void prepare_statements() noexcept;

	bool is_open() const noexcept;
	void close() noexcept;
	// The server's process; behind a pooler, a number that the pooler made up.
	int backend_pid() const noexcept;
	pg_conn *native() noexcept;

	// Gets each notice of the server. Without it notices are dropped. libpq calls the function, so it must not raise.
	void on_notice(std::function<void(const std::string &)> function);

private:
	struct State;
	std::shared_ptr<State> state_;
};

// Runs the coroutine in an io_context of its own until it ends, for programs without coroutines.
template <class T>
T run(Task<T> task);

} // namespace tq

#include <tq/detail/run.hpp>
