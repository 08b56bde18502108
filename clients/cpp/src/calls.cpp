// The typed calls of producers and operators.
#include "call_results.hpp"

namespace tq
{

using detail::flag_of, detail::if_set, detail::ignore, detail::number_of, detail::often, detail::rows_of,
	detail::statuses_of, detail::text_of, detail::unless_empty;

namespace
{

std::string arguments_text(const std::vector<Argument> &arguments, std::vector<Value> &into)
{
	std::string text = "(";
	for (const Argument &argument : arguments)
	{
		if (!argument.value && !argument.null_too)
			continue;
		into.push_back(argument.value);
		text += (into.size() > 1 ? ", " : "") + argument.name + " => $" + std::to_string(into.size()) +
				"::" + argument.type;
	}
	return text + ")";
}

// Of the column id, which may be null.
Task<std::optional<std::int64_t>> id_of(Connection &connection, Statement statement)
{
	const Result result = co_await connection.query(std::move(statement));
	co_return result.optional_integer(0, "id");
}

std::vector<Argument> options_arguments(const EnqueueOptions &options)
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

std::vector<Argument> enqueue_each(const std::string &queue, const std::vector<std::string> &payloads,
								   const EnqueueManyOptions &options)
{
	std::vector<Argument> arguments = options_arguments(options);
	arguments.push_back({"queue", "text", queue});
	arguments.push_back({"payloads", "jsonb[]", value(payloads)});
	arguments.push_back({"kinds", "text[]", unless_empty(options.kinds)});
	arguments.push_back({"priorities", "int[]", unless_empty(options.priorities)});
	arguments.push_back({"run_ats", "timestamptz[]", unless_empty(options.run_ats)});
	arguments.push_back({"unique_keys", "text[]", unless_empty(options.unique_keys)});
	arguments.push_back({"group_keys", "text[]", unless_empty(options.group_keys)});
	return arguments;
}

Enqueued enqueued(const Result &rows, int row)
{
	return {rows.optional_integer(row, "id"), std::string(rows.text(row, "outcome"))};
}

} // namespace

std::vector<Argument> detail::enqueue_arguments(const std::string &queue, const std::string &payload,
												const EnqueueOptions &options)
{
	std::vector<Argument> arguments = options_arguments(options);
	arguments.push_back({"queue", "text", queue});
	arguments.push_back({"payload", "jsonb", payload});
	arguments.push_back({"unique_key", "text", value(options.unique_key)});
	return arguments;
}

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
	return id_of(connection,
				 often(call("tq_enqueue", detail::enqueue_arguments(queue, payload, options), "tq_enqueue AS id")));
}

Task<std::vector<std::optional<std::int64_t>>>
enqueue_many(Connection &connection, std::string queue, std::vector<std::string> payloads, EnqueueManyOptions options)
{
	Statement statement = often(call("tq_enqueue_many", enqueue_each(queue, payloads, options)));
	const Result result = co_await connection.query(std::move(statement));
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
	Statement statement = often(call("tq_enqueue_info", detail::enqueue_arguments(queue, payload, options)));
	const Result row = co_await connection.query(std::move(statement));
	co_return enqueued(row, 0);
}

Task<std::vector<Enqueued>> enqueue_many_info(Connection &connection, std::string queue,
											  std::vector<std::string> payloads, EnqueueManyOptions options)
{
	return rows_of(connection, often(call("tq_enqueue_many_info", enqueue_each(queue, payloads, options))), enqueued);
}

Task<std::int64_t> batch_open(Connection &connection, std::string queue, std::string payload, BatchOptions options)
{
	return number_of(connection, call("tq_batch_open", {{"queue", "text", queue},
														{"payload", "jsonb", payload},
														{"kind", "text", value(options.kind)},
														{"on_failure", "text", value(options.on_failure)},
														{"options", "jsonb", value(options.options)}}));
}

Task<> batch_close(Connection &connection, std::int64_t batch)
{
	return ignore(connection, call("tq_batch_close", {{"batch", "bigint", value(batch)}}));
}

Task<BatchInfo> batch(Connection &connection, std::int64_t id)
{
	Statement statement = call("tq_batch", {{"batch", "bigint", value(id)}});
	const Result row = co_await connection.query(std::move(statement));
	BatchInfo info;
	info.id = row.integer(0, "id");
	info.open = row.text(0, "open") == "t";
	info.total = row.integer(0, "total");
	info.done = row.integer(0, "done");
	info.succeeded = row.integer(0, "succeeded");
	info.failed = row.integer(0, "failed");
	co_return info;
}

Task<std::string> cancel(Connection &connection, std::int64_t id, std::optional<std::string> reason)
{
	return text_of(connection, call("tq_cancel", {{"id", "bigint", value(id)}, {"reason", "text", value(reason)}}));
}

Task<std::vector<JobStatus>> cancel_jobs(Connection &connection, std::vector<std::int64_t> ids,
										 std::optional<std::string> reason)
{
	return statuses_of(connection,
					   call("tq_cancel_jobs", {{"ids", "bigint[]", value(ids)}, {"reason", "text", value(reason)}}));
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
	const Result row = co_await connection.query(std::move(statement));
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

Task<> wait_jobs(Connection &connection, std::vector<std::int64_t> ids, std::optional<Duration> timeout, bool first)
{
	return ignore(connection, call_procedure("tq_wait_jobs", {{"ids", "bigint[]", value(ids)},
															  {"timeout", "interval", value(timeout)},
															  {"first", "boolean", if_set(first)}}));
}

Task<std::vector<std::int64_t>> ended(Connection &connection, std::vector<std::int64_t> ids)
{
	return rows_of(connection, call("tq_ended", {{"ids", "bigint[]", value(ids)}}, "unnest(tq_ended) AS id"),
				   [](const Result &rows, int row) { return rows.integer(row, "id"); });
}

Task<std::vector<JobOutcome>> outcomes(Connection &connection, std::vector<std::int64_t> ids)
{
	return rows_of(connection, call("tq_outcomes", {{"ids", "bigint[]", value(ids)}}), [](const Result &rows, int row) {
		return JobOutcome{rows.integer(row, "id"), rows.optional_text(row, "state"), rows.optional_text(row, "result"),
						  rows.optional_text(row, "error")};
	});
}

Task<std::string> explain(Connection &connection, std::int64_t id)
{
	return text_of(connection, call("tq_explain", {{"id", "bigint", value(id)}}));
}

} // namespace tq
