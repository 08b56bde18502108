// Reads what tq top shows.
#include "top_data.hpp"

#include <boost/json.hpp>

#include <cstdlib>

namespace cli
{

namespace
{

constexpr const char *kServer =
	"SELECT current_database() AS database, current_user AS role, to_char(clock_timestamp(), 'HH24:MI:SS') AS time";
constexpr const char *kQueues =
	"SELECT queue, state, coalesce(paused_until > clock_timestamp(), false) AS paused, ready, delayed, blocked, "
	"running, "
	"enqueued, succeeded + dead + cancelled + expired AS finished, extract(epoch FROM clock_timestamp()) AS at "
	"FROM tq_stats() ORDER BY queue";
constexpr const char *kJobs =
	"SELECT id, queue, kind, worker, attempt, extract(epoch FROM lease_expires_at - clock_timestamp()) AS lease, "
	"extract(epoch FROM clock_timestamp() - claimed_at) AS runs, cancel_asked, progress "
	"FROM tq_running ORDER BY claimed_at, id LIMIT 1000";
constexpr const char *kWorkers =
	"SELECT worker, running, claimed, extract(epoch FROM clock_timestamp() - seen_at) AS seen, "
	"draining FROM tq_workers ORDER BY worker LIMIT 1000";
// the names have the escapes of Prometheus
constexpr const char *kOldest =
	"SELECT replace(replace(replace(m[1], '\\\\', E'\\001'), '\\\"', '\"'), E'\\001', '\\') AS queue, m[2] AS seconds "
	"FROM regexp_split_to_table(tq_metrics(), '\\n') line, "
	"regexp_match(line, '^tq_oldest_ready_age_seconds\\{queue=\"(.*)\"\\} (.*)$') m WHERE m IS NOT NULL";
// a row of a day is the sum of the last minutes; at midnight there are two
constexpr const char *kSeries =
	"SELECT q.queue, s.claimed, extract(epoch FROM p.wait_p50) AS wait_p50, extract(epoch FROM p.wait_p99) AS "
	"wait_p99, "
	"extract(epoch FROM p.run_p50) AS run_p50, extract(epoch FROM p.run_p99) AS run_p99 FROM tq_stats() q, "
	"LATERAL (SELECT array_agg(claimed ORDER BY at) AS claimed FROM tq_series(q.queue, '60 min', '1 min')) s, "
	"LATERAL (SELECT * FROM tq_series(q.queue, '5 min', '1 day') ORDER BY at DESC LIMIT 1) p "
	"WHERE q.queue = ANY ($1::text[])";

Seconds seconds(const tq::Result &rows, int row, std::string_view name)
{
	const std::optional<std::string> text = rows.optional_text(row, name);
	return text ? Seconds(std::strtod(text->c_str(), nullptr)) : std::nullopt;
}

bool flag(const tq::Result &rows, int row, std::string_view name) { return rows.text(row, name) == "t"; }

// {"percent": 40, "text": "reading"}, as tq work reports it, is "40% reading"; other progress is shown as it is.
std::string progress_of(std::string text)
{
	boost::system::error_code error;
	const boost::json::value value = boost::json::parse(text, error);
	const auto *object = error ? nullptr : value.if_object();
	const auto *percent = object ? object->if_contains("percent") : nullptr;
	if (!percent || !percent->is_number())
		return text;
	const auto *what = object->if_contains("text");
	return boost::json::serialize(*percent) + "%" +
		   (what && what->is_string() ? " " + std::string(what->get_string()) : "");
}

// The rows of a reply; its error otherwise.
const tq::Result *rows_of(const tq::Reply &reply, std::string &error)
{
	if (const auto *refused = std::get_if<tq::Error>(&reply))
		error = refused->what();
	return std::get_if<tq::Result>(&reply);
}

void take_jobs(const tq::Result &rows, Reading &reading)
{
	for (int row = 0; row < rows.rows(); ++row)
	{
		JobLine job;
		job.id = rows.integer(row, "id");
		job.queue = rows.text(row, "queue");
		job.kind = rows.text(row, "kind");
		job.worker = rows.text(row, "worker");
		job.attempt = rows.text(row, "attempt");
		job.lease = seconds(rows, row, "lease");
		job.runs = seconds(rows, row, "runs");
		job.cancel_asked = flag(rows, row, "cancel_asked");
		job.progress = progress_of(std::string(rows.text(row, "progress")));
		reading.jobs.push_back(std::move(job));
	}
}

void take_workers(const tq::Result &rows, Reading &reading)
{
	for (int row = 0; row < rows.rows(); ++row)
	{
		WorkerLine worker;
		worker.name = rows.text(row, "worker");
		worker.running = rows.integer(row, "running");
		worker.claimed = rows.integer(row, "claimed");
		worker.seen = seconds(rows, row, "seen");
		worker.draining = flag(rows, row, "draining");
		reading.workers.push_back(std::move(worker));
	}
}

QueueLine *find(Reading &reading, std::string_view name)
{
	for (QueueLine &queue : reading.queues)
		if (queue.name == name)
			return &queue;
	return nullptr;
}

void take_series(const tq::Result &rows, Reading &reading)
{
	for (int row = 0; row < rows.rows(); ++row)
	{
		QueueLine *queue = find(reading, rows.text(row, "queue"));
		if (!queue)
			continue;
		queue->wait_p50 = seconds(rows, row, "wait_p50");
		queue->wait_p99 = seconds(rows, row, "wait_p99");
		queue->run_p50 = seconds(rows, row, "run_p50");
		queue->run_p99 = seconds(rows, row, "run_p99");
		for (const tq::Value &count : tq::parse_array(rows.text(row, "claimed")))
			queue->claimed.push_back(count ? std::atoll(count->c_str()) : 0);
	}
}

} // namespace

void Reader::take_queues(const tq::Result &rows, Reading &reading)
{
	std::map<std::string, Totals> totals;
	for (int row = 0; row < rows.rows(); ++row)
	{
		QueueLine queue;
		queue.name = rows.text(row, "queue");
		queue.state = rows.text(row, "state");
		queue.paused = flag(rows, row, "paused");
		queue.ready = rows.integer(row, "ready");
		queue.delayed = rows.integer(row, "delayed");
		queue.blocked = rows.integer(row, "blocked");
		queue.running = rows.integer(row, "running");
		Totals &now = totals[queue.name];
		now.at = *seconds(rows, row, "at");
		now.enqueued = rows.integer(row, "enqueued");
		now.finished = rows.integer(row, "finished");
		const auto before = before_.find(queue.name);
		// a server that has started again counts from 0
		if (before != before_.end() && now.at > before->second.at && now.enqueued >= before->second.enqueued &&
			now.finished >= before->second.finished)
		{
			const double span = now.at - before->second.at;
			queue.enqueued = double(now.enqueued - before->second.enqueued) / span;
			queue.finished = double(now.finished - before->second.finished) / span;
		}
		reading.queues.push_back(std::move(queue));
	}
	before_ = std::move(totals);
}

tq::Task<Reading> Reader::read(tq::Connection &connection)
{
	Reading reading;
	std::vector<tq::Statement> statements;
	for (const char *sql : {kServer, kQueues, kJobs, kWorkers, kOldest})
		statements.emplace_back(sql);
	statements.emplace_back(kSeries, tq::values(watched_));
	const std::vector<tq::Reply> replies = co_await connection.pipeline(std::move(statements));
	if (const tq::Result *rows = rows_of(replies[0], reading.error))
	{
		reading.database = rows->text(0, "database");
		reading.role = rows->text(0, "role");
		reading.time = rows->text(0, "time");
	}
	if (const tq::Result *rows = rows_of(replies[1], reading.queues_error))
		take_queues(*rows, reading);
	if (const tq::Result *rows = rows_of(replies[2], reading.jobs_error))
		take_jobs(*rows, reading);
	if (const tq::Result *rows = rows_of(replies[3], reading.workers_error))
		take_workers(*rows, reading);
	if (const tq::Result *rows = rows_of(replies[4], reading.error))
	{
		for (int row = 0; row < rows->rows(); ++row)
			if (QueueLine *queue = find(reading, rows->text(row, "queue")); queue && queue->ready > 0)
				queue->oldest = seconds(*rows, row, "seconds");
	}
	if (const tq::Result *rows = rows_of(replies[5], reading.error))
		take_series(*rows, reading);
	co_return reading;
}

tq::Task<std::string> reading_as_json(tq::Connection &connection)
{
	std::vector<tq::Statement> statements;
	for (const char *source : {"tq_stats()", "tq_running", "tq_workers"})
		statements.emplace_back(std::string("SELECT coalesce(json_agg(t), '[]') AS rows FROM ") + source + " t");
	const std::vector<tq::Reply> replies = co_await connection.pipeline(std::move(statements));
	std::string json;
	for (std::size_t i = 0; i < replies.size(); ++i)
	{
		if (const auto *refused = std::get_if<tq::Error>(&replies[i]))
			throw *refused;
		json += i == 0 ? "{\"queues\": " : i == 1 ? ", \"running\": " : ", \"workers\": ";
		json += std::get<tq::Result>(replies[i]).text(0, "rows");
	}
	co_return json + "}";
}

} // namespace cli
