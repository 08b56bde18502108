// Statements of the typed calls.
#include <tq/calls.hpp>

namespace tq
{

namespace
{

constexpr std::string_view kClaimed =
	"id, lease, queue, kind, payload, attempt, max_attempts, priority, checkpoint, headers, parents, group_key, "
	"unique_key, tags, "
	"extract(epoch FROM enqueued_at) AS enqueued_at, extract(epoch FROM lease_expires_at) AS lease_expires_at, "
	"extract(epoch FROM deadline) AS deadline";

std::string arguments_text(const std::vector<Argument> &arguments, std::vector<Value> &into)
{
	std::string text = "(";
	for (const Argument &argument : arguments)
	{
		if (!argument.value)
			continue;
		into.push_back(argument.value);
		text += (into.size() > 1 ? ", " : "") + argument.name + " => $" + std::to_string(into.size()) +
				"::" + argument.type;
	}
	return text + ")";
}

template <class T>
Value unless_empty(const std::vector<T> &elements)
{
	return elements.empty() ? std::nullopt : value(elements);
}

Task<Result> run_call(Connection &connection, Statement statement) { return connection.query(std::move(statement)); }

Task<> ignore(Connection &connection, Statement statement) { co_await run_call(connection, std::move(statement)); }

Task<std::string> text_of(Connection &connection, Statement statement)
{
	const Result result = co_await run_call(connection, std::move(statement));
	co_return std::string(result.text(0, 0));
}

Task<bool> flag_of(Connection &connection, Statement statement)
{
	const Result result = co_await run_call(connection, std::move(statement));
	co_return result.text(0, 0) == "t";
}

// Of the column id, which may be null.
Task<std::optional<std::int64_t>> id_of(Connection &connection, Statement statement)
{
	const Result result = co_await run_call(connection, std::move(statement));
	co_return result.optional_integer(0, "id");
}

std::vector<Argument> enqueue_arguments(const EnqueueOptions &options)
{
	return {{"kind", "text", value(options.kind)},
			{"priority", "int", value(options.priority)},
			{"run_at", "timestamptz", value(options.run_at)},
			{"delay", "interval", value(options.delay)},
			{"expires_at", "timestamptz", value(options.expires_at)},
			{"max_attempts", "int", value(options.max_attempts)},
			{"retry", "jsonb", value(options.retry)},
			{"timeout", "interval", value(options.timeout)},
			{"group_key", "text", value(options.group_key)},
			{"unique_mode", "text", value(options.unique_mode)},
			{"headers", "jsonb", value(options.headers)},
			{"depends_on", "bigint[]", unless_empty(options.depends_on)},
			{"options", "jsonb", value(options.options)}};
}

std::vector<Argument> enqueue_one(const std::string &queue, const std::string &payload, const EnqueueOptions &options)
{
	std::vector<Argument> arguments = enqueue_arguments(options);
	arguments.push_back({"queue", "text", queue});
	arguments.push_back({"payload", "jsonb", payload});
	arguments.push_back({"unique_key", "text", value(options.unique_key)});
	return arguments;
}

std::vector<Argument> enqueue_each(const std::string &queue, const std::vector<std::string> &payloads,
								   const EnqueueManyOptions &options)
{
	std::vector<Argument> arguments = enqueue_arguments(options);
	arguments.push_back({"queue", "text", queue});
	arguments.push_back({"payloads", "jsonb[]", value(payloads)});
	arguments.push_back({"kinds", "text[]", unless_empty(options.kinds)});
	arguments.push_back({"priorities", "int[]", unless_empty(options.priorities)});
	arguments.push_back({"run_ats", "timestamptz[]", unless_empty(options.run_ats)});
	arguments.push_back({"unique_keys", "text[]", unless_empty(options.unique_keys)});
	arguments.push_back({"group_keys", "text[]", unless_empty(options.group_keys)});
	return arguments;
}

Task<std::vector<Enqueued>> enqueued(Connection &connection, Statement statement)
{
	const Result rows = co_await run_call(connection, std::move(statement));
	std::vector<Enqueued> jobs;
	for (int row = 0; row < rows.rows(); ++row)
		jobs.push_back({rows.optional_integer(row, "id"), std::string(rows.text(row, "outcome"))});
	co_return jobs;
}

std::vector<Argument> job_arguments(std::int64_t id, std::int64_t lease)
{
	return {{"id", "bigint", value(id)}, {"lease", "bigint", value(lease)}};
}

} // namespace

Statement call(std::string_view function, const std::vector<Argument> &arguments, std::string_view columns)
{
	Statement statement;
	const std::string text = arguments_text(arguments, statement.values);
	statement.sql = "SELECT " + std::string(columns) + " FROM " + std::string(function) + text;
	return statement;
}

Statement call_procedure(std::string_view procedure, const std::vector<Argument> &arguments)
{
	Statement statement;
	const std::string text = arguments_text(arguments, statement.values);
	statement.sql = "CALL " + std::string(procedure) + text;
	return statement;
}

Task<std::optional<std::int64_t>> enqueue(Connection &connection, std::string queue, std::string payload,
										  EnqueueOptions options)
{
	return id_of(connection, call("tq_enqueue", enqueue_one(queue, payload, options), "tq_enqueue AS id"));
}

Task<std::vector<std::optional<std::int64_t>>>
enqueue_many(Connection &connection, std::string queue, std::vector<std::string> payloads, EnqueueManyOptions options)
{
	Statement statement = call("tq_enqueue_many", enqueue_each(queue, payloads, options));
	const Result result = co_await run_call(connection, std::move(statement));
	std::vector<std::optional<std::int64_t>> ids;
	for (const Value &id : parse_array(result.text(0, 0)))
	{
		if (id)
			ids.push_back(std::stoll(*id));
		else
			ids.emplace_back();
	}
	co_return ids;
}

Task<Enqueued> enqueue_info(Connection &connection, std::string queue, std::string payload, EnqueueOptions options)
{
	Statement statement = call("tq_enqueue_info", enqueue_one(queue, payload, options));
	const std::vector<Enqueued> jobs = co_await enqueued(connection, std::move(statement));
	co_return jobs.front();
}

Task<std::vector<Enqueued>> enqueue_many_info(Connection &connection, std::string queue,
											  std::vector<std::string> payloads, EnqueueManyOptions options)
{
	return enqueued(connection, call("tq_enqueue_many_info", enqueue_each(queue, payloads, options)));
}

Task<std::vector<JobData>> claim(Connection &connection, std::vector<std::string> queues, ClaimOptions options)
{
	Statement statement = call("tq_claim_any",
							   {{"queues", "text[]", value(queues)},
								{"max_jobs", "int", value(options.max_jobs)},
								{"worker", "text", value(options.worker)},
								{"lease_for", "interval", value(options.lease_for)},
								{"wait", "interval", value(options.wait)},
								{"kinds", "text[]", unless_empty(options.kinds)},
								{"bind_session", "boolean", value(options.bind_session)}},
							   kClaimed);
	statement.often = true;
	const Result rows = co_await run_call(connection, std::move(statement));
	std::vector<JobData> jobs(std::size_t(rows.rows()));
	for (int row = 0; row < rows.rows(); ++row)
	{
		JobData &job = jobs[std::size_t(row)];
		job.id = rows.integer(row, "id");
		job.lease = rows.integer(row, "lease");
		job.queue = rows.text(row, "queue");
		job.kind = rows.optional_text(row, "kind");
		job.payload = rows.text(row, "payload");
		job.attempt = int(rows.integer(row, "attempt"));
		job.max_attempts = int(rows.integer(row, "max_attempts"));
		job.priority = int(rows.integer(row, "priority"));
		job.checkpoint = rows.optional_text(row, "checkpoint");
		job.headers = rows.optional_text(row, "headers");
		job.parents = rows.optional_text(row, "parents");
		job.group_key = rows.optional_text(row, "group_key");
		job.unique_key = rows.optional_text(row, "unique_key");
		if (const auto tags = rows.optional_text(row, "tags"))
		{
			for (const Value &tag : parse_array(*tags))
				job.tags.push_back(tag.value_or(""));
		}
		job.enqueued_at = rows.time(row, "enqueued_at").value_or(Time());
		job.lease_expires_at = rows.time(row, "lease_expires_at");
		job.deadline = rows.time(row, "deadline");
	}
	co_return jobs;
}

Task<> wait(Connection &connection, std::vector<std::string> queues, std::optional<Duration> timeout,
			std::vector<std::string> kinds)
{
	// tq_wait takes one kind for each queue
	std::vector<std::string> pairs_queues, pairs_kinds;
	for (const std::string &queue : queues)
	{
		for (const std::string &kind : kinds)
		{
			pairs_queues.push_back(queue);
			pairs_kinds.push_back(kind);
		}
	}
	return ignore(connection,
				  call_procedure("tq_wait", {{"queues", "text[]", value(kinds.empty() ? queues : pairs_queues)},
											 {"timeout", "interval", value(timeout)},
											 {"kinds", "text[]", unless_empty(pairs_kinds)}}));
}

Task<Action> heartbeat(Connection &connection, std::int64_t id, std::int64_t lease, HeartbeatOptions options)
{
	std::vector<Argument> arguments = job_arguments(id, lease);
	arguments.push_back({"extend", "interval", value(options.extend)});
	arguments.push_back({"progress", "jsonb", value(options.progress)});
	arguments.push_back({"checkpoint", "jsonb", value(options.checkpoint)});
	Statement statement = call("tq_heartbeat", arguments, "action");
	co_return parse_action(co_await text_of(connection, std::move(statement)));
}

Action parse_action(std::string_view text)
{
	return text == "run"	  ? Action::kRun
		   : text == "cancel" ? Action::kCancel
		   : text == "quiet"  ? Action::kQuiet
							  : Action::kLost;
}

Task<std::string> complete(Connection &connection, std::int64_t id, std::int64_t lease,
						   std::optional<std::string> result)
{
	std::vector<Argument> arguments = job_arguments(id, lease);
	arguments.push_back({"result", "jsonb", value(result)});
	return text_of(connection, call("tq_complete", arguments));
}

Task<std::string> fail(Connection &connection, std::int64_t id, std::int64_t lease, std::string error,
					   std::optional<Duration> retry_in, bool fatal)
{
	std::vector<Argument> arguments = job_arguments(id, lease);
	arguments.push_back({"error", "text", error});
	arguments.push_back({"retry_in", "interval", value(retry_in)});
	arguments.push_back({"fatal", "boolean", value(fatal)});
	return text_of(connection, call("tq_fail", arguments));
}

Task<std::string> release(Connection &connection, std::int64_t id, std::int64_t lease, std::optional<Duration> delay)
{
	std::vector<Argument> arguments = job_arguments(id, lease);
	arguments.push_back({"delay", "interval", value(delay)});
	return text_of(connection, call("tq_release", arguments));
}

Task<std::string> bury(Connection &connection, std::int64_t id, std::int64_t lease, std::string reason)
{
	std::vector<Argument> arguments = job_arguments(id, lease);
	arguments.push_back({"reason", "text", reason});
	return text_of(connection, call("tq_bury", arguments));
}

Task<std::string> cancel(Connection &connection, std::int64_t id, std::optional<std::string> reason)
{
	return text_of(connection, call("tq_cancel", {{"id", "bigint", value(id)}, {"reason", "text", value(reason)}}));
}

Task<std::vector<JobStatus>> cancel_jobs(Connection &connection, std::vector<std::int64_t> ids,
										 std::optional<std::string> reason)
{
	Statement statement = call("tq_cancel_jobs", {{"ids", "bigint[]", value(ids)}, {"reason", "text", value(reason)}});
	const Result rows = co_await run_call(connection, std::move(statement));
	std::vector<JobStatus> jobs;
	for (int row = 0; row < rows.rows(); ++row)
		jobs.push_back({rows.integer(row, "id"), std::string(rows.text(row, "status"))});
	co_return jobs;
}

Task<std::string> retry(Connection &connection, std::int64_t id, bool with_children)
{
	return text_of(connection,
				   call("tq_retry", {{"id", "bigint", value(id)}, {"with_children", "boolean", value(with_children)}}));
}

Task<std::string> reschedule(Connection &connection, std::int64_t id, std::optional<Time> run_at,
							 std::optional<int> priority)
{
	return text_of(connection, call("tq_reschedule", {{"id", "bigint", value(id)},
													  {"run_at", "timestamptz", value(run_at)},
													  {"priority", "int", value(priority)}}));
}

Task<JobInfo> get(Connection &connection, std::int64_t id)
{
	Statement statement =
		call("tq_get", {{"id", "bigint", value(id)}},
			 "id, queue, kind, state, priority, attempt, max_attempts, payload, result, error, worker, checkpoint, "
			 "extract(epoch FROM run_at) AS run_at, extract(epoch FROM enqueued_at) AS enqueued_at, "
			 "extract(epoch FROM claimed_at) AS claimed_at, extract(epoch FROM finished_at) AS finished_at");
	const Result row = co_await run_call(connection, std::move(statement));
	JobInfo job;
	job.id = row.integer(0, "id");
	job.queue = row.optional_text(0, "queue");
	job.kind = row.optional_text(0, "kind");
	job.state = row.text(0, "state");
	job.priority = int(row.integer(0, "priority"));
	job.attempt = int(row.integer(0, "attempt"));
	job.max_attempts = int(row.integer(0, "max_attempts"));
	job.payload = row.text(0, "payload");
	job.result = row.optional_text(0, "result");
	job.error = row.optional_text(0, "error");
	job.worker = row.optional_text(0, "worker");
	job.checkpoint = row.optional_text(0, "checkpoint");
	job.run_at = row.time(0, "run_at");
	job.enqueued_at = row.time(0, "enqueued_at");
	job.claimed_at = row.time(0, "claimed_at");
	job.finished_at = row.time(0, "finished_at");
	co_return job;
}

Task<std::optional<std::int64_t>> find(Connection &connection, std::string queue, std::string unique_key)
{
	return id_of(connection,
				 call("tq_find", {{"queue", "text", queue}, {"unique_key", "text", unique_key}}, "tq_find AS id"));
}

Task<bool> free_key(Connection &connection, std::string queue, std::string unique_key)
{
	return flag_of(connection, call("tq_free_key", {{"queue", "text", queue}, {"unique_key", "text", unique_key}}));
}

Task<> wait_jobs(Connection &connection, std::vector<std::int64_t> ids, std::optional<Duration> timeout)
{
	return ignore(connection, call_procedure("tq_wait_jobs", {{"ids", "bigint[]", value(ids)},
															  {"timeout", "interval", value(timeout)}}));
}

Task<> create_queue(Connection &connection, std::string name, std::string settings)
{
	return ignore(connection, call("tq_create_queue", {{"name", "text", name}, {"settings", "jsonb", settings}}));
}

Task<> pause(Connection &connection, std::string queue, std::optional<std::string> kind)
{
	return ignore(connection, call("tq_pause", {{"queue", "text", queue}, {"kind", "text", value(kind)}}));
}

Task<> resume(Connection &connection, std::string queue, std::optional<std::string> kind)
{
	return ignore(connection, call("tq_resume", {{"queue", "text", queue}, {"kind", "text", value(kind)}}));
}

} // namespace tq
