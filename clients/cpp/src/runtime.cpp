// The life of a worker: threads, connections, shutdown, handlers.
#include "runtime.hpp"

#include <tq/detail/backoff.hpp>
#include <tq/utf8.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <csignal>
#include <iostream>
#include <unistd.h>

namespace asio = boost::asio;
using namespace std::chrono_literals;

namespace tq::detail
{

namespace
{

constexpr std::string_view kClaims = "claims";
constexpr auto kGiveUp = 5s; // how long a stopped worker tries to reach the server

void log_to_stderr(LogLevel, const std::string &text) { std::cerr << "tq: " + text + "\n"; }

std::string own_name()
{
	char host[64] = "";
	gethostname(host, 40);
	host[40] = '\0';
	return std::string(host) + "-" + std::to_string(getpid());
}

} // namespace

Task<> Event::wait(Clock::time_point until)
{
	timer_.expires_at(until);
	boost::system::error_code error;
	co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, error));
}

Runtime::Runtime(WorkerOptions given) : options(std::move(given)), ready(io, 65536)
{
	if (options.queues.empty() || options.queues.size() > 8)
		throw std::invalid_argument("a worker has 1 to 8 queues");
	if (options.concurrency < 1 || options.buffer < 0 || options.buffer > 10000 || options.threads < 0)
		throw std::invalid_argument("concurrency must be at least 1, buffer 0 to 10000, threads at least 0");
	if (options.lease < 10ms)
		throw std::invalid_argument("the lease must be at least 10 ms");
	if (options.buffer == 0)
		options.buffer = options.concurrency;
	if (options.threads == 0)
		options.threads = options.concurrency;
	if (options.name.empty())
		options.name = own_name();
	if (!options.log)
		options.log = log_to_stderr;
}

void Runtime::log_unstarted(const Held &job) const
{
	log(LogLevel::kInfo, "job " + std::to_string(job.data.id) + ", lease " + std::to_string(job.data.lease) +
							 ", is released before it started");
}

void Runtime::log(LogLevel level, const std::string &text) const { options.log(level, text); }

void Runtime::start()
{
	auto self = shared_from_this();
	last_heartbeat = Clock::now();
	if (options.handle_signals)
	{
		signals.add(SIGTERM);
		signals.add(SIGINT);
		asio::co_spawn(
			io,
			[this]() -> Task<> {
				for (;;)
				{
					boost::system::error_code error;
					co_await signals.async_wait(asio::redirect_error(asio::use_awaitable, error));
					if (error)
						co_return;
					stop();
				}
			},
			asio::detached);
	}
	auto died = [this](std::exception_ptr error) {
		if (error)
			fail_worker(error);
	};
	asio::co_spawn(io, fetch(), died);
	asio::co_spawn(io, deliver(), [this, died](std::exception_ptr error) {
		died(error);
		delivered_all();
	});
	asio::co_spawn(io, watch(), died);
	thread = std::thread([self] {
		self->io.run();
		std::lock_guard lock(self->end_mutex);
		self->ended = true;
		// what was posted meanwhile
		self->io.restart();
		self->io.poll();
	});
	if (!handlers.empty() || other_handler)
	{
		pool = std::make_unique<asio::thread_pool>(std::size_t(options.threads));
		for (int i = 0; i < options.concurrency; ++i)
			asio::co_spawn(
				*pool, [self]() -> Task<> { co_await self->handle_jobs(); }, asio::detached);
	}
}

void Runtime::post(std::function<void()> function)
{
	std::lock_guard lock(end_mutex);
	if (ended)
		function();
	else
		asio::post(io, std::move(function));
}

int Runtime::join()
{
	thread.join();
	boost::system::error_code ignored;
	signals.clear(ignored); // they have their default action again
	// every job has ended or was released; a handler that ignores its cancellation keeps its thread
	bool busy = false;
	for (const auto &[id, handle] : running)
		busy = busy || !handle.expired();
	if (pool)
	{
		if (busy)
			pool.release();
		else
			pool->join();
	}
	if (failure)
		std::rethrow_exception(failure);
	return released_some ? 1 : 0;
}

// The first connection fails at once. Later ones are tried until the worker gives up.
Task<Connection> Runtime::connect(const char *purpose, Event &event, bool first)
{
	Backoff backoff;
	for (bool said = false;; said = true)
	{
		try
		{
			// the copy keeps initializer lists out of the coroutine's expression
			std::vector<std::pair<std::string, std::string>> defaults;
			defaults.emplace_back("target_session_attrs", "read-write");
			defaults.emplace_back("fallback_application_name", options.name);
			Connection connection = co_await Connection::open(options.dsn, std::move(defaults));
			const bool direct = co_await prepare_if_direct(connection);
			if (!direct && first && purpose == kClaims)
				log(LogLevel::kInfo, "behind a pooler: each worker needs 2 of its server connections");
			if (said)
				log(LogLevel::kInfo, std::string("connected again for ") + purpose);
			co_return connection;
		}
		catch (const Error &error)
		{
			if (first)
				throw;
			if (!said)
				log(LogLevel::kWarning,
					std::string("cannot connect for ") + purpose + ", trying again: " + error.what());
		}
		const auto until = Clock::now() + backoff.next();
		while (Clock::now() < until && !(stopping && &event == &fetch_event) && Clock::now() < give_up)
			co_await event.wait(std::min(until, give_up));
		if ((stopping && &event == &fetch_event) || Clock::now() >= give_up)
			co_return Connection();
	}
}

void Runtime::fail_worker(std::exception_ptr error)
{
	if (!failure)
		failure = error;
	fetching = false;
	close_ready();
	stop();
}

// A closed channel keeps what it holds, and a Handle keeps this runtime.
void Runtime::close_ready()
{
	while (ready.try_receive(
		[](boost::system::error_code, const std::shared_ptr<Handle> &handle) { handle->finished = true; }))
	{}
	ready.close();
}

// The end of deliver(), and so of the worker. What is still held could not be delivered.
void Runtime::delivered_all()
{
	delivered = true;
	released_some = released_some || !held.empty();
	for (const auto &[id, job] : std::map(held))
		end(job, false);
	for (std::deque<Beat> *some : {&sent_beats, &beats})
	{
		for (const Beat &beat : std::exchange(*some, {}))
			beat.answered(nullptr, Action::kLost);
	}
	close_ready();
	give_up = Clock::now();
	fetch_event.notify();
	watch_event.notify();
	stop_event.notify();
	signals.cancel();
}

// A signal, or the caller. The first call ends claims, the second one ends jobs.
void Runtime::stop()
{
	post([self = shared_from_this()] {
		if (self->delivered)
			return;
		if (self->stopping)
		{
			self->at_once = true;
			self->stop_event.notify();
			return;
		}
		self->stopping = true;
		// a wait is ended by a cancel, and a claim rolled back
		if (self->in_call)
			self->claiming.cancel();
		for (const auto &[id, job] : std::map(self->held))
		{
			Held::Start waiting = Held::kWaiting;
			if (!job->finish && job->start.compare_exchange_strong(waiting, Held::kWithdrawn))
			{
				self->log_unstarted(*job);
				job->finish = Finish{Verb::kRelease, {}, {}, false};
				self->finishing.push_back(job);
				self->released_some = true;
			}
		}
		self->fetch_event.notify();
		self->deliver_event.notify();
		asio::co_spawn(self->io, self->end_after_timeout(), asio::detached);
	});
}

Task<> Runtime::end_after_timeout()
{
	const auto wait_for = [this](Duration length) -> Task<> {
		const auto until = Clock::now() + length;
		while (Clock::now() < until && !at_once && (fetching || !held.empty()))
		{
			co_await stop_event.wait(std::min(until, Clock::now() + 1s));
			if (in_call)
				claiming.cancel(); // the first one does nothing if it comes before the statement has begun
		}
	};
	co_await wait_for(options.shutdown_timeout);
	for (const auto &[id, job] : held)
		job->request_stop(StopReason::kShutdown);
	co_await wait_for(options.cancel_timeout);
	release_all();
	give_up = Clock::now() + kGiveUp;
	deliver_event.notify();
	while ((fetching || !delivered) && Clock::now() < give_up)
		co_await stop_event.wait(give_up);
	if (!fetching && delivered)
		co_return;
	// a frozen server answers no statement, and no request to cancel one
	log(LogLevel::kWarning, "the server does not answer: leases of " + std::to_string(held.size()) + " jobs run out");
	delivered_all();
	io.stop();
}

Value Runtime::stored_result(const Held &job, Value json) const
{
	if (!json)
		return json;
	std::string text = valid_utf8(*json);
	return options.codec ? options.codec->encode(Codec::result_context(job.data.id), text) : text;
}

void Runtime::release_all()
{
	for (const auto &[id, job] : held)
	{
		job->request_stop(StopReason::kShutdown);
		if (job->finish)
			continue;
		job->finish = Finish{Verb::kRelease, {}, {}, false};
		finishing.push_back(job);
		released_some = true;
		log(LogLevel::kWarning, "job " + std::to_string(id) + " did not end and is released");
	}
}

// A server that does not answer cannot renew leases. At the end of a lease another worker may get the job.
Task<> Runtime::watch()
{
	while (fetching || !held.empty())
	{
		const auto now = Clock::now();
		std::vector<std::shared_ptr<Held>> late;
		for (const auto &[id, job] : held)
			if (job->lease_until < now && !job->finish && !job->completed_by_caller && job->reason == StopReason::kNone)
				late.push_back(job);
		for (const auto &job : late)
		{
			log(LogLevel::kWarning, "the lease of job " + std::to_string(job->data.id) + " could not be renewed");
			job->request_stop(StopReason::kLost);
			if (job->start == Held::kWaiting)
				end(job, false);
		}
		co_await watch_event.wait(now + options.lease / 6);
	}
}

Task<std::shared_ptr<Handle>> Runtime::next()
{
	for (;;)
	{
		boost::system::error_code error;
		std::shared_ptr<Handle> handle = co_await ready.async_receive(asio::redirect_error(asio::use_awaitable, error));
		if (error)
			co_return nullptr;
		Held::Start waiting = Held::kWaiting;
		if (handle->held->start.compare_exchange_strong(waiting, Held::kStarted))
		{
			if (!ready.ready()) // the last one that waited: room() looks again
				post([self = shared_from_this()] { self->fetch_event.notify(); });
			co_return handle;
		}
		handle->finished = true;
	}
}

// How a job ends whose handler raised the current exception.
static Finish finish_of_exception(const Held &held)
{
	try
	{
		throw;
	}
	catch (const Retry &retry)
	{
		return {Verb::kFail, retry.what(), retry.delay, false};
	}
	catch (const Plain &plain)
	{
		if (held.reason == StopReason::kShutdown)
			return {Verb::kRelease, {}, {}, false};
		return {Verb::kFail, plain.what(), {}, false};
	}
	catch (const Fatal &fatal)
	{
		return {Verb::kFail, fatal.what(), {}, true};
	}
	catch (const Bury &bury)
	{
		return {Verb::kBury, bury.what(), {}, false};
	}
	catch (const Release &release)
	{
		return {Verb::kRelease, {}, release.delay, false};
	}
	catch (...)
	{
		if (held.reason == StopReason::kShutdown)
			return {Verb::kRelease, {}, {}, false};
		return {Verb::kFail, describe_current_exception(), {}, false};
	}
}

Task<> Runtime::handle_jobs()
{
	for (;;)
	{
		std::shared_ptr<Handle> handle = co_await next();
		if (!handle)
			co_return;
		const std::shared_ptr<Held> held_job = handle->held;
		const Held &job = *held_job;
		const auto found = job.data.kind ? handlers.find(*job.data.kind) : handlers.end();
		Worker::Handler handler = found != handlers.end() ? found->second : other_handler;
		Finish how;
		if (!handler)
		{
			how = {Verb::kRelease, {}, 30s, false};
			const std::string kind = job.data.kind ? "kind \"" + *job.data.kind + "\"" : "no kind";
			std::lock_guard lock(unknown_mutex);
			if (unknown_kinds.insert(kind).second)
				log(LogLevel::kWarning, "job " + std::to_string(job.data.id) + " of " + kind +
											" has no handler here, and is released for 30 s");
		}
		else
		{
			for (auto around = middleware.rbegin(); around != middleware.rend(); ++around)
				handler = [outer = *around, inner = std::move(handler)](Job inside) {
					return outer(std::move(inside), inner);
				};
			try
			{
				how.text = co_await handler(Job(handle));
				how.text = stored_result(job, std::move(how.text));
			}
			catch (...)
			{
				how = finish_of_exception(job);
			}
		}
		handle->finished = true;
		handle.reset(); // before the end of the job, after which join() looks for handlers that run
		// its transaction has completed the job, unless the handler raised afterwards
		if (job.completed_by_caller && how.verb == Verb::kComplete)
			forget(held_job);
		else
			finish(held_job, std::move(how));
	}
}

} // namespace tq::detail
