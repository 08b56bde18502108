// The typed calls of workers.
#include "call_results.hpp"

namespace tq
{

using detail::flag_of, detail::if_set, detail::ignore, detail::job_arguments, detail::number_of, detail::often,
	detail::rows_of, detail::statuses_of, detail::text_of, detail::texts_of, detail::unless_empty;

namespace
{

// In the order in which job_of reads them.
constexpr std::string_view kClaimed =
	"id, lease, queue, kind, payload, attempt, max_attempts, priority, checkpoint, headers, parents, group_key, "
	"unique_key, tags, extract(epoch FROM enqueued_at) AS enqueued_at, "
	"extract(epoch FROM lease_expires_at) AS lease_expires_at, extract(epoch FROM deadline) AS deadline";

// The job in kClaimed's columns, the first of which is `column`.
JobData job_at(const Result &rows, int row, int column)
{
	JobData job;
	job.id = rows.integer(row, column++);
	job.lease = rows.integer(row, column++);
	job.queue = rows.text(row, column++);
	job.kind = rows.optional_text(row, column++);
	job.payload = rows.text(row, column++);
	job.attempt = int(rows.integer(row, column++));
	job.max_attempts = int(rows.integer(row, column++));
	job.priority = int(rows.integer(row, column++));
	job.checkpoint = rows.optional_text(row, column++);
	job.headers = rows.optional_text(row, column++);
	job.parents = rows.optional_text(row, column++);
	job.group_key = rows.optional_text(row, column++);
	job.unique_key = rows.optional_text(row, column++);
	job.tags = texts_of(rows.optional_text(row, column++));
	job.enqueued_at = rows.time(row, column++).value_or(Time());
	job.lease_expires_at = rows.time(row, column++);
	job.deadline = rows.time(row, column++);
	return job;
}

JobData job_of(const Result &rows, int row) { return job_at(rows, row, 0); }

std::vector<Argument> claim_arguments(const ClaimOptions &options)
{
	return {{"max_jobs", "int", value(options.max_jobs)},
			{"worker", "text", value(options.worker)},
			{"lease_for", "interval", value(options.lease_for)},
			{"wait", "interval", value(options.wait)},
			{"kinds", "text[]", unless_empty(options.kinds)},
			{"bind_session", "boolean", value(options.bind_session)},
			{"bind_worker", "boolean", if_set(options.bind_worker)}};
}

// Version 0.1.0 of the extension returns fewer columns. Where the function has one of these, it hides this one.
constexpr std::string_view kNotInOlder =
	"(SELECT NULL AS group_key, NULL AS unique_key, NULL AS tags, NULL::timestamptz AS deadline) AS older";

Task<std::vector<JobData>> claimed(Connection &connection, std::string_view function, std::vector<Argument> arguments,
								   const ClaimOptions &options)
{
	for (Argument &argument : claim_arguments(options))
		arguments.push_back(std::move(argument));
	Statement statement = often(call(function, arguments, kClaimed));
	statement.sql = "SELECT claimed.* FROM " + std::string(kNotInOlder) + ", LATERAL (" + statement.sql + ") AS claimed";
	return rows_of(connection, std::move(statement), job_of);
}

} // namespace

std::vector<Argument> detail::job_arguments(std::int64_t id, std::int64_t lease)
{
	return {{"id", "bigint", value(id)}, {"lease", "bigint", value(lease)}};
}

Task<std::vector<JobData>> claim(Connection &connection, std::vector<std::string> queues, ClaimOptions options)
{
	return claimed(connection, "tq_claim_any", {{"queues", "text[]", value(queues)}}, options);
}

Task<std::vector<JobData>> claim_next(Connection &connection, std::string queue, std::vector<std::int64_t> ids,
									  std::vector<std::int64_t> leases, std::vector<Value> results,
									  ClaimOptions options)
{
	options.wait.reset(); // the call does not wait
	return claimed(connection, "tq_claim_next",
				   {{"queue", "text", queue},
					{"ids", "bigint[]", value(ids)},
					{"leases", "bigint[]", value(leases)},
					{"results", "jsonb[]", unless_empty(results)}},
				   options);
}

Task<std::vector<WorkerJob>> claim_for(Connection &connection, std::vector<std::string> queues,
									   std::vector<std::string> workers, ClaimOptions options)
{
	options.worker.reset();
	std::vector<Argument> arguments = claim_arguments(options);
	arguments.push_back({"queues", "text[]", value(queues)});
	arguments.push_back({"workers", "text[]", value(workers)});
	Statement statement = call("tq_claim_for", arguments, "worker, (job).*");
	statement.sql = "SELECT worker, " + std::string(kClaimed) + " FROM (" + statement.sql + ") AS claimed";
	return rows_of(connection, std::move(statement), [](const Result &rows, int row) {
		return WorkerJob{std::string(rows.text(row, 0)), job_at(rows, row, 1)};
	});
}

namespace
{

// Each kind of each queue, as tq_wait and tq_ready take them. They refuse kinds without queues.
std::vector<Argument> what_to_wait_for(const std::vector<std::string> &queues, const std::vector<std::string> &kinds,
									   bool all_roles)
{
	std::vector<std::string> pairs_queues, pairs_kinds;
	for (const std::string &queue : queues)
	{
		for (const std::string &kind : kinds)
		{
			pairs_queues.push_back(queue);
			pairs_kinds.push_back(kind);
		}
	}
	return {{"queues", "text[]", unless_empty(kinds.empty() ? queues : pairs_queues)},
			{"kinds", "text[]", unless_empty(queues.empty() ? kinds : pairs_kinds)},
			{"all_roles", "boolean", if_set(all_roles)}};
}

} // namespace

Task<> wait(Connection &connection, std::vector<std::string> queues, std::optional<Duration> timeout,
			std::vector<std::string> kinds, bool all_roles)
{
	std::vector<Argument> arguments = what_to_wait_for(queues, kinds, all_roles);
	arguments.push_back({"timeout", "interval", value(timeout)});
	return ignore(connection, call_procedure("tq_wait", arguments));
}

Task<std::vector<ReadyJobs>> ready(Connection &connection, std::vector<std::string> queues,
								   std::vector<std::string> kinds, bool all_roles)
{
	return rows_of(connection, call("tq_ready", what_to_wait_for(queues, kinds, all_roles)),
				   [](const Result &rows, int row) {
					   return ReadyJobs{std::string(rows.text(row, "queue")), rows.optional_text(row, "kind"),
										rows.integer(row, "jobs"), std::string(rows.text(row, "role"))};
				   });
}

Task<Action> heartbeat(Connection &connection, std::int64_t id, std::int64_t lease, HeartbeatOptions options)
{
	std::vector<Argument> arguments = job_arguments(id, lease);
	arguments.push_back({"extend", "interval", value(options.extend)});
	arguments.push_back({"progress", "jsonb", value(options.progress)});
	arguments.push_back({"checkpoint", "jsonb", value(options.checkpoint)});
	arguments.push_back({"worker", "text", value(options.worker)});
	Statement statement = often(call("tq_heartbeat", arguments, "action"));
	co_return parse_action(co_await text_of(connection, std::move(statement)));
}

Action parse_action(std::string_view text)
{
	return text == "run"	  ? Action::kRun
		   : text == "cancel" ? Action::kCancel
		   : text == "quiet"  ? Action::kQuiet
							  : Action::kLost;
}

Task<std::vector<Action>> heartbeat_many(Connection &connection, std::vector<std::int64_t> ids,
										 std::vector<std::int64_t> leases, std::optional<Duration> extend)
{
	Statement statement = often(call("tq_heartbeat_many", {{"ids", "bigint[]", value(ids)},
														   {"leases", "bigint[]", value(leases)},
														   {"extend", "interval", value(extend)}}));
	const Result rows = co_await connection.query(std::move(statement));
	std::vector<Action> actions;
	for (int row = 0; row < rows.rows(); ++row)
		actions.push_back(parse_action(rows.text(row, "action")));
	co_return actions;
}

Task<WorkerBeat> heartbeat_worker(Connection &connection, std::string worker)
{
	Statement statement = often(call("tq_heartbeat_worker", {{"worker", "text", worker}}));
	const Result row = co_await connection.query(std::move(statement));
	co_return WorkerBeat(row.integer(0, "jobs"), parse_action(row.text(0, "action")));
}

Task<std::int64_t> release_worker(Connection &connection, std::string worker)
{
	return number_of(connection, call("tq_release_worker", {{"worker", "text", worker}}));
}

Task<std::int64_t> drain(Connection &connection, std::string worker)
{
	return number_of(connection, call("tq_drain", {{"worker", "text", worker}}));
}

Task<bool> undrain(Connection &connection, std::string worker)
{
	return flag_of(connection, call("tq_undrain", {{"worker", "text", worker}}));
}

Task<std::string> complete(Connection &connection, std::int64_t id, std::int64_t lease,
						   std::optional<std::string> result)
{
	std::vector<Argument> arguments = job_arguments(id, lease);
	arguments.push_back({"result", "jsonb", value(result)});
	return text_of(connection, often(call("tq_complete", arguments)));
}

Task<std::string> fail(Connection &connection, std::int64_t id, std::int64_t lease, std::string error,
					   std::optional<Duration> retry_in, bool fatal)
{
	std::vector<Argument> arguments = job_arguments(id, lease);
	arguments.push_back({"error", "text", error});
	arguments.push_back({"retry_in", "interval", value(retry_in)});
	arguments.push_back({"fatal", "boolean", value(fatal)});
	return text_of(connection, often(call("tq_fail", arguments)));
}

Task<std::string> release(Connection &connection, std::int64_t id, std::int64_t lease, std::optional<Duration> delay)
{
	std::vector<Argument> arguments = job_arguments(id, lease);
	arguments.push_back({"delay", "interval", value(delay)});
	return text_of(connection, often(call("tq_release", arguments)));
}

Task<std::string> bury(Connection &connection, std::int64_t id, std::int64_t lease, std::string reason)
{
	std::vector<Argument> arguments = job_arguments(id, lease);
	arguments.push_back({"reason", "text", reason});
	return text_of(connection, often(call("tq_bury", arguments)));
}

Task<std::vector<JobStatus>> complete_many(Connection &connection, std::vector<std::int64_t> ids,
										   std::vector<std::int64_t> leases, std::vector<Value> results)
{
	return statuses_of(connection, often(call("tq_complete_many", {{"ids", "bigint[]", value(ids)},
															 {"leases", "bigint[]", value(leases)},
															 {"results", "jsonb[]", unless_empty(results)}})));
}

Task<std::vector<JobStatus>> fail_many(Connection &connection, std::vector<std::int64_t> ids,
									   std::vector<std::int64_t> leases, std::vector<std::string> errors)
{
	return statuses_of(connection, often(call("tq_fail_many", {{"ids", "bigint[]", value(ids)},
														 {"leases", "bigint[]", value(leases)},
														 {"errors", "text[]", value(errors)}})));
}

} // namespace tq
