// A producer with libtq.   usage: enqueue QUEUE   (and the usual PG* variables)
//
// Enqueues in the transaction that does other work, and another job by a call that may share its commit with others of
// the process. Waits for both, and prints the result of the first.
#include <tq/tq.hpp>

#include <iostream>

static tq::Task<> produce(std::string queue)
{
	tq::Connection connection = co_await tq::Connection::open("");
	co_await connection.query("BEGIN");
	tq::EnqueueOptions options;
	options.kind = "square";
	const auto id = co_await tq::enqueue(connection, queue, "12", options);
	co_await connection.query("COMMIT");
	tq::Shared shared(co_await boost::asio::this_coro::executor);
	const tq::Enqueued other = co_await shared.enqueue(queue, "13", options);
	std::vector<std::int64_t> ids = {*id, *other.id};
	co_await tq::wait_jobs(connection, ids, std::chrono::seconds(20));
	const tq::JobInfo job = co_await tq::get(connection, *id);
	std::cout << job.state << ": " << job.result.value_or("no result") << "\n";
}

int main(int, char **arguments) { tq::run(produce(arguments[1])); }
