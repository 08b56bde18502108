// The other public SQL functions as typed calls: many jobs at once, lists, queues, schedules, rights, health, tests. What
// an option leaves out has the default of the SQL function. Functions that return a Result have its columns by name.
#pragma once

#include <tq/calls.hpp>

namespace tq
{

// The jobs of tq_list, and of the calls that change many jobs. All that is set must hold.
struct Conditions
{
	Conditions() {}
	std::optional<std::string> state = {}, kind = {}, worker = {}, tag = {}, group_key = {}, unique_key = {};
	std::optional<Time> created_from = {}, created_to = {};
	std::optional<std::string> search = {}; // JSON that the payload contains
	std::optional<std::int64_t> after = {}; // next_after of the call before
	std::optional<int> max = {};
};

struct EndedConditions : Conditions
{
	EndedConditions() {}
	std::optional<std::string> error = {}; // as dead_groups returns it
};

struct ListedJob
{
	std::int64_t id = 0;
	std::string queue;
	std::optional<std::string> kind;
	std::string state;
	int priority = 0, attempt = 0;
	std::optional<std::int64_t> max_attempts; // empty: those of the queue
	std::optional<Time> run_at, enqueued_at, expires_at;
	std::optional<std::string> worker, group_key, unique_key;
	std::vector<std::string> tags;
	std::optional<std::string> payload; // the beginning of its text
};

struct ListPage
{
	std::vector<ListedJob> jobs;			// may be empty although there are more
	std::optional<std::int64_t> next_after; // nothing at the end
};

// A page of jobs; of all queues if none is given.
Task<ListPage> list(Connection &connection, std::optional<std::string> queue, EndedConditions conditions = {},
					bool newest = true);

struct Changed
{
	std::int64_t changed = 0;
	std::optional<std::int64_t> next_after; // nothing at the end
};

// Change the jobs that match, up to max; of all queues if none is given.
Task<Changed> cancel_many(Connection &connection, std::optional<std::string> queue, Conditions conditions = {},
						  std::optional<std::string> reason = {}, bool dry_run = false);
Task<Changed> reschedule_many(Connection &connection, std::optional<std::string> queue, Conditions conditions,
							  std::optional<Time> run_at, std::optional<int> priority = {}, bool dry_run = false);
Task<Changed> retry_where(Connection &connection, std::optional<std::string> queue, EndedConditions conditions = {},
						  bool with_children = false, bool dry_run = false);
// conditions.state must be set.
Task<Changed> purge_many(Connection &connection, std::optional<std::string> queue, EndedConditions conditions,
						 bool dry_run = false);

struct RetryManyOptions
{
	RetryManyOptions() {}
	std::optional<std::string> state = {}, kind = {};
	std::optional<Time> since = {};
	std::optional<int> max_jobs = {};
	std::optional<std::string> to_queue = {};
	bool with_children = false;
};

// Return how many jobs they retried, copied or purged.
Task<std::int64_t> retry_many(Connection &connection, std::string queue, RetryManyOptions options = {});
Task<std::int64_t> purge(Connection &connection, std::string queue, std::string state);

struct HistoryEvent
{
	int step = 0;
	std::optional<Time> at;
	std::string event;
	std::optional<std::int64_t> attempt;
	std::optional<std::string> worker;
	std::optional<Time> claimed_at, retry_at;
	std::optional<std::int64_t> lease;
	std::optional<std::string> reason, detail;
};

Task<std::vector<HistoryEvent>> history(Connection &connection, std::int64_t id);

struct GraphJob
{
	int level = 0;
	std::int64_t id = 0;
	std::vector<std::int64_t> parents;
	// nothing for a job that the caller may not see
	std::optional<std::string> queue, kind, state, on_parent_failure;
};

// The jobs that a job waits for, and those that wait for it.
Task<std::vector<GraphJob>> graph(Connection &connection, std::int64_t id, std::optional<int> max_jobs = {});

struct Change
{
	std::optional<std::int64_t> id;
	std::string queue, event;
	std::optional<std::string> state;
	std::optional<Time> at;
	std::optional<std::int64_t> step;
};

struct ChangesPage
{
	std::vector<Change> changes;
	std::string next_after; // the cursor of the next page
};

struct ChangesOptions
{
	ChangesOptions() {}
	std::optional<std::string> after = {}; // a cursor, or "now"
	std::optional<std::string> queue = {};
	std::optional<int> max = {};
	std::optional<Duration> wait = {};
};

Task<ChangesPage> changes(Connection &connection, ChangesOptions options = {});

struct DeadGroup
{
	std::optional<std::string> kind, error;
	std::int64_t jobs = 0;
	std::optional<Time> first_at, last_at;
	std::int64_t example = 0;
	bool complete = false;
};

Task<std::vector<DeadGroup>> dead_groups(Connection &connection, std::string queue, std::optional<int> max_jobs = {});

// settings: a JSON object.
Task<> create_queue(Connection &connection, std::string name, std::string settings = "{}");
Task<> alter_queue(Connection &connection, std::string name, std::string settings);
Task<> drop_queue(Connection &connection, std::string name);
Task<> pause(Connection &connection, std::string queue, std::optional<std::string> kind = {},
			 std::optional<Time> until = {}, std::optional<std::string> group_key = {});
Task<> resume(Connection &connection, std::string queue, std::optional<std::string> kind = {},
			  std::optional<std::string> group_key = {});
Task<> limit_group(Connection &connection, std::string queue, std::string group_key,
				   std::optional<int> max_running = {}, std::optional<std::string> rate = {});
Task<Result> stats(Connection &connection);
// Of all queues together if none is given.
Task<Result> series(Connection &connection, std::optional<std::string> queue = {}, std::optional<Duration> since = {},
					std::optional<Duration> step = {});

struct ScheduleOptions
{
	ScheduleOptions() {}
	std::optional<std::string> kind = {}, cron = {}, every = {}; // every: an interval
	std::optional<std::string> timezone = {}, catch_up = {}, overlap = {};
	std::optional<std::string> options = {}; // a JSON object, for its jobs
};

Task<> schedule(Connection &connection, std::string name, std::string queue, std::string payload = "{}",
				ScheduleOptions options = {});
Task<> unschedule(Connection &connection, std::string name);
Task<> schedule_pause(Connection &connection, std::string name);
Task<> schedule_resume(Connection &connection, std::string name);
// Enqueues a job now. Returns its id, or nothing if none was enqueued.
Task<std::optional<std::int64_t>> schedule_run(Connection &connection, std::string name);
Task<std::vector<Time>> schedule_next(Connection &connection, std::string cron,
									  std::optional<std::string> timezone = {}, std::optional<int> n = {});

// handler: a function as regprocedure reads it. Without a kind: for all kinds that have none.
Task<> handle(Connection &connection, std::string queue, std::optional<std::string> kind, std::string handler,
			  std::optional<std::string> options = {});
Task<> unhandle(Connection &connection, std::string queue, std::optional<std::string> kind);
Task<> subscribe(Connection &connection, std::string queue, std::string url, std::string options = "{}");
Task<> unsubscribe(Connection &connection, std::string queue, std::string url);

// 1 to 8 privileges.
Task<> grant(Connection &connection, std::string queue, std::string role, std::vector<std::string> privileges);
Task<> revoke(Connection &connection, std::string queue, std::string role, std::vector<std::string> privileges);

Task<Result> health(Connection &connection);
Task<std::string> metrics(Connection &connection);
Task<Result> check(Connection &connection);
Task<std::int64_t> reload(Connection &connection);
// Returns what is not whole.
Task<Result> activate(Connection &connection, bool discard = false, bool dry_run = false);
Task<> deactivate(Connection &connection);
Task<Time> now(Connection &connection);
// Lines of text.
Task<std::vector<std::string>> help(Connection &connection, std::optional<std::string> name = {});

// For tests of applications.
Task<std::int64_t> enqueued(Connection &connection, std::string queue, std::optional<std::string> kind = {},
							std::optional<std::string> payload = {});
Task<std::int64_t> reset(Connection &connection, std::optional<std::string> queue = {});
Task<Time> set_now(Connection &connection, std::optional<Time> at = {});

} // namespace tq
