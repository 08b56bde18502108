// A producer with libtq.   usage: enqueue QUEUE   (and the usual PG* variables)
//
// Enqueues in the transaction that does other work, waits for the job, and prints its result.
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
	std::vector<std::int64_t> ids(1, *id);
	co_await tq::wait_jobs(connection, ids, std::chrono::seconds(20));
	const tq::JobInfo job = co_await tq::get(connection, *id);
	std::cout << job.state << ": " << job.result.value_or("no result") << "\n";
}

int main(int, char **arguments) { tq::run(produce(arguments[1])); }
