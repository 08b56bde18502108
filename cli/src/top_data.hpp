// What tq top shows, as one reading of the views.
#pragma once

#include <tq/connection.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace cli
{

using Seconds = std::optional<double>; // none: not known

struct QueueLine
{
	std::string name, state;
	bool paused = false;
	std::int64_t ready = 0, delayed = 0, blocked = 0, running = 0;
	std::optional<double> enqueued, finished; // per second, since the reading before
	Seconds oldest;							  // how long the oldest ready job has been ready
	Seconds wait_p50, wait_p99, run_p50, run_p99;
	std::vector<std::int64_t> claimed; // by minute, the latest last
};

struct JobLine
{
	std::int64_t id = 0;
	std::string queue, kind, worker, attempt, progress;
	Seconds lease; // until it ends
	Seconds runs;
	bool cancel_asked = false;
};

struct WorkerLine
{
	std::string name;
	std::int64_t running = 0, claimed = 0;
	Seconds seen; // ago
	bool draining = false;
};

struct Reading
{
	std::string database, role, time;
	std::vector<QueueLine> queues;
	std::vector<JobLine> jobs; // those that have run longest
	std::vector<WorkerLine> workers;
	std::string queues_error, jobs_error, workers_error; // why there are no lines
	std::string error;									 // why columns are empty
};

// Takes readings, and keeps the totals of the one before.
class Reader
{
public:
	// Raises ConnectionError. What the server refuses is an error of the reading.
	tq::Task<Reading> read(tq::Connection &connection);
	// The series of these queues are read next: a screen shows only some of many.
	void watch(std::vector<std::string> queues) { watched_ = std::move(queues); }

private:
	struct Totals
	{
		double at = 0;
		std::int64_t enqueued = 0, finished = 0;
	};
	void take_queues(const tq::Result &rows, Reading &reading);

	std::map<std::string, Totals> before_;
	std::vector<std::string> watched_;
};

// The rows behind a reading as one JSON object.
tq::Task<std::string> reading_as_json(tq::Connection &connection);

} // namespace cli
