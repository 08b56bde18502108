// The typed calls of <tq/manage.hpp>.
#include "call_results.hpp"

#include <tq/manage.hpp>

namespace tq
{

using detail::ignore, detail::number_of, detail::rows_of, detail::text_of, detail::texts_of;

namespace
{

// Seconds since 1970, as Result::time() reads them, under the name of the column.
std::string epoch(const std::string &column) { return "extract(epoch FROM " + column + ") AS " + column; }

std::vector<Argument> condition_arguments(const std::optional<std::string> &queue, const Conditions &conditions)
{
	return {{"queue", "text", value(queue), true},
			{"state", "text", value(conditions.state)},
			{"kind", "text", value(conditions.kind)},
			{"worker", "text", value(conditions.worker)},
			{"tag", "text", value(conditions.tag)},
			{"group_key", "text", value(conditions.group_key)},
			{"unique_key", "text", value(conditions.unique_key)},
			{"created_from", "timestamptz", value(conditions.created_from)},
			{"created_to", "timestamptz", value(conditions.created_to)},
			{"search", "jsonb", value(conditions.search)},
			{"after", "bigint", value(conditions.after)},
			{"max", "int", value(conditions.max)}};
}

std::vector<Argument> condition_arguments(const std::optional<std::string> &queue, const EndedConditions &conditions)
{
	std::vector<Argument> arguments = condition_arguments(queue, static_cast<const Conditions &>(conditions));
	arguments.push_back({"error", "text", value(conditions.error)});
	return arguments;
}

Task<Changed> changed(Connection &connection, std::string_view function, std::vector<Argument> arguments, bool dry_run)
{
	arguments.push_back({"dry_run", "boolean", value(dry_run)});
	Statement statement = call(function, arguments);
	const Result row = co_await connection.query(std::move(statement));
	Changed found;
	found.changed = row.integer(0, "changed");
	found.next_after = row.optional_integer(0, "next_after");
	co_return found;
}

ListedJob listed(const Result &rows, int row)
{
	ListedJob job;
	job.id = rows.integer(row, "id");
	job.queue = rows.text(row, "queue");
	job.kind = rows.optional_text(row, "kind");
	job.state = rows.text(row, "state");
	job.priority = int(rows.integer(row, "priority"));
	job.attempt = int(rows.integer(row, "attempt"));
	job.max_attempts = rows.optional_integer(row, "max_attempts");
	job.run_at = rows.time(row, "run_at");
	job.enqueued_at = rows.time(row, "enqueued_at");
	job.expires_at = rows.time(row, "expires_at");
	job.worker = rows.optional_text(row, "worker");
	job.group_key = rows.optional_text(row, "group_key");
	job.unique_key = rows.optional_text(row, "unique_key");
	job.tags = texts_of(rows.optional_text(row, "tags"));
	job.payload = rows.optional_text(row, "payload");
	return job;
}

std::vector<Argument> pause_arguments(const std::string &queue, const std::optional<std::string> &kind,
									  const std::optional<std::string> &group_key)
{
	return {{"queue", "text", queue}, {"kind", "text", value(kind)}, {"group_key", "text", value(group_key)}};
}

Task<> change_schedule(Connection &connection, std::string_view function, const std::string &name)
{
	return ignore(connection, call(function, {{"name", "text", name}}));
}

std::vector<Argument> rights_arguments(const std::string &queue, const std::string &role,
									   const std::vector<std::string> &privileges)
{
	std::vector<Argument> arguments = {{"queue", "text", queue}, {"role", "regrole", role}};
	for (std::size_t i = 0; i < privileges.size(); ++i)
		arguments.push_back({"privilege" + (i > 0 ? std::to_string(i + 1) : ""), "text", privileges[i]});
	return arguments;
}

Task<Time> time_of(Connection &connection, Statement statement)
{
	const Result row = co_await connection.query(std::move(statement));
	co_return row.time(0, "at").value_or(Time());
}

} // namespace

Task<ListPage> list(Connection &connection, std::optional<std::string> queue, EndedConditions conditions, bool newest)
{
	std::vector<Argument> arguments = condition_arguments(queue, conditions);
	arguments.push_back({"newest", "boolean", value(newest)});
	Statement statement =
		call("tq_list", arguments,
			 "id, queue, kind, state, priority, attempt, max_attempts, worker, group_key, unique_key, "
			 "tags, payload, next_after, " +
				 epoch("run_at") + ", " + epoch("enqueued_at") + ", " + epoch("expires_at"));
	const Result rows = co_await connection.query(std::move(statement));
	ListPage page;
	for (int row = 0; row < rows.rows(); ++row)
	{
		page.next_after = rows.optional_integer(row, "next_after");
		if (rows.optional_integer(row, "id"))
			page.jobs.push_back(listed(rows, row));
	}
	co_return page;
}

Task<Changed> cancel_many(Connection &connection, std::optional<std::string> queue, Conditions conditions,
						  std::optional<std::string> reason, bool dry_run)
{
	std::vector<Argument> arguments = condition_arguments(queue, conditions);
	arguments.push_back({"reason", "text", value(reason)});
	return changed(connection, "tq_cancel_many", std::move(arguments), dry_run);
}

Task<Changed> reschedule_many(Connection &connection, std::optional<std::string> queue, Conditions conditions,
							  std::optional<Time> run_at, std::optional<int> priority, bool dry_run)
{
	std::vector<Argument> arguments = condition_arguments(queue, conditions);
	arguments.push_back({"run_at", "timestamptz", value(run_at)});
	arguments.push_back({"priority", "int", value(priority)});
	return changed(connection, "tq_reschedule_many", std::move(arguments), dry_run);
}

Task<Changed> retry_where(Connection &connection, std::optional<std::string> queue, EndedConditions conditions,
						  bool with_children, bool dry_run)
{
	std::vector<Argument> arguments = condition_arguments(queue, conditions);
	arguments.push_back({"with_children", "boolean", value(with_children)});
	return changed(connection, "tq_retry_where", std::move(arguments), dry_run);
}

Task<Changed> purge_many(Connection &connection, std::optional<std::string> queue, EndedConditions conditions,
						 bool dry_run)
{
	std::vector<Argument> arguments = condition_arguments(queue, conditions);
	arguments[1].null_too = true; // the state has no default
	return changed(connection, "tq_purge_many", std::move(arguments), dry_run);
}

Task<std::int64_t> retry_many(Connection &connection, std::string queue, RetryManyOptions options)
{
	return number_of(connection, call("tq_retry_many", {{"queue", "text", queue},
														{"state", "text", value(options.state)},
														{"kind", "text", value(options.kind)},
														{"since", "timestamptz", value(options.since)},
														{"max_jobs", "int", value(options.max_jobs)},
														{"to_queue", "text", value(options.to_queue)},
														{"with_children", "boolean", value(options.with_children)}}));
}

Task<std::int64_t> purge(Connection &connection, std::string queue, std::string state)
{
	return number_of(connection, call("tq_purge", {{"queue", "text", queue}, {"state", "text", state}}));
}

Task<std::vector<HistoryEvent>> history(Connection &connection, std::int64_t id)
{
	Statement statement = call("tq_history", {{"id", "bigint", value(id)}},
							   "step, event, attempt, worker, lease, reason, detail, " + epoch("at") + ", " +
								   epoch("claimed_at") + ", " + epoch("retry_at"));
	return rows_of(connection, std::move(statement), [](const Result &rows, int row) {
		HistoryEvent event;
		event.step = int(rows.integer(row, "step"));
		event.at = rows.time(row, "at");
		event.event = rows.text(row, "event");
		event.attempt = rows.optional_integer(row, "attempt");
		event.worker = rows.optional_text(row, "worker");
		event.claimed_at = rows.time(row, "claimed_at");
		event.retry_at = rows.time(row, "retry_at");
		event.lease = rows.optional_integer(row, "lease");
		event.reason = rows.optional_text(row, "reason");
		event.detail = rows.optional_text(row, "detail");
		return event;
	});
}

Task<std::vector<GraphJob>> graph(Connection &connection, std::int64_t id, std::optional<int> max_jobs)
{
	Statement statement = call("tq_graph", {{"id", "bigint", value(id)}, {"max_jobs", "int", value(max_jobs)}});
	return rows_of(connection, std::move(statement), [](const Result &rows, int row) {
		GraphJob job;
		job.level = int(rows.integer(row, "level"));
		job.id = rows.integer(row, "id");
		for (const std::string &parent : texts_of(rows.optional_text(row, "parents")))
			job.parents.push_back(std::stoll(parent));
		job.queue = rows.optional_text(row, "queue");
		job.kind = rows.optional_text(row, "kind");
		job.state = rows.optional_text(row, "state");
		job.on_parent_failure = rows.optional_text(row, "on_parent_failure");
		return job;
	});
}

Task<ChangesPage> changes(Connection &connection, ChangesOptions options)
{
	Statement statement = call("tq_changes",
							   {{"after", "text", value(options.after)},
								{"queue", "text", value(options.queue)},
								{"max", "int", value(options.max)},
								{"wait", "interval", value(options.wait)}},
							   "id, queue, event, state, step, next_after, " + epoch("at"));
	const Result rows = co_await connection.query(std::move(statement));
	ChangesPage page;
	for (int row = 0; row < rows.rows(); ++row)
	{
		page.next_after = rows.text(row, "next_after");
		if (const auto event = rows.optional_text(row, "event"))
			page.changes.push_back({rows.optional_integer(row, "id"), std::string(rows.text(row, "queue")), *event,
									rows.optional_text(row, "state"), rows.time(row, "at"),
									rows.optional_integer(row, "step")});
	}
	co_return page;
}

Task<std::vector<DeadGroup>> dead_groups(Connection &connection, std::string queue, std::optional<int> max_jobs)
{
	Statement statement = call("tq_dead_groups", {{"queue", "text", queue}, {"max_jobs", "int", value(max_jobs)}},
							   "kind, error, jobs, example, complete, " + epoch("first_at") + ", " + epoch("last_at"));
	return rows_of(connection, std::move(statement), [](const Result &rows, int row) {
		DeadGroup group;
		group.kind = rows.optional_text(row, "kind");
		group.error = rows.optional_text(row, "error");
		group.jobs = rows.integer(row, "jobs");
		group.first_at = rows.time(row, "first_at");
		group.last_at = rows.time(row, "last_at");
		group.example = rows.integer(row, "example");
		group.complete = rows.text(row, "complete") == "t";
		return group;
	});
}

Task<> create_queue(Connection &connection, std::string name, std::string settings)
{
	return ignore(connection, call("tq_create_queue", {{"name", "text", name}, {"settings", "jsonb", settings}}));
}

Task<> alter_queue(Connection &connection, std::string name, std::string settings)
{
	return ignore(connection, call("tq_alter_queue", {{"name", "text", name}, {"settings", "jsonb", settings}}));
}

Task<> drop_queue(Connection &connection, std::string name)
{
	return ignore(connection, call("tq_drop_queue", {{"name", "text", name}}));
}

Task<> pause(Connection &connection, std::string queue, std::optional<std::string> kind, std::optional<Time> until,
			 std::optional<std::string> group_key)
{
	std::vector<Argument> arguments = pause_arguments(queue, kind, group_key);
	arguments.push_back({"until", "timestamptz", value(until)});
	return ignore(connection, call("tq_pause", arguments));
}

Task<> resume(Connection &connection, std::string queue, std::optional<std::string> kind,
			  std::optional<std::string> group_key)
{
	return ignore(connection, call("tq_resume", pause_arguments(queue, kind, group_key)));
}

Task<> limit_group(Connection &connection, std::string queue, std::string group_key, std::optional<int> max_running,
				   std::optional<std::string> rate)
{
	return ignore(connection, call("tq_limit_group", {{"queue", "text", queue},
													  {"group_key", "text", group_key},
													  {"max_running", "int", value(max_running)},
													  {"rate", "text", value(rate)}}));
}

Task<Result> stats(Connection &connection) { return connection.query(call("tq_stats", {})); }

Task<Result> series(Connection &connection, std::optional<std::string> queue, std::optional<Duration> since,
					std::optional<Duration> step)
{
	return connection.query(call(
		"tq_series",
		{{"queue", "text", value(queue)}, {"since", "interval", value(since)}, {"step", "interval", value(step)}}));
}

Task<> schedule(Connection &connection, std::string name, std::string queue, std::string payload,
				ScheduleOptions options)
{
	return ignore(connection, call("tq_schedule", {{"name", "text", name},
												   {"queue", "text", queue},
												   {"payload", "jsonb", payload},
												   {"kind", "text", value(options.kind)},
												   {"cron", "text", value(options.cron)},
												   {"every", "interval", value(options.every)},
												   {"timezone", "text", value(options.timezone)},
												   {"catch_up", "text", value(options.catch_up)},
												   {"overlap", "text", value(options.overlap)},
												   {"options", "jsonb", value(options.options)}}));
}

Task<> unschedule(Connection &connection, std::string name)
{
	return change_schedule(connection, "tq_unschedule", name);
}

Task<> schedule_pause(Connection &connection, std::string name)
{
	return change_schedule(connection, "tq_schedule_pause", name);
}

Task<> schedule_resume(Connection &connection, std::string name)
{
	return change_schedule(connection, "tq_schedule_resume", name);
}

Task<std::optional<std::int64_t>> schedule_run(Connection &connection, std::string name)
{
	Statement statement = call("tq_schedule_run", {{"name", "text", name}}, "tq_schedule_run AS id");
	const Result row = co_await connection.query(std::move(statement));
	co_return row.optional_integer(0, "id");
}

Task<std::vector<Time>> schedule_next(Connection &connection, std::string cron, std::optional<std::string> timezone,
									  std::optional<int> n)
{
	Statement statement = call("tq_schedule_next",
							   {{"cron", "text", cron}, {"timezone", "text", value(timezone)}, {"n", "int", value(n)}},
							   "extract(epoch FROM tq_schedule_next) AS at");
	return rows_of(connection, std::move(statement),
				   [](const Result &rows, int row) { return rows.time(row, "at").value_or(Time()); });
}

Task<> handle(Connection &connection, std::string queue, std::optional<std::string> kind, std::string handler,
			  std::optional<std::string> options)
{
	return ignore(connection, call("tq_handle", {{"queue", "text", queue},
												 {"kind", "text", value(kind), true},
												 {"handler", "regprocedure", handler},
												 {"options", "jsonb", value(options)}}));
}

Task<> unhandle(Connection &connection, std::string queue, std::optional<std::string> kind)
{
	return ignore(connection, call("tq_unhandle", {{"queue", "text", queue}, {"kind", "text", value(kind), true}}));
}

Task<> subscribe(Connection &connection, std::string queue, std::string url, std::string options)
{
	return ignore(connection, call("tq_subscribe",
								   {{"queue", "text", queue}, {"url", "text", url}, {"options", "jsonb", options}}));
}

Task<> unsubscribe(Connection &connection, std::string queue, std::string url)
{
	return ignore(connection, call("tq_unsubscribe", {{"queue", "text", queue}, {"url", "text", url}}));
}

Task<> grant(Connection &connection, std::string queue, std::string role, std::vector<std::string> privileges)
{
	return ignore(connection, call("tq_grant", rights_arguments(queue, role, privileges)));
}

Task<> revoke(Connection &connection, std::string queue, std::string role, std::vector<std::string> privileges)
{
	return ignore(connection, call("tq_revoke", rights_arguments(queue, role, privileges)));
}

Task<Result> health(Connection &connection) { return connection.query(call("tq_health", {})); }

Task<std::string> metrics(Connection &connection) { return text_of(connection, call("tq_metrics", {})); }

Task<Result> check(Connection &connection) { return connection.query(call("tq_check", {})); }

Task<std::int64_t> reload(Connection &connection) { return number_of(connection, call("tq_reload", {})); }

Task<Result> activate(Connection &connection, bool discard, bool dry_run)
{
	return connection.query(
		call("tq_activate", {{"discard", "boolean", value(discard)}, {"dry_run", "boolean", value(dry_run)}}));
}

Task<> deactivate(Connection &connection) { return ignore(connection, call("tq_deactivate", {})); }

Task<Time> now(Connection &connection)
{
	return time_of(connection, call("tq_now", {}, "extract(epoch FROM tq_now) AS at"));
}

Task<std::vector<std::string>> help(Connection &connection, std::optional<std::string> name)
{
	return rows_of(connection, call("tq_help", {{"name", "text", value(name)}}),
				   [](const Result &rows, int row) { return std::string(rows.text(row, 0)); });
}

Task<std::int64_t> enqueued(Connection &connection, std::string queue, std::optional<std::string> kind,
							std::optional<std::string> payload)
{
	return number_of(connection, call("tq_enqueued", {{"queue", "text", queue},
													  {"kind", "text", value(kind)},
													  {"payload", "jsonb", value(payload)}}));
}

Task<std::int64_t> reset(Connection &connection, std::optional<std::string> queue)
{
	return number_of(connection, call("tq_reset", {{"queue", "text", value(queue)}}));
}

Task<Time> set_now(Connection &connection, std::optional<Time> at)
{
	return time_of(connection,
				   call("tq_set_now", {{"at", "timestamptz", value(at)}}, "extract(epoch FROM tq_set_now) AS at"));
}

} // namespace tq
