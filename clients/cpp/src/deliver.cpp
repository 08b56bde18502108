// Sends heartbeats and finishes. What is due is one round: one pipeline, in which each statement is a transaction of its
// own. Heartbeats come first. After a lost connection the finishes of its round are sent again; a job whose finish had
// taken effect is then answered "lost", which is dropped as well. An error or reason must reach the server: a text that
// it refuses is sent in ASCII.
#include "runtime.hpp"

#include <tq/utf8.hpp>

#include <algorithm>

using namespace std::chrono_literals;

namespace tq::detail
{

namespace
{

constexpr Duration kPauseWhenBusy = 100ms, kPauseAfterError = 500ms;

bool is_ascii(const std::string &text)
{
	return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

std::string in_ascii(std::string text)
{
	std::replace_if(
		text.begin(), text.end(), [](char c) { return (c & 0x80) != 0; }, '?');
	return text;
}

} // namespace

struct Runtime::Round
{
	void add(Statement statement, std::function<void(const Reply &)> answered)
	{
		statement.often = true;
		statements.push_back(std::move(statement));
		replies.push_back(std::move(answered));
	}

	std::vector<Statement> statements;
	std::vector<std::function<void(const Reply &)>> replies;
	std::vector<std::shared_ptr<Held>> finishes;
	Clock::time_point sent;
};

void Runtime::finish(const std::shared_ptr<Held> &job, Finish how, std::function<void(bool)> answered)
{
	if (how.text)
		how.text = valid_utf8(*how.text);
	post([self = shared_from_this(), job, how = std::move(how), answered = std::move(answered)]() mutable {
		if (job->gone || job->finish)
		{
			if (answered)
				answered(false);
			return;
		}
		self->released_some = self->released_some || (self->stopping && how.verb == Verb::kRelease);
		job->finish = std::move(how);
		job->answered = std::move(answered);
		job->finish_at = Clock::now() + self->options.flush_interval;
		self->finishing.push_back(job);
		// the delivery is already planned otherwise; a finish that is tried again later is in front of others
		if (self->finishing.size() == 1 || self->finishing.size() == self->held.size() ||
			self->finishing.front()->finish_at > job->finish_at)
			self->deliver_event.notify();
	});
}

void Runtime::send_beat(Beat beat)
{
	post([self = shared_from_this(), beat = std::move(beat)]() mutable {
		if (beat.held->gone)
			return beat.answered(nullptr, Action::kLost);
		self->beats.push_back(std::move(beat));
		self->deliver_event.notify();
	});
}

void Runtime::set_progress(const std::shared_ptr<Held> &job, std::string json)
{
	{
		std::lock_guard lock(job->progress_mutex);
		const bool planned = job->progress.has_value();
		job->progress = std::move(json);
		if (planned)
			return; // nothing piles up, however often a handler calls this
	}
	post([self = shared_from_this()] {
		self->progress_waits = true;
		self->deliver_event.notify();
	});
}

void Runtime::forget(const std::shared_ptr<Held> &job)
{
	post([self = shared_from_this(), job] {
		if (!job->gone)
			self->end(job, true);
	});
}

void Runtime::end(const std::shared_ptr<Held> &job, bool ok)
{
	job->gone = true;
	Held::Start waiting = Held::kWaiting;
	job->start.compare_exchange_strong(waiting, Held::kWithdrawn);
	const auto found = held.find(job->data.id);
	if (found != held.end() && found->second == job)
		held.erase(found);
	if (job->answered)
		job->answered(ok);
	job->answered = {};
	fetch_event.notify();
	if (held.empty() && !fetching)
	{
		stop_event.notify();
		watch_event.notify();
		deliver_event.notify();
	}
}

void Runtime::lost(const std::shared_ptr<Held> &job)
{
	log(LogLevel::kWarning, "the lease of job " + std::to_string(job->data.id) + " is lost, its result is dropped");
	job->request_stop(StopReason::kLost);
	end(job, false);
}

void Runtime::again(const std::shared_ptr<Held> &job, Duration pause)
{
	job->finish_at = Clock::now() + pause;
	finishing.push_back(job);
}

Clock::time_point Runtime::next_delivery() const
{
	auto next = Clock::time_point::max();
	if (!beats.empty() || progress_waits)
		return Clock::now();
	if (!held.empty())
		next = last_heartbeat + options.lease / 3;
	// nobody else could join them
	const bool all_ended = !finishing.empty() && finishing.size() == held.size();
	for (const auto &job : finishing)
		next = std::min(next, all_ended && !job->alone && job->finish_at < Clock::now() + options.flush_interval
								  ? Clock::now()
								  : job->finish_at);
	return next;
}

void Runtime::add_heartbeats(Round &round)
{
	std::vector<std::int64_t> ids, leases;
	std::vector<std::shared_ptr<Held>> jobs;
	for (const auto &[id, job] : held)
	{
		// a finish may be repeated for longer than a lease
		if (job->completed_by_caller)
			continue;
		ids.push_back(id);
		leases.push_back(job->data.lease);
		jobs.push_back(job);
	}
	last_heartbeat = round.sent;
	if (jobs.empty())
		return;
	round.add(call("tq_heartbeat_many", {{"ids", "bigint[]", value(ids)}, {"leases", "bigint[]", value(leases)}},
				   "id, action"),
			  [this, jobs, sent = round.sent](const Reply &reply) {
				  if (const Error *error = std::get_if<Error>(&reply))
				  {
					  if (!std::exchange(beats_refused, true))
						  log(LogLevel::kWarning, std::string("heartbeats were refused: ") + error->what());
					  if (error->temporary())
						  last_heartbeat -= options.lease / 3 - std::min(kPauseAfterError, options.lease / 3);
					  return;
				  }
				  beats_refused = false;
				  const Result &rows = std::get<Result>(reply);
				  for (int row = 0; row < rows.rows() && row < int(jobs.size()); ++row)
					  heard(jobs[std::size_t(row)], parse_action(rows.text(row, "action")), sent);
			  });
}

void Runtime::heard(const std::shared_ptr<Held> &job, Action action, Clock::time_point sent)
{
	if (job->gone)
		return;
	const bool was_quiet = std::exchange(job->quiet, action == Action::kQuiet);
	if (was_quiet && !job->quiet)
		fetch_event.notify();
	switch (action)
	{
		case Action::kLost:
			log(LogLevel::kWarning,
				"the lease of job " + std::to_string(job->data.id) + " is lost, its result is dropped");
			job->request_stop(StopReason::kLost);
			// a finish that came meanwhile is answered by the server
			if (!job->finish)
				end(job, false);
			break;
		case Action::kCancel:
			job->request_stop(StopReason::kCancel);
			break;
		case Action::kRun:
		case Action::kQuiet:
			job->lease_until = sent + options.lease;
			break;
	}
}

// All finishes that are due, and with them those that still wait for others.
void Runtime::collect_finishes(Round &round)
{
	std::vector<std::shared_ptr<Held>> completes, fails;
	const auto limit = round.sent + options.flush_interval;
	std::deque<std::shared_ptr<Held>> later;
	for (auto &job : finishing)
	{
		if (job->gone)
			continue;
		if (job->finish_at > limit)
		{
			later.push_back(job);
			continue;
		}
		round.finishes.push_back(job);
		const Finish &how = *job->finish;
		if (how.verb == Verb::kComplete && !job->alone)
			completes.push_back(job);
		else if (how.verb == Verb::kFail && !how.delay && !how.fatal && !job->alone)
			fails.push_back(job);
		else
			add_finish(round, job);
	}
	finishing = std::move(later);
	add_many(round, "tq_complete_many", std::move(completes));
	add_many(round, "tq_fail_many", std::move(fails));
}

void Runtime::add_many(Round &round, std::string_view function, std::vector<std::shared_ptr<Held>> jobs)
{
	if (jobs.empty())
		return;
	std::vector<std::int64_t> ids, leases;
	std::vector<Value> texts;
	bool any = false;
	for (const auto &job : jobs)
	{
		ids.push_back(job->data.id);
		leases.push_back(job->data.lease);
		texts.push_back(job->finish->text);
		any = any || job->finish->text;
	}
	const bool complete = function == "tq_complete_many";
	round.add(
		call(function,
			 {{"ids", "bigint[]", value(ids)},
			  {"leases", "bigint[]", value(leases)},
			  {complete ? "results" : "errors", complete ? "jsonb[]" : "text[]", any ? value(texts) : std::nullopt}},
			 "id, status"),
		[this, jobs](const Reply &reply) { answered_many(jobs, reply); });
}

void Runtime::add_finish(Round &round, const std::shared_ptr<Held> &job)
{
	const Finish &how = *job->finish;
	std::vector<Argument> arguments = {{"id", "bigint", value(job->data.id)},
									   {"lease", "bigint", value(job->data.lease)}};
	const char *function = "tq_complete";
	switch (how.verb)
	{
		case Verb::kComplete:
			arguments.push_back({"result", "jsonb", how.text});
			break;
		case Verb::kFail:
			function = "tq_fail";
			arguments.push_back({"error", "text", how.text.value_or("")});
			arguments.push_back({"retry_in", "interval", value(how.delay)});
			arguments.push_back({"fatal", "boolean", value(how.fatal)});
			break;
		case Verb::kRelease:
			function = "tq_release";
			arguments.push_back({"delay", "interval", value(how.delay)});
			break;
		case Verb::kBury:
			function = "tq_bury";
			arguments.push_back({"reason", "text", how.text.value_or("")});
			break;
	}
	round.add(call(function, arguments, function), [this, job](const Reply &reply) { answered_one(job, reply); });
}

void Runtime::answered_many(const std::vector<std::shared_ptr<Held>> &jobs, const Reply &reply)
{
	if (const Error *error = std::get_if<Error>(&reply))
	{
		// one of them is at fault: send each on its own
		for (const auto &job : jobs)
		{
			job->alone = !error->temporary();
			again(job, error->temporary() ? kPauseAfterError : Duration());
		}
		return;
	}
	const Result &rows = std::get<Result>(reply);
	for (int row = 0; row < rows.rows() && row < int(jobs.size()); ++row)
	{
		const auto &job = jobs[std::size_t(row)];
		const std::string_view status = rows.text(row, "status");
		if (status == "busy")
		{
			again(job, kPauseWhenBusy);
			continue;
		}
		if (status != "ok")
			log(LogLevel::kWarning,
				"the result of job " + std::to_string(job->data.id) + " is dropped: " + std::string(status));
		end(job, status == "ok");
	}
}

void Runtime::answered_one(const std::shared_ptr<Held> &job, const Reply &reply)
{
	const Error *error = std::get_if<Error>(&reply);
	if (!error)
		return end(job, true);
	if (error->temporary())
		return again(job, kPauseAfterError);
	const std::string name = "job " + std::to_string(job->data.id);
	if (error->sqlstate() == "TQ001" || error->sqlstate() == "TQ004" || error->sqlstate() == "TQ005")
	{
		log(LogLevel::kWarning, "the result of " + name + " is dropped: " + error->what());
		return end(job, false);
	}
	if (job->finish->verb == Verb::kComplete)
	{
		// the result cannot be stored, and so the job has not succeeded
		log(LogLevel::kWarning, "the result of " + name + " was refused, the job fails: " + error->what());
		job->finish = Finish{Verb::kFail, std::string("the result was refused: ") + error->what(), {}, false};
		if (job->answered)
			std::exchange(job->answered, {})(false);
		return again(job, {});
	}
	if (job->finish->text && !is_ascii(*job->finish->text))
	{
		// the encoding of the session or of the database lacks a character
		job->finish->text = in_ascii(std::move(*job->finish->text));
		return again(job, {});
	}
	log(LogLevel::kError, name + " could not be finished, its lease runs out: " + error->what());
	end(job, false);
}

void Runtime::collect(Round &round)
{
	round.sent = Clock::now();
	if (round.sent >= last_heartbeat + options.lease / 3)
		add_heartbeats(round);
	sent_beats = std::exchange(beats, {});
	for (const Beat &beat : sent_beats)
	{
		round.add(call("tq_heartbeat",
					   {{"id", "bigint", value(beat.held->data.id)},
						{"lease", "bigint", value(beat.held->data.lease)},
						{"extend", "interval", value(beat.options.extend)},
						{"progress", "jsonb", value(beat.options.progress)},
						{"checkpoint", "jsonb", value(beat.options.checkpoint)}},
					   "action"),
				  [this, beat, sent = round.sent](const Reply &reply) {
					  if (delivered)
						  return; // it has been answered
					  if (const Error *error = std::get_if<Error>(&reply))
						  return beat.answered(std::make_exception_ptr(*error), Action::kRun);
					  const Action action = parse_action(std::get<Result>(reply).text(0, 0));
					  heard(beat.held, action, sent);
					  beat.answered(nullptr, action);
				  });
	}
	if (std::exchange(progress_waits, false))
	{
		for (const auto &[id, job] : held)
		{
			Value progress = job->take_progress();
			if (!progress || job->finish)
				continue;
			round.add(call("tq_heartbeat",
						   {{"id", "bigint", value(id)},
							{"lease", "bigint", value(job->data.lease)},
							{"progress", "jsonb", std::move(progress)}},
						   "action"),
					  [this, job = job, sent = round.sent](const Reply &reply) {
						  if (const Error *error = std::get_if<Error>(&reply))
							  log(LogLevel::kWarning,
								  "progress of job " + std::to_string(job->data.id) + " was refused: " + error->what());
						  else
							  heard(job, parse_action(std::get<Result>(reply).text(0, 0)), sent);
					  });
		}
	}
	collect_finishes(round);
}

Task<> Runtime::deliver()
{
	Connection connection;
	bool first = true, said = false;
	while ((fetching || !held.empty()) && Clock::now() < give_up)
	{
		const auto next = std::min(next_delivery(), give_up);
		if (next > Clock::now() && !first)
		{
			co_await deliver_event.wait(next);
			continue;
		}
		if (!connection.is_open())
		{
			connection = co_await connect("finishes", deliver_event, first);
			first = false;
			continue;
		}
		Round round;
		collect(round);
		if (round.statements.empty())
			continue;
		bool lost = false;
		try
		{
			const std::vector<Reply> replies = co_await connection.pipeline(std::move(round.statements));
			said = false;
			for (std::size_t i = 0; i < replies.size(); ++i)
			{
				const Error *error = std::get_if<Error>(&replies[i]);
				if (error && error->sqlstate() == "25006")
					connection.close(); // another server may have been promoted
				round.replies[i](replies[i]);
			}
			sent_beats.clear();
		}
		catch (const ConnectionError &error)
		{
			if (!std::exchange(said, true))
				log(LogLevel::kWarning, std::string("the connection for finishes is lost: ") + error.what());
			lost = true;
		}
		if (lost)
		{
			last_heartbeat = Clock::now() - options.lease; // it may not have arrived
			for (const auto &job : round.finishes)
				again(job, {});
			beats.insert(beats.end(), sent_beats.begin(), sent_beats.end());
			sent_beats.clear();
		}
	}
}

} // namespace tq::detail
