// Waits for jobs and claims them.
#include "runtime.hpp"

#include <algorithm>

using namespace std::chrono_literals;

namespace tq::detail
{

namespace
{

constexpr Duration kWait = 30s;
// Other workers were faster, or this one is being drained, so that a wait would return at once.
constexpr Duration kWaitInClaim = 1s;
constexpr Duration kPauseAfterError = 1s;
// From the first idle slot until a claim that is smaller than half of the buffer.
constexpr Duration kPatience = 5ms;

} // namespace

// Waits until no held job was answered "quiet", and half of the buffer is free or a slot has no job to wait for.
Task<> Runtime::room()
{
	std::optional<Clock::time_point> patient_until;
	while (!stopping)
	{
		const int free = options.buffer - int(held.size());
		bool quiet = false;
		int waiting = 0, started = 0;
		for (const auto &[id, job] : held)
		{
			quiet = quiet || job->quiet;
			waiting += job->start == Held::kWaiting;
			started += job->start == Held::kStarted && !job->finish;
		}
		if (!quiet && free >= (options.buffer + 1) / 2)
			co_return;
		if (quiet || free == 0 || waiting > 0 || started >= options.concurrency)
		{
			co_await fetch_event.wait();
			continue;
		}
		const auto now = Clock::now();
		if (!patient_until)
			patient_until = now + kPatience;
		if (now >= *patient_until)
			co_return;
		co_await fetch_event.wait(*patient_until);
	}
}

void Runtime::take(std::vector<JobData> jobs, Clock::time_point asked)
{
	taken += std::int64_t(jobs.size());
	if (running.size() > 2 * std::size_t(options.buffer) + 100)
		std::erase_if(running, [](const auto &entry) { return entry.second.expired(); });
	for (JobData &data : jobs)
	{
		auto job = std::make_shared<Held>();
		const std::int64_t id = data.id;
		job->data = std::move(data);
		job->lease_until = asked + options.lease;
		std::optional<Finish> at_once_finish;
		const auto before = running.find(id);
		if (before != running.end() && before->second.expired())
			running.erase(before);
		else if (before != running.end() && !stopping) // its lost lease is still being worked on here
			at_once_finish = Finish{Verb::kRelease, {}, 1s, false};
		if (const auto old = held.find(id); old != held.end())
			lost(std::shared_ptr(old->second));
		if (!at_once_finish && options.codec)
		{
			try
			{
				job->data.payload =
					options.codec->decode(Codec::payload_context(), job->data.payload, options.accept_plain);
				if (job->data.checkpoint)
					job->data.checkpoint = options.codec->decode(Codec::checkpoint_context(id), *job->data.checkpoint,
																 options.accept_plain);
				if (job->data.parents)
					job->data.parents = options.codec->decode_parents(*job->data.parents, options.accept_plain);
			}
			catch (const CodecError &error)
			{
				log(LogLevel::kError, "job " + std::to_string(id) + " is buried: " + error.what());
				at_once_finish = Finish{Verb::kBury, error.what(), {}, false};
			}
		}
		if (!at_once_finish && stopping)
		{
			at_once_finish = Finish{Verb::kRelease, {}, {}, false};
			released_some = true;
		}
		held[id] = job;
		if (at_once_finish)
		{
			if (at_once_finish->verb == Verb::kRelease)
				log_unstarted(*job);
			job->start = Held::kWithdrawn;
			job->finish = std::move(at_once_finish);
			finishing.push_back(job);
			continue;
		}
		auto handle = std::make_shared<Handle>(shared_from_this(), job);
		running[id] = handle;
		ready.try_send(boost::system::error_code(), handle);
	}
	deliver_event.notify();
}

Task<> Runtime::fetch()
{
	bool wait_in_claim = false; // version 0.1.0 of the extension cannot wait for kinds
	bool worked = false;		// a claim has succeeded
	bool said = false;			// the current error was logged
	bool just_waited = false;	// the server said that there are jobs
	ClaimOptions claim_options;
	claim_options.worker = options.name;
	claim_options.lease_for = options.lease;
	claim_options.kinds = options.kinds;
	while (!stopping)
	{
		co_await room();
		if (stopping || (options.max_jobs > 0 && taken >= options.max_jobs))
			break;
		bool lost = false;
		std::string trouble;
		try
		{
			if (!claiming.is_open())
			{
				claiming = co_await connect("claims", fetch_event, !worked);
				if (stopping)
					break;
			}
			claim_options.max_jobs = options.buffer - int(held.size());
			if (options.max_jobs > 0)
				claim_options.max_jobs = int(std::min<std::int64_t>(claim_options.max_jobs, options.max_jobs - taken));
			claim_options.wait.reset();
			if (!options.drain && (just_waited || (wait_in_claim && worked)))
				claim_options.wait = wait_in_claim ? kWait : kWaitInClaim;
			const auto asked = Clock::now() + claim_options.wait.value_or(Duration());
			const bool idle = held.empty();
			in_call = true;
			std::vector<JobData> jobs = co_await claim(claiming, options.queues, claim_options);
			in_call = false;
			worked = true;
			said = false;
			just_waited = false;
			if (!jobs.empty())
			{
				take(std::move(jobs), std::min(asked, Clock::now()));
				continue;
			}
			if (options.drain)
			{
				if (idle)
					break;
				// a job whose end was answered during the claim may be ready again
				if (!held.empty())
					co_await fetch_event.wait();
				continue;
			}
			if (wait_in_claim || stopping)
				continue;
			in_call = true;
			co_await wait(claiming, options.queues, kWait, options.kinds);
			in_call = false;
			just_waited = true;
		}
		catch (const ConnectionError &error)
		{
			if (!worked)
				throw;
			lost = true;
			trouble = error.what();
		}
		catch (const Error &error)
		{
			if (stopping)
				break; // cancelled by stop()
			if (!worked && !error.temporary())
				throw;
			trouble = error.what();
			if (error.sqlstate() == "42883" && !options.kinds.empty() && !std::exchange(wait_in_claim, true))
				trouble.clear();
			// another server may have been promoted
			if (error.sqlstate() == "25006")
				claiming.close();
		}
		in_call = false;
		if (trouble.empty())
			continue;
		if (!said)
			log(LogLevel::kWarning,
				(lost ? "the connection for claims is lost: " : "cannot claim, trying again: ") + trouble);
		said = true;
		if (!lost)
		{
			const auto until = Clock::now() + kPauseAfterError;
			while (!stopping && Clock::now() < until)
				co_await fetch_event.wait(until);
		}
	}
	in_call = false;
	claiming.close();
	// next() gets no job from a closed channel
	const auto waits = [](const auto &one) { return one.second->start == Held::kWaiting; };
	while (!stopping && std::any_of(held.begin(), held.end(), waits))
		co_await fetch_event.wait();
	fetching = false;
	close_ready();
	deliver_event.notify();
	watch_event.notify();
	stop_event.notify();
}

} // namespace tq::detail
