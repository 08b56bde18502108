// The typed calls, each with a real server.   usage: tq_test_calls QUEUE
#include <tq/tq.hpp>

#include <iostream>

namespace
{

int failures = 0;

void judge(bool held, const std::string &name)
{
	std::cout << (held ? "ok - " : "not ok - ") << "calls: " << name << "\n";
	failures += !held;
}

// The SQLSTATE that the call raised, or nothing.
template <class T>
tq::Task<std::string> error_of(tq::Task<T> call)
{
	try
	{
		co_await std::move(call);
		co_return "";
	}
	catch (const tq::Error &error)
	{
		co_return error.sqlstate();
	}
}

tq::Task<> enqueue_with_outcomes(tq::Connection &connection, std::string queue)
{
	tq::EnqueueOptions options;
	options.unique_key = "k1";
	const tq::Enqueued created = co_await tq::enqueue_info(connection, queue, "1", options);
	const tq::Enqueued skipped = co_await tq::enqueue_info(connection, queue, "1", options);
	options.unique_mode = "replace";
	const tq::Enqueued replaced = co_await tq::enqueue_info(connection, queue, "1", options);
	options.unique_mode = "ignore";
	const tq::Enqueued ignored = co_await tq::enqueue_info(connection, queue, "1", options);
	judge(created.outcome == "created" && skipped.outcome == "skipped" && skipped.id == created.id &&
			  replaced.outcome == "replaced" && replaced.id != created.id && ignored.outcome == "skipped" &&
			  !ignored.id,
		  "enqueue_info tells what became of the job");

	tq::EnqueueManyOptions many;
	many.kind = "all";
	many.unique_keys = {"k1", std::nullopt, "k2"};
	many.kinds = {std::nullopt, "one", std::nullopt};
	many.priorities = {1, 2, std::nullopt};
	many.group_keys = {std::nullopt, "g \"1\"", std::nullopt};
	many.run_ats = {std::nullopt, std::nullopt, std::chrono::system_clock::now() + std::chrono::hours(1)};
	std::vector<std::string> payloads(3, "{\"n\": 1}");
	const std::vector<tq::Enqueued> jobs = co_await tq::enqueue_many_info(connection, queue, payloads, many);
	const tq::JobInfo second = co_await tq::get(connection, *jobs[1].id),
					  third = co_await tq::get(connection, *jobs[2].id);
	judge(jobs.size() == 3 && jobs[0].outcome == "skipped" && jobs[0].id == replaced.id &&
			  jobs[1].outcome == "created" && second.kind == "one" && second.priority == 2 && third.kind == "all" &&
			  third.state == "delayed",
		  "enqueue_many_info gives each job its own values");
	many.unique_mode = "ignore";
	const auto ids = co_await tq::enqueue_many(connection, queue, payloads, many);
	judge(ids.size() == 3 && !ids[0] && ids[1] && !ids[2], "enqueue_many returns nothing for a job that was ignored");
}

tq::Task<> unique_keys(tq::Connection &connection, std::string queue)
{
	tq::EnqueueOptions options;
	options.unique_key = "k3";
	options.options = "{\"unique_for\": \"1 day\"}";
	const auto id = co_await tq::enqueue(connection, queue, "{}", options);
	const auto found = co_await tq::find(connection, queue, "k3"), none = co_await tq::find(connection, queue, "free");
	judge(id && found == id && !none, "find returns the job that has a key");
	const std::string live = co_await error_of(tq::free_key(connection, queue, "k3"));
	std::vector<std::string> queues(1, queue);
	tq::ClaimOptions claims;
	claims.max_jobs = 100;
	for (const tq::JobData &job : co_await tq::claim(connection, queues, claims))
		co_await tq::complete(connection, job.id, job.lease);
	const bool freed = co_await tq::free_key(connection, queue, "k3");
	const bool again = co_await tq::free_key(connection, queue, "k3");
	judge(live == "TQ008" && freed && !again, "free_key frees the key of an ended job");
}

tq::Task<> cancel_several(tq::Connection &connection, std::string queue)
{
	std::vector<std::int64_t> ids;
	for (int i = 0; i < 2; ++i)
		ids.push_back((co_await tq::enqueue(connection, queue)).value());
	ids.push_back(999999999);
	co_await tq::cancel(connection, ids[1]);
	const std::vector<tq::JobStatus> jobs = co_await tq::cancel_jobs(connection, ids, "by hand");
	judge(jobs.size() == 3 && jobs[0].id == ids[0] && jobs[0].status == "cancelled" && jobs[1].status == "cancelled" &&
			  jobs[2].status == "not_found",
		  "cancel_jobs returns a status for each job");
}

tq::Task<> call_all(std::string queue)
{
	tq::Connection connection = co_await tq::Connection::open("");
	co_await enqueue_with_outcomes(connection, queue);
	co_await unique_keys(connection, queue);
	co_await cancel_several(connection, queue);
}

} // namespace

int main(int, char **arguments)
{
	tq::run(call_all(arguments[1]));
	return failures != 0;
}
