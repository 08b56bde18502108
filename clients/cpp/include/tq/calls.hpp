// The public SQL functions of producers and workers as typed calls; <tq/manage.hpp> has the others. Names, meanings and
// errors are those of docs/reference.md. Payloads, results and other JSON are text. What an option leaves out has the
// default of the SQL function.
#pragma once

#include <tq/connection.hpp>
#include <tq/job.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tq
{

// An argument of an SQL function by name. If the value is null it is left out, so the function uses its default, unless
// null has a meaning of its own.
struct Argument
{
	std::string name, type;
	Value value;
	bool null_too = false;
};

// SELECT columns FROM function(name => $1::type, ...)
Statement call(std::string_view function, const std::vector<Argument> &arguments, std::string_view columns = "*");
// CALL procedure(name => $1::type, ...)
Statement call_procedure(std::string_view procedure, const std::vector<Argument> &arguments);

// From now on the server parses the calls of producers and workers once, unless a pooler is between: then a transaction
// may get another server process, which does not know what was prepared. It is one if the process is not the one that
// the connection was told of. Returns whether there is none.
Task<bool> prepare_if_direct(Connection &connection);

// A class with a constructor, as the other options are: g++ 12 destroys aggregates twice that a co_await has made.
struct EnqueueOptions
{
	EnqueueOptions() {}
	std::optional<std::string> kind = {};
	std::optional<int> priority = {};
	std::optional<Time> run_at = {};
	std::optional<Duration> delay = {};
	std::optional<Time> expires_at = {};
	std::optional<int> max_attempts = {};
	std::optional<std::string> retry = {}; // JSON
	std::optional<Duration> timeout = {};
	std::optional<std::string> group_key = {};
	std::optional<std::string> unique_key = {};
	std::optional<std::string> unique_mode = {};
	std::optional<std::string> headers = {}; // a JSON object
	std::vector<std::int64_t> depends_on = {};
	std::optional<std::string> options = {}; // a JSON object
};

// Adds a job in the transaction that is open on the connection, if any. Returns its id, or nothing if unique_mode is
// ignore and the key was taken.
Task<std::optional<std::int64_t>> enqueue(Connection &connection, std::string queue, std::string payload = "{}",
										  EnqueueOptions options = {});

// Each vector is empty, or has an element for each job. Where an element is null, the option of all jobs holds.
// unique_key of the base is not used.
struct EnqueueManyOptions : EnqueueOptions
{
	EnqueueManyOptions() {}
	std::vector<std::optional<std::string>> kinds = {};
	std::vector<std::optional<int>> priorities = {};
	std::vector<std::optional<Time>> run_ats = {};
	std::vector<std::optional<std::string>> unique_keys = {};
	std::vector<std::optional<std::string>> group_keys = {};
};

// Adds a job for each payload. Returns the ids in the same order.
Task<std::vector<std::optional<std::int64_t>>> enqueue_many(Connection &connection, std::string queue,
															std::vector<std::string> payloads,
															EnqueueManyOptions options = {});

struct Enqueued
{
	std::optional<std::int64_t> id; // nothing if unique_mode is ignore and the key was taken
	std::string outcome;			// created, replaced or skipped
};

// As enqueue and enqueue_many, but they also return the outcomes.
Task<Enqueued> enqueue_info(Connection &connection, std::string queue, std::string payload = "{}",
							EnqueueOptions options = {});
Task<std::vector<Enqueued>> enqueue_many_info(Connection &connection, std::string queue,
											  std::vector<std::string> payloads, EnqueueManyOptions options = {});

struct BatchOptions
{
	BatchOptions() {}
	std::optional<std::string> kind = {};
	std::optional<std::string> on_failure = {};
	std::optional<std::string> options = {}; // a JSON object
};

struct BatchInfo
{
	std::int64_t id = 0;
	bool open = false;
	std::int64_t total = 0, done = 0, succeeded = 0, failed = 0;
};

// Opens a batch and returns its id, which jobs join with {"batch": id} in their options. The arguments are those of the
// job that follows.
Task<std::int64_t> batch_open(Connection &connection, std::string queue, std::string payload = "{}",
							  BatchOptions options = {});
Task<> batch_close(Connection &connection, std::int64_t batch);
// The progress of a batch.
Task<BatchInfo> batch(Connection &connection, std::int64_t id);

struct ClaimOptions
{
	ClaimOptions() {}
	int max_jobs = 1;
	std::optional<std::string> worker = {};
	std::optional<Duration> lease_for = {};
	std::optional<Duration> wait = {};
	std::vector<std::string> kinds = {}; // empty: all
	bool bind_session = false;
	bool bind_worker = false;
};

Task<std::vector<JobData>> claim(Connection &connection, std::vector<std::string> queues, ClaimOptions options = {});
// Completes jobs and claims the next ones, in one commit. results: empty, or one for each job.
Task<std::vector<JobData>> claim_next(Connection &connection, std::string queue, std::vector<std::int64_t> ids,
									  std::vector<std::int64_t> leases, std::vector<Value> results = {},
									  ClaimOptions options = {});

struct WorkerJob
{
	std::string worker;
	JobData job;
};

// Claims for several workers; options.worker is not used.
Task<std::vector<WorkerJob>> claim_for(Connection &connection, std::vector<std::string> queues,
									   std::vector<std::string> workers, ClaimOptions options = {});

// Waits until a job of one of these kinds can be claimed from one of these queues. None: of all.
Task<> wait(Connection &connection, std::vector<std::string> queues, std::optional<Duration> timeout = {},
			std::vector<std::string> kinds = {}, bool all_roles = false);

struct ReadyJobs
{
	std::string queue;
	std::optional<std::string> kind;
	std::int64_t jobs;
	std::string role;
};

// The queues and kinds that have jobs to claim now; of all if none is given.
Task<std::vector<ReadyJobs>> ready(Connection &connection, std::vector<std::string> queues = {},
								   std::vector<std::string> kinds = {}, bool all_roles = false);

struct HeartbeatOptions
{
	HeartbeatOptions() {}
	std::optional<Duration> extend = {};
	std::optional<std::string> progress = {};	// JSON
	std::optional<std::string> checkpoint = {}; // JSON
	std::optional<std::string> worker = {};
};

Task<Action> heartbeat(Connection &connection, std::int64_t id, std::int64_t lease, HeartbeatOptions options = {});
// The answers are in the order of ids.
Task<std::vector<Action>> heartbeat_many(Connection &connection, std::vector<std::int64_t> ids,
										 std::vector<std::int64_t> leases, std::optional<Duration> extend = {});

struct WorkerBeat
{
	WorkerBeat(std::int64_t number, Action what) : jobs(number), action(what) {}
	std::int64_t jobs;
	Action action;
};

// For leases that were claimed with bind_worker.
Task<WorkerBeat> heartbeat_worker(Connection &connection, std::string worker);
Task<std::int64_t> release_worker(Connection &connection, std::string worker);

// Lets a worker claim no more. Returns how many jobs it holds.
Task<std::int64_t> drain(Connection &connection, std::string worker);
// Returns whether the worker was draining.
Task<bool> undrain(Connection &connection, std::string worker);

// In the transaction that did the work. They raise Error; lost() says that the transaction must be rolled back.
Task<std::string> complete(Connection &connection, std::int64_t id, std::int64_t lease,
						   std::optional<std::string> result = {});
Task<std::string> fail(Connection &connection, std::int64_t id, std::int64_t lease, std::string error,
					   std::optional<Duration> retry_in = {}, bool fatal = false);
Task<std::string> release(Connection &connection, std::int64_t id, std::int64_t lease,
						  std::optional<Duration> delay = {});
Task<std::string> bury(Connection &connection, std::int64_t id, std::int64_t lease, std::string reason);

struct JobStatus
{
	std::int64_t id;
	std::string status;
};

// A status for each job, in the order of ids: ok, lost, not_found or busy. results: empty, or one for each job.
Task<std::vector<JobStatus>> complete_many(Connection &connection, std::vector<std::int64_t> ids,
										   std::vector<std::int64_t> leases, std::vector<Value> results = {});
Task<std::vector<JobStatus>> fail_many(Connection &connection, std::vector<std::int64_t> ids,
									   std::vector<std::int64_t> leases, std::vector<std::string> errors);

// These return the new state of the job.
Task<std::string> cancel(Connection &connection, std::int64_t id, std::optional<std::string> reason = {});
Task<std::string> retry(Connection &connection, std::int64_t id, bool with_children = false);
Task<std::string> reschedule(Connection &connection, std::int64_t id, std::optional<Time> run_at,
							 std::optional<int> priority = {});

// Cancels jobs. Returns a status for each, in the order of ids.
Task<std::vector<JobStatus>> cancel_jobs(Connection &connection, std::vector<std::int64_t> ids,
										 std::optional<std::string> reason = {});

// What tq_get knows of a job.
struct JobInfo
{
	std::int64_t id;
	std::optional<std::string> queue, kind;
	std::string state;
	int priority, attempt, max_attempts;
	std::string payload;
	std::optional<std::string> result, error, worker, checkpoint;
	std::optional<Time> run_at, enqueued_at, claimed_at, finished_at;
};

Task<JobInfo> get(Connection &connection, std::int64_t id);
// The job that has a unique key; nothing if the key is free.
Task<std::optional<std::int64_t>> find(Connection &connection, std::string queue, std::string unique_key);
// Frees a key that an ended job keeps because of unique_for. Returns false if the key was free.
Task<bool> free_key(Connection &connection, std::string queue, std::string unique_key);
// Why the job does not run.
Task<std::string> explain(Connection &connection, std::int64_t id);
// Waits until all jobs have ended, or the first one, or for timeout.
Task<> wait_jobs(Connection &connection, std::vector<std::int64_t> ids, std::optional<Duration> timeout = {},
				 bool first = false);
// Those that have ended, in the order of ids.
Task<std::vector<std::int64_t>> ended(Connection &connection, std::vector<std::int64_t> ids);

struct JobOutcome
{
	std::int64_t id;
	std::optional<std::string> state; // nothing if there is no such job
	std::optional<std::string> result, error;
};

// The outcomes of jobs, in the order of ids.
Task<std::vector<JobOutcome>> outcomes(Connection &connection, std::vector<std::int64_t> ids);

} // namespace tq
