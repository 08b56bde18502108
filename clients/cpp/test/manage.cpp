// The typed calls of <tq/manage.hpp>, each with a real server.   usage: tq_test_manage QUEUE
#include "judge.hpp"

#include <algorithm>

using namespace std::chrono_literals;

namespace
{

using Ids = std::vector<std::int64_t>;

tq::Task<std::int64_t> job_of_kind(tq::Connection &connection, std::string queue, std::string kind, Ids parents = {})
{
	tq::EnqueueOptions options;
	options.kind = kind;
	options.depends_on = parents;
	options.options = "{\"tags\": [\"a \\\"b\\\"\", \"c\"]}";
	const auto id = co_await tq::enqueue(connection, queue, "{\"n\": 1}", options);
	co_return *id;
}

// Fails each job that is ready.
tq::Task<> fail_all(tq::Connection &connection, std::string queue, std::string error)
{
	std::vector<std::string> queues(1, queue);
	tq::ClaimOptions claims;
	claims.max_jobs = 100;
	for (const tq::JobData &job : co_await tq::claim(connection, queues, claims))
		co_await tq::fail(connection, job.id, job.lease, error, {}, true);
}

tq::Task<> lists(tq::Connection &connection, std::string queue)
{
	Ids jobs;
	for (int i = 0; i < 3; ++i)
		jobs.push_back(co_await job_of_kind(connection, queue, "k"));
	tq::EndedConditions conditions;
	conditions.max = 2;
	conditions.tag = "a \"b\"";
	conditions.search = "{\"n\": 1}";
	const tq::ListPage first = co_await tq::list(connection, queue, conditions, false);
	conditions.after = first.next_after;
	const tq::ListPage second = co_await tq::list(connection, queue, conditions, false);
	conditions.after = second.next_after;
	const tq::ListPage end = co_await tq::list(connection, queue, conditions, false);
	judge(first.jobs.size() == 2 && first.jobs[0].id == jobs[0] && first.jobs[0].state == "ready" &&
			  first.jobs[0].tags == std::vector<std::string>{"a \"b\"", "c"} && first.jobs[0].enqueued_at &&
			  first.next_after && second.jobs.size() == 1 && end.jobs.empty() && !end.next_after,
		  "list returns pages");
	const tq::ListPage all = co_await tq::list(connection, std::nullopt);
	judge(all.jobs.size() == 3 && all.jobs[0].id == jobs[2], "list without a queue is about all");
	co_await tq::purge(connection, queue, "all");
}

tq::Task<> many(tq::Connection &connection, std::string queue)
{
	for (int i = 0; i < 3; ++i)
		co_await job_of_kind(connection, queue, "k");
	tq::Conditions one;
	one.max = 1;
	const tq::Changed counted = co_await tq::cancel_many(connection, queue, one, {}, true);
	const tq::Changed cancelled = co_await tq::cancel_many(connection, queue, one, "by hand");
	judge(counted.changed == 1 && cancelled.changed == 1 && cancelled.next_after,
		  "cancel_many cancels jobs that match, and says where to go on");
	const tq::Changed later =
		co_await tq::reschedule_many(connection, queue, {}, std::chrono::system_clock::now() + 1h, 7);
	tq::EndedConditions delayed;
	delayed.state = "delayed";
	const tq::ListPage waiting = co_await tq::list(connection, queue, delayed);
	judge(later.changed == 2 && !later.next_after && waiting.jobs.size() == 2 && waiting.jobs[0].priority == 7,
		  "reschedule_many changes time and priority");
	const tq::Changed retried = co_await tq::retry_where(connection, queue, delayed);
	tq::EndedConditions of_kind;
	of_kind.state = "all";
	of_kind.kind = "k";
	const std::string none = co_await error_of(tq::purge_many(connection, queue, {}));
	const tq::Changed anywhere = co_await tq::purge_many(connection, std::nullopt, of_kind, true);
	const tq::Changed purged = co_await tq::purge_many(connection, queue, of_kind);
	judge(retried.changed == 2 && none == "22004" && anywhere.changed == 3 && purged.changed == 3,
		  "retry_where and purge_many change jobs that match");
}

tq::Task<> dead_letters(tq::Connection &connection, std::string queue)
{
	const std::int64_t parent = co_await job_of_kind(connection, queue, "k");
	const std::int64_t child = co_await job_of_kind(connection, queue, "child", Ids(1, parent));
	co_await fail_all(connection, queue, "no answer from 10.0.0.1");
	co_await job_of_kind(connection, queue, "k");
	co_await fail_all(connection, queue, "broken");
	const std::vector<tq::DeadGroup> groups = co_await tq::dead_groups(connection, queue);
	const auto found =
		std::find_if(groups.begin(), groups.end(), [parent](const auto &g) { return g.example == parent; });
	judge(groups.size() == 2 && found != groups.end() && found->jobs == 1 && found->kind == "k" && found->complete &&
			  found->last_at,
		  "dead_groups groups dead jobs");
	std::vector<std::int64_t> both(1, parent);
	both.push_back(child);
	co_await tq::wait_jobs(connection, both);
	const std::vector<tq::GraphJob> graph = co_await tq::graph(connection, child);
	judge(graph.size() == 2 && graph[0].id == child && graph[0].parents == Ids{parent} && graph[1].level == -1 &&
			  graph[1].state == "dead",
		  "graph shows parents");
	tq::EndedConditions conditions;
	conditions.error = found->error;
	const tq::Changed retried = co_await tq::retry_where(connection, queue, conditions, true);
	const std::vector<tq::JobOutcome> outcomes = co_await tq::outcomes(connection, both);
	judge(retried.changed == 1 && outcomes[0].state == "ready" && outcomes[1].state == "blocked",
		  "retry_where takes an error, and restores the jobs below");
	tq::RetryManyOptions elsewhere;
	elsewhere.to_queue = queue + "other";
	const std::int64_t copied = co_await tq::retry_many(connection, queue, elsewhere);
	const std::int64_t purged = co_await tq::purge(connection, queue, "ready");
	judge(copied == 1 && purged == 1, "retry_many copies dead jobs, purge purges jobs of a state");
	const std::vector<tq::HistoryEvent> events = co_await tq::history(connection, child);
	judge(events.size() > 2 && events[0].event == "enqueued" && events[0].at && !events[0].attempt &&
			  events[1].event == "cancelled" && events[1].reason,
		  "history shows the events of a job");
}

tq::Task<> follow(tq::Connection &connection, std::string queue)
{
	tq::ChangesOptions options;
	options.queue = queue;
	options.after = "now";
	co_await tq::alter_queue(connection, queue, "{\"change_retention\": \"1 day\"}");
	const tq::ChangesPage begin = co_await tq::changes(connection, options);
	const std::int64_t id = co_await job_of_kind(connection, queue, "k");
	options.after = begin.next_after;
	tq::ChangesPage page;
	const auto give_up = std::chrono::steady_clock::now() + 180s;
	do // a transaction that is older hides the change
		page = co_await tq::changes(connection, options);
	while (page.changes.empty() && std::chrono::steady_clock::now() < give_up);
	judge(begin.changes.empty() && page.changes.size() == 1 && page.changes[0].id == id &&
			  page.changes[0].event == "enqueued" && page.changes[0].state == "ready" && page.changes[0].at,
		  "changes follows a queue");
	co_await tq::purge(connection, queue, "all");
}

tq::Task<> queues(tq::Connection &connection, std::string queue)
{
	const std::string other = queue + "made";
	co_await tq::create_queue(connection, other, "{\"priority\": 3}");
	co_await job_of_kind(connection, other, "k");
	std::vector<std::string> names(1, other);
	co_await tq::pause(connection, other);
	const auto paused = co_await tq::claim(connection, names);
	co_await tq::resume(connection, other);
	co_await tq::pause(connection, other, "k", std::chrono::system_clock::now() + 1h);
	const auto paused_kind = co_await tq::claim(connection, names);
	co_await tq::resume(connection, other, "k");
	const auto resumed = co_await tq::claim(connection, names);
	judge(paused.empty() && paused_kind.empty() && resumed.size() == 1 && resumed[0].priority == 3,
		  "pause and resume are about a queue or a kind");
	co_await tq::complete(connection, resumed[0].id, resumed[0].lease);
	co_await tq::limit_group(connection, other, "g", 3, "100/min");
	co_await tq::pause(connection, other, {}, {}, "h");
	co_await tq::pause(connection, other, {}, {}, "i");
	co_await tq::resume(connection, other, {}, "i");
	const tq::Result groups =
		co_await connection.query("SELECT groups FROM tq_queues WHERE queue = $1", tq::values(other));
	judge(groups.text(0, "groups") ==
			  "{\"g\": {\"rate\": \"100/min\", \"max_running\": 3}, \"h\": {\"paused_until\": \"infinity\"}}",
		  "limit_group, pause and resume are about a group");
	const tq::Result stats = co_await tq::stats(connection);
	bool counted = false;
	for (int row = 0; row < stats.rows(); ++row)
		counted = counted || (stats.text(row, "queue") == other && stats.integer(row, "succeeded") == 1);
	const tq::Result series = co_await tq::series(connection, other, 1h, 24h);
	std::int64_t enqueued = 0;
	for (int row = 0; row < series.rows(); ++row) // two at midnight
		enqueued += series.integer(row, "enqueued");
	judge(counted && enqueued == 1, "stats and series return counters");
	co_await tq::drop_queue(connection, other);
	judge(co_await error_of(tq::drop_queue(connection, other)) == "TQ002", "drop_queue drops a queue");
}

tq::Task<> schedules(tq::Connection &connection, std::string queue)
{
	tq::ScheduleOptions options;
	options.kind = "k";
	options.every = "1 day";
	co_await tq::schedule(connection, "daily", queue, "{\"n\": 2}", options);
	co_await tq::schedule_pause(connection, "daily");
	const std::string paused = "SELECT state FROM tq_schedules WHERE name = 'daily'";
	const tq::Result before = co_await connection.query(paused);
	co_await tq::schedule_resume(connection, "daily");
	const tq::Result after = co_await connection.query(paused);
	const auto id = co_await tq::schedule_run(connection, "daily");
	const tq::JobInfo job = co_await tq::get(connection, *id);
	co_await tq::unschedule(connection, "daily");
	const std::string again = co_await error_of(tq::unschedule(connection, "daily"));
	judge(before.text(0, "state") == "paused" && after.text(0, "state") != "paused" && job.kind == "k" &&
			  job.payload == "{\"n\": 2}" && again == "42704",
		  "a schedule is defined, paused, run and removed");
	const std::vector<tq::Time> next = co_await tq::schedule_next(connection, "0 3 * * *", "UTC", 2);
	judge(next.size() == 2 && next[1] - next[0] == 24h, "schedule_next returns times");
	co_await tq::purge(connection, queue, "all");
}

tq::Task<> handlers_and_subscriptions(tq::Connection &connection, std::string queue)
{
	co_await connection.query("CREATE FUNCTION greet(job tq_job) RETURNS jsonb LANGUAGE sql "
							  "RETURN jsonb_build_object('hello', (job).payload)");
	co_await tq::handle(connection, queue, {}, "greet(tq_job)", "{\"max\": 1}");
	std::vector<std::int64_t> job(1, co_await job_of_kind(connection, queue, "any"));
	co_await tq::wait_jobs(connection, job, 180s);
	const std::vector<tq::JobOutcome> outcomes = co_await tq::outcomes(connection, job);
	co_await tq::unhandle(connection, queue, {});
	judge(outcomes[0].result == "{\"hello\": {\"n\": 1}}" &&
			  co_await error_of(tq::unhandle(connection, queue, {})) == "42704",
		  "a handler of all kinds runs jobs until it is removed");
	const std::string url = "https://example.org/hook", targets = "SELECT count(*) AS n FROM tq_subscriptions";
	co_await tq::subscribe(connection, queue, url, "{\"secret\": \"a\"}");
	const tq::Result one = co_await connection.query(targets);
	co_await tq::unsubscribe(connection, queue, url);
	const tq::Result none = co_await connection.query(targets);
	judge(one.integer(0, "n") == 1 && none.integer(0, "n") == 0, "subscribe and unsubscribe");
}

tq::Task<> rights(tq::Connection &connection, std::string queue)
{
	co_await connection.query("CREATE ROLE tq_cpp_manage");
	std::vector<std::string> privileges(1, "consume");
	privileges.emplace_back("produce");
	const std::string granted = "SELECT count(*) AS n FROM tq_grants WHERE role = 'tq_cpp_manage'::regrole";
	co_await tq::grant(connection, queue, "tq_cpp_manage", privileges);
	const tq::Result both = co_await connection.query(granted);
	co_await tq::revoke(connection, queue, "tq_cpp_manage", privileges);
	const tq::Result none = co_await connection.query(granted);
	co_await connection.query("DROP ROLE tq_cpp_manage");
	judge(both.integer(0, "n") == 2 && none.integer(0, "n") == 0, "grant and revoke take privileges");
}

tq::Task<> health_and_repair(tq::Connection &connection)
{
	const tq::Result health = co_await tq::health(connection), check = co_await tq::check(connection);
	const std::string metrics = co_await tq::metrics(connection);
	const std::vector<std::string> help = co_await tq::help(connection, "tq_resume");
	const std::vector<std::string> topics = co_await tq::help(connection);
	judge(health.column("status") >= 0 && health.rows() > 3 && check.column("expected") >= 0 && check.rows() > 3 &&
			  metrics.find("tq_jobs") != std::string::npos && help.size() > 2 && topics.size() > help.size(),
		  "health, check, metrics and help");
	const std::int64_t reloaded = co_await tq::reload(connection);
	co_await tq::deactivate(connection);
	const tq::Result inactive = co_await connection.query("SELECT value FROM tq_health() WHERE item = 'activation'");
	const tq::Result problems = co_await tq::activate(connection);
	const tq::Result active = co_await connection.query("SELECT value FROM tq_health() WHERE item = 'activation'");
	judge(reloaded >= 0 && inactive.text(0, "value") != "active" && problems.rows() == 0 &&
			  active.text(0, "value") == "active",
		  "reload, deactivate and activate");
}

tq::Task<> tests_of_applications(tq::Connection &connection, std::string queue)
{
	co_await job_of_kind(connection, queue, "counted");
	const std::int64_t one = co_await tq::enqueued(connection, queue, "counted", "{\"n\": 1}");
	const std::int64_t none = co_await tq::enqueued(connection, queue, "other");
	co_await connection.query("SET tq.testing = on");
	const tq::Time later = co_await tq::set_now(connection, std::chrono::system_clock::now() + 48h);
	const tq::Time now = co_await tq::now(connection);
	const tq::Time real = co_await tq::set_now(connection);
	judge(later - real > 47h && now >= later, "now follows set_now");
	const std::int64_t purged = co_await tq::reset(connection, queue);
	const std::int64_t left = co_await tq::enqueued(connection, queue, "counted");
	judge(one == 1 && none == 0 && purged > 0 && left == 0, "enqueued counts jobs, reset purges them");
}

tq::Task<> call_all(std::string queue)
{
	tq::Connection connection = co_await tq::Connection::open("");
	co_await lists(connection, queue);
	co_await many(connection, queue);
	co_await dead_letters(connection, queue);
	co_await follow(connection, queue);
	co_await queues(connection, queue);
	co_await schedules(connection, queue);
	co_await handlers_and_subscriptions(connection, queue);
	co_await rights(connection, queue);
	co_await tests_of_applications(connection, queue);
	co_await health_and_repair(connection);
}

} // namespace

int main(int, char **arguments)
{
	program_name = "manage";
	tq::run(call_all(arguments[1]));
	return failures != 0;
}
