#include "events.hpp"

#include "problem.hpp"
#include "waits.hpp"

#include <algorithm>

using namespace std::chrono_literals;

namespace gateway
{

namespace
{

constexpr auto kLook = 250ms;
constexpr auto kFigures = 1s;

std::string event(const char *name, std::string_view id, std::string_view data)
{
	std::string text;
	if (!id.empty())
		text += "id: " + std::string(id) + "\n";
	text += std::string("event: ") + name + "\ndata: ";
	// json_agg breaks lines between elements; in strings they are escaped
	std::remove_copy(data.begin(), data.end(), std::back_inserter(text), '\n');
	return text + "\n\n";
}

} // namespace

tq::Task<std::string> Events::changes_of_queue(Stream &stream)
{
	Pool::Taken connection = co_await pool_.take(stream.role);
	std::vector<tq::Value> values{stream.after, stream.queue};
	const tq::Result rows = co_await connection->query(
		"SELECT next_after, CASE WHEN event IS NOT NULL THEN row_to_json(t) END FROM (SELECT id, queue, event, state, at, "
		"step, next_after FROM tq_changes($1, $2)) t",
		std::move(values));
	std::string text;
	for (int row = 0; row < rows.rows(); ++row)
	{
		stream.after = rows.text(row, 0);
		if (!rows.null(row, 1))
			text += event("change", stream.after, rows.text(row, 1));
	}
	co_return text;
}

tq::Task<std::string> Events::changes_of_job(Stream &stream)
{
	Pool::Taken connection = co_await pool_.take(stream.role);
	std::vector<tq::Value> values{stream.job};
	const tq::Result rows = co_await connection->query(
		"SELECT json_build_object('id', id, 'queue', queue, 'state', state, 'attempt', attempt) "
		"FROM tq_get($1::bigint)",
		std::move(values));
	if (rows.text(0, 0) == stream.state)
		co_return "";
	stream.state = rows.text(0, 0);
	co_return event("job", "", stream.state);
}

tq::Task<std::string> Events::figures(std::string role)
{
	// the entry first: those that come while it is made take what was there
	Figures &figures = figures_[role];
	const auto now = std::chrono::steady_clock::now();
	if (now - figures.at < kFigures && !figures.event.empty())
		co_return figures.event;
	figures.at = now;
	Pool::Taken connection = co_await pool_.take(role);
	const tq::Result rows = co_await connection->query(
		"SELECT json_build_object('queues', coalesce(json_agg(t), '[]')) FROM (SELECT queue, state, paused_until, ready, delayed, "
		"blocked, running, waiting, enqueued, claimed, succeeded, failed, lost, dead FROM tq_stats()) t");
	figures.event = event("stats", "", rows.text(0, 0));
	co_return figures.event;
}

tq::Task<> Events::send(Stream stream, std::string first, Sink &sink)
{
	auto next_figures = std::chrono::steady_clock::now();
	std::string text = std::move(first), failure;
	while (!stopped_ && failure.empty())
	{
		try
		{
			if (std::chrono::steady_clock::now() >= next_figures)
			{
				if (stream.role_now() != stream.role)
					throw Refusal(401, "the credentials of this stream are for another role now");
				text += co_await figures(stream.role);
				next_figures = std::chrono::steady_clock::now() + kFigures;
			}
			if (stream.queue)
				text += co_await changes_of_queue(stream);
			if (stream.job)
				text += co_await changes_of_job(stream);
		}
		catch (...)
		{
			failure = event("error", "", problem(std::current_exception()).body);
		}
		if (!text.empty())
			co_await sink.write(std::exchange(text, ""));
		if (failure.empty())
			co_await sleep(kLook);
	}
	if (!failure.empty())
		co_await sink.write(failure);
}

tq::Task<Answer> Events::begin(std::vector<Given> arguments, std::function<std::string()> role, std::string last)
{
	Stream stream;
	stream.role = role();
	stream.role_now = std::move(role);
	stream.queue = take(arguments, "queue");
	stream.job = take(arguments, "job");
	stream.after = last.empty() ? "now" : last;
	if (stream.queue && stream.job)
		throw Refusal(400, "\"queue\" and \"job\" do not go together");
	std::string first;
	if (stream.queue)
		first = co_await changes_of_queue(stream);
	if (stream.job)
		first = co_await changes_of_job(stream);
	Answer answer;
	answer.type = "text/event-stream";
	answer.stream = [this, stream, first](Sink &sink) { return send(stream, first, sink); };
	co_return answer;
}

} // namespace gateway
