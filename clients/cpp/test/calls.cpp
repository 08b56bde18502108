// The typed calls, each with a real server.   usage: tq_test_calls QUEUE [pooled]
#include "judge.hpp"

namespace
{

tq::Task<> enqueue_with_outcomes(tq::Connection &connection, std::string queue)
{
	tq::EnqueueOptions options;
	options.unique_key = "k1";
	const tq::Enqueued created = co_await tq::enqueue_info(connection, queue, "1", options);
	const tq::Enqueued skipped = co_await tq::enqueue_info(connection, queue, "1", options);
	options.unique_mode = "replace_waiting";
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

tq::Task<> claimed_columns(tq::Connection &connection, std::string queue)
{
	tq::EnqueueOptions options;
	options.kind = "all";
	options.priority = 9;
	options.max_attempts = 3;
	options.timeout = std::chrono::hours(1);
	options.group_key = "g";
	options.unique_key = "columns";
	options.headers = "{\"a\": 1}";
	options.options = "{\"tags\": [\"a b\", \"c\"]}";
	const auto id = co_await tq::enqueue(connection, queue, "[1]", options);
	std::vector<std::string> queues(1, queue);
	const std::vector<tq::JobData> jobs = co_await tq::claim(connection, queues);
	const tq::JobData job = jobs.at(0);
	co_await tq::complete(connection, job.id, job.lease);
	judge(job.id == id && job.queue == queue && job.kind == "all" && job.payload == "[1]" && job.attempt == 1 &&
			  job.max_attempts == 3 && job.priority == 9 && !job.checkpoint && job.headers == "{\"a\": 1}" &&
			  !job.parents && job.group_key == "g" && job.unique_key == "columns" &&
			  job.tags == std::vector<std::string>{"a b", "c"} && job.enqueued_at < job.lease_expires_at &&
			  job.lease_expires_at <= job.deadline,
		  "claim returns all columns of a job");
}

tq::Task<> one_job(tq::Connection &connection, std::string queue)
{
	const auto id = co_await tq::enqueue(connection, queue, "{}");
	const std::string delayed =
		co_await tq::reschedule(connection, *id, std::chrono::system_clock::now() + std::chrono::hours(1), 7);
	const std::string ready = co_await tq::retry(connection, *id);
	judge(delayed == "delayed" && ready == "ready", "reschedule and retry return the state of a job");
	std::vector<std::string> queues(1, queue);
	const std::vector<tq::JobData> jobs = co_await tq::claim(connection, queues);
	tq::HeartbeatOptions beat;
	beat.checkpoint = "{\"page\": 3}";
	const tq::Action action = co_await tq::heartbeat(connection, *id, jobs[0].lease, beat);
	const std::string buried = co_await tq::bury(connection, *id, jobs[0].lease, "odd");
	const tq::JobInfo job = co_await tq::get(connection, *id);
	judge(jobs[0].priority == 7 && action == tq::Action::kRun && buried == "buried" && job.error == "odd" &&
			  job.checkpoint == "{\"page\": 3}",
		  "heartbeat keeps a checkpoint, and bury a reason");
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

std::vector<std::int64_t> ids_of(const std::vector<tq::JobData> &jobs)
{
	std::vector<std::int64_t> ids;
	for (const tq::JobData &job : jobs)
		ids.push_back(job.id);
	return ids;
}

std::vector<std::int64_t> leases_of(const std::vector<tq::JobData> &jobs)
{
	std::vector<std::int64_t> leases;
	for (const tq::JobData &job : jobs)
		leases.push_back(job.lease);
	return leases;
}

tq::Task<> work_on_many(tq::Connection &connection, std::string queue)
{
	std::vector<std::string> payloads(4, "{}"), queues(1, queue);
	co_await tq::enqueue_many(connection, queue, payloads);
	const std::vector<tq::ReadyJobs> ready = co_await tq::ready(connection, queues);
	judge(ready.size() == 1 && ready[0].queue == queue && !ready[0].kind && ready[0].jobs == 4,
		  "ready returns the queues that have jobs");
	tq::ClaimOptions options;
	options.max_jobs = 2;
	const std::vector<tq::JobData> two = co_await tq::claim(connection, queues, options);
	std::vector<std::int64_t> leases = leases_of(two);
	leases[1] = 1;
	const std::vector<tq::Action> actions = co_await tq::heartbeat_many(connection, ids_of(two), leases);
	judge(actions.size() == 2 && actions[0] == tq::Action::kRun && actions[1] == tq::Action::kLost,
		  "heartbeat_many returns an action for each job");
	std::vector<tq::Value> results(1, "1");
	results.emplace_back();
	const std::vector<tq::JobStatus> completed = co_await tq::complete_many(connection, ids_of(two), leases, results);
	const tq::JobInfo first = co_await tq::get(connection, two[0].id);
	judge(completed.size() == 2 && completed[0].status == "ok" && completed[1].status == "lost" && first.result == "1",
		  "complete_many returns a status for each job");
	std::vector<std::int64_t> last(1, two[1].id), last_lease(1, two[1].lease);
	const std::vector<tq::JobData> next = co_await tq::claim_next(connection, queue, last, last_lease, {}, options);
	const tq::JobInfo second = co_await tq::get(connection, two[1].id);
	judge(second.state == "succeeded" && next.size() == 2, "claim_next completes jobs and claims others");
	std::vector<std::string> errors(2, "as asked");
	const std::vector<tq::JobStatus> failed = co_await tq::fail_many(connection, ids_of(next), leases_of(next), errors);
	const tq::JobInfo third = co_await tq::get(connection, next[0].id);
	judge(failed.size() == 2 && failed[1].status == "ok" && third.error == "as asked", "fail_many fails jobs");
	const std::string why = co_await tq::explain(connection, next[0].id);
	judge(!why.empty(), "explain says why a job does not run");
}

tq::Task<> workers(tq::Connection &connection, std::string queue)
{
	co_await tq::enqueue(connection, queue);
	std::vector<std::string> queues(1, queue);
	tq::ClaimOptions options;
	options.worker = "calls";
	options.bind_worker = true;
	const std::vector<tq::JobData> jobs = co_await tq::claim(connection, queues, options);
	const tq::WorkerBeat beat = co_await tq::heartbeat_worker(connection, "calls");
	const std::int64_t held = co_await tq::drain(connection, "calls");
	const tq::WorkerBeat draining = co_await tq::heartbeat_worker(connection, "calls");
	const bool was_draining = co_await tq::undrain(connection, "calls");
	judge(jobs.size() == 1 && beat.jobs == 1 && beat.action == tq::Action::kRun && held == 1 &&
			  draining.action == tq::Action::kQuiet && was_draining,
		  "heartbeat_worker, drain and undrain are about the jobs of a worker");
	const std::int64_t released = co_await tq::release_worker(connection, "calls");
	const std::string lost = co_await error_of(tq::complete(connection, jobs[0].id, jobs[0].lease));
	judge(released == 1 && lost == "TQ001", "release_worker ends the leases of a worker");
}

tq::Task<> wait_for_work(tq::Connection &connection, std::string queue)
{
	std::vector<std::string> queues(1, queue), kinds(1, "a"), names(1, "first");
	names.emplace_back("second");
	kinds.emplace_back("b");
	tq::EnqueueOptions other;
	other.kind = "other";
	co_await tq::enqueue(connection, queue, "{}", other);
	const std::vector<tq::ReadyJobs> none = co_await tq::ready(connection, queues, kinds);
	for (const std::string &kind : kinds)
	{
		tq::EnqueueOptions options;
		options.kind = kind;
		co_await tq::enqueue(connection, queue, "{}", options);
	}
	co_await tq::wait(connection, queues, {}, kinds);
	co_await tq::wait(connection, {});
	co_await tq::wait(connection, queues, {}, {}, true);
	const std::vector<tq::ReadyJobs> some = co_await tq::ready(connection, queues, kinds, true);
	judge(none.empty() && some.size() == 2 && !some[0].role.empty(), "wait and ready are about queues and kinds");
	judge(co_await error_of(tq::ready(connection, {}, kinds)) == "22023", "kinds need queues");
	tq::ClaimOptions options;
	options.kinds = kinds;
	const std::vector<tq::WorkerJob> jobs = co_await tq::claim_for(connection, queues, names, options);
	judge(jobs.size() == 2 && jobs[0].worker == "first" && jobs[1].worker == "second" && jobs[1].job.kind == "b",
		  "claim_for claims for several workers");
	for (const tq::WorkerJob &one : jobs)
		co_await tq::release(connection, one.job.id, one.job.lease);
}

tq::Task<> wait_for_ends(tq::Connection &connection, std::string queue)
{
	std::vector<std::string> queues(1, queue), payloads(2, "{}");
	const auto ids = co_await tq::enqueue_many(connection, queue, payloads);
	std::vector<std::int64_t> jobs(1, 999999999);
	co_await tq::wait_jobs(connection, jobs);
	for (const auto &id : ids)
		jobs.push_back(*id);
	const std::vector<tq::JobData> one = co_await tq::claim(connection, queues);
	co_await tq::complete(connection, one[0].id, one[0].lease, "7");
	jobs.erase(jobs.begin());
	co_await tq::wait_jobs(connection, jobs, {}, true);
	const std::vector<std::int64_t> ended = co_await tq::ended(connection, jobs);
	jobs.push_back(999999999);
	const std::vector<tq::JobOutcome> outcomes = co_await tq::outcomes(connection, jobs);
	judge(ended.size() == 1 && ended[0] == one[0].id, "wait_jobs waits for the first job, and ended names it");
	judge(outcomes.size() == 3 && outcomes[0].state == "succeeded" && outcomes[0].result == "7" &&
			  outcomes[1].state == "ready" && !outcomes[1].result && outcomes[2].id == 999999999 && !outcomes[2].state,
		  "outcomes returns states and results");
}

tq::Task<> batches(tq::Connection &connection, std::string queue)
{
	tq::BatchOptions options;
	options.on_failure = "cancel";
	const std::int64_t id = co_await tq::batch_open(connection, queue, "{}", options);
	tq::EnqueueOptions member;
	member.options = "{\"batch\": " + std::to_string(id) + "}";
	co_await tq::enqueue(connection, queue, "{}", member);
	const tq::BatchInfo open = co_await tq::batch(connection, id);
	co_await tq::batch_close(connection, id);
	const std::string again = co_await error_of(tq::batch_close(connection, id));
	judge(open.id == id && open.open && open.total == 1 && open.done == 0 && again == "TQ005",
		  "a batch is opened, joined and closed");
}

tq::Task<> zero_bytes(tq::Connection &connection)
{
	const std::string text("a\0b", 3);
	std::vector<tq::Statement> statements;
	for (const tq::Value &value : {tq::Value(text), tq::Value("c")})
		statements.emplace_back("SELECT $1::text", std::vector<tq::Value>(1, value));
	const std::string alone = co_await error_of(connection.query(statements[0]));
	const std::vector<tq::Reply> replies = co_await connection.pipeline(statements);
	const auto *refused = std::get_if<tq::Error>(&replies.at(0));
	const auto *row = std::get_if<tq::Result>(&replies.at(1));
	judge(alone == "22021" && refused && refused->sqlstate() == "22021" && row && row->text(0, 0) == "c",
		  "a text with a zero byte is refused, not cut");
}

tq::Task<> times(tq::Connection &connection)
{
	const tq::Result row = co_await connection.query(
		"SELECT -1.25 AS before, extract(epoch FROM timestamptz '9999-12-31') AS far, "
		"extract(epoch FROM timestamptz '1000-01-01') AS old, extract(epoch FROM timestamptz 'infinity') AS never");
	judge(row.time(0, "before") == tq::Time(std::chrono::milliseconds(-1250)) &&
			  row.time(0, "far") == tq::Time::max() && row.time(0, "old") == tq::Time::min() && !row.time(0, "never"),
		  "a time is read, also one that Time cannot hold");
}

tq::Task<> copy()
{
	tq::Connection connection = co_await tq::Connection::open("");
	const std::string refused = co_await error_of(connection.query("COPY (SELECT 1) TO STDOUT"));
	judge(refused == "0A000" && !connection.is_open(), "a COPY ends its connection, not the program");
}

tq::Task<> prepared(tq::Connection &connection, std::string queue)
{
	for (int i = 0; i < 3; ++i)
		co_await tq::enqueue(connection, queue);
	const tq::Result row = co_await connection.query(
		"SELECT count(*) AS n FROM pg_prepared_statements WHERE statement LIKE '%tq_enqueue(%'");
	judge(row.integer(0, "n") == 1, "a call that is made often is prepared once");

	co_await connection.query("BEGIN");
	tq::Statement unknown("SELECT nothing");
	unknown.often = true;
	const std::string error = co_await error_of(connection.query(unknown));
	co_await connection.query("ROLLBACK");
	judge(error == "42703", "a statement that cannot be prepared raises its own error in a transaction");
}

// pooled: behind a pooler, where nothing is prepared.
tq::Task<> call_all(std::string queue, bool pooled)
{
	tq::Connection connection = co_await tq::Connection::open("");
	const bool direct = co_await tq::prepare_if_direct(connection);
	judge(direct == !pooled, "a pooler is noticed");
	if (direct)
		co_await prepared(connection, queue + "prepared");
	co_await zero_bytes(connection);
	co_await times(connection);
	co_await copy();
	co_await enqueue_with_outcomes(connection, queue);
	co_await unique_keys(connection, queue);
	co_await cancel_several(connection, queue);
	co_await claimed_columns(connection, queue + "columns");
	co_await one_job(connection, queue + "one");
	co_await tq::create_queue(connection, queue + "many");
	co_await work_on_many(connection, queue + "many");
	co_await tq::create_queue(connection, queue + "bound");
	co_await workers(connection, queue + "bound");
	co_await batches(connection, queue + "bound");
	co_await wait_for_work(connection, queue + "waits");
	co_await wait_for_ends(connection, queue + "ends");
}

} // namespace

int main(int count, char **arguments)
{
	program_name = "calls";
	tq::run(call_all(arguments[1], count > 2));
	return failures != 0;
}
