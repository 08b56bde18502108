#include "pushes.hpp"

#include "problem.hpp"
#include "raw_json.hpp"
#include "waits.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>

namespace asio = boost::asio;
namespace webhook = tq::webhook;
using namespace std::chrono_literals;

namespace gateway
{

namespace
{

constexpr auto kLook = 5s;		   // between two readings of the subscriptions
constexpr auto kWait = 10s;		   // of a claim
constexpr auto kFirstPause = 1s, kLastPause = 60s; // after a claim that failed
constexpr auto kLeaseRest = 30s;   // of a lease, after the longest delivery
constexpr auto kMaxTimeout = 600s; // of a delivery
constexpr int kMaxConcurrency = 100, kConcurrency = 4;
constexpr int kTries = 5; // to write how a delivery ended

int number(const std::string &name, const Raw &raw, int most)
{
	int value = 0;
	const auto [end, error] = std::from_chars(raw.text.data(), raw.text.data() + raw.text.size(), value);
	if (raw.kind != Raw::kNumber || error != std::errc() || end != raw.text.data() + raw.text.size() || value < 1 ||
		value > most)
		throw std::invalid_argument(name + " must be a number from 1 to " + std::to_string(most));
	return value;
}

std::vector<std::string> strings(const std::string &name, const Raw &raw)
{
	std::vector<Raw> list{raw};
	if (raw.kind == Raw::kArray)
		list = elements_of(raw.text);
	std::vector<std::string> result;
	for (const Raw &one : list)
	{
		if (one.kind != Raw::kString)
			throw std::invalid_argument(name + " must be a string, or an array of strings");
		result.push_back(one.string);
	}
	return result;
}

} // namespace

// One subscription while it is served; a client of the claims, which goes when the subscription ends.
struct Pushes::Push : Client
{
	Push(const Subscription &one, const asio::any_io_executor &executor)
		: subscription(one), ended(executor, asio::steady_timer::time_point::max()), freed(executor)
	{}

	tq::Task<> gone() override
	{
		boost::system::error_code error;
		if (!over)
			co_await ended.async_wait(asio::redirect_error(asio::use_awaitable, error));
	}

	void end()
	{
		over = true;
		ended.cancel();
		freed.cancel();
	}

	const Subscription subscription;
	webhook::Target target;
	std::vector<std::string> kinds;
	int concurrency = kConcurrency, running = 0;
	bool over = false;
	asio::steady_timer ended, freed;
};

Pushes::Pushes(Pool &pool, Claims &claims, const Options &options) : pool_(pool), claims_(claims), options_(options)
{
	if (options.push)
		tls_ = webhook::tls_context(options.push_ca);
}

tq::Task<> Pushes::run()
{
	pause_ = std::make_unique<asio::steady_timer>(co_await asio::this_coro::executor);
	std::string last;
	while (options_.push && !stopped_)
	{
		std::string failure;
		try
		{
			co_await look();
		}
		catch (const std::exception &error)
		{
			failure = error.what();
		}
		if (!failure.empty() && failure != last)
			spdlog::warn("subscriptions cannot be read: {}", failure);
		last = failure;
		boost::system::error_code error;
		pause_->expires_after(kLook);
		if (!stopped_)
			co_await pause_->async_wait(asio::redirect_error(asio::use_awaitable, error));
	}
}

void Pushes::stop()
{
	stopped_ = true;
	if (pause_)
		pause_->cancel();
	for (const auto &[subscription, push] : pushes_)
		if (push)
			push->end();
}

// The subscriptions of the login, and of the roles that it may set.
tq::Task<> Pushes::look()
{
	std::vector<std::string> roles{""};
	{
		Pool::Taken connection = co_await pool_.take("");
		const tq::Result rows = co_await connection->query(
			"SELECT r.rolname FROM pg_catalog.pg_roles r WHERE NOT (SELECT s.rolsuper FROM pg_catalog.pg_roles s WHERE "
			"s.rolname = session_user) AND r.rolname <> session_user AND pg_catalog.pg_has_role(session_user, r.oid, "
			"'MEMBER')");
		for (int row = 0; row < rows.rows(); ++row)
			roles.emplace_back(rows.text(row, 0));
	}
	std::map<Subscription, std::shared_ptr<Push>> found;
	for (const std::string &role : roles)
	{
		try
		{
			co_await read(role, found);
		}
		catch (const tq::Error &error)
		{
			// the membership does not allow SET ROLE (WITH SET FALSE), or the role has just been dropped
			if (error.sqlstate() != "42501" && error.sqlstate() != "22023")
				throw;
		}
	}
	if (stopped_)
		co_return;
	const auto executor = co_await asio::this_coro::executor;
	for (auto &[subscription, push] : found)
	{
		const auto before = pushes_.find(subscription);
		if (before != pushes_.end())
		{
			push = std::move(before->second);
			pushes_.erase(before);
			continue;
		}
		try
		{
			push = begin(subscription);
		}
		catch (const std::exception &error)
		{
			spdlog::error("the subscription of queue {} to {} is not served: {}", subscription.queue, subscription.url,
						  error.what());
			continue; // remembered as nothing, until it changes
		}
		asio::co_spawn(executor, claim(push), asio::detached);
	}
	for (const auto &[subscription, push] : pushes_)
		if (push)
			push->end();
	pushes_ = std::move(found);
}

tq::Task<> Pushes::read(std::string role, std::map<Subscription, std::shared_ptr<Push>> &found)
{
	Pool::Taken connection = co_await pool_.take(role);
	const tq::Result rows = co_await connection->query(
		"SELECT queue, url, r.rolname, options FROM tq_subscriptions s JOIN pg_catalog.pg_roles r ON r.oid = s.role::oid "
		"WHERE active AND options IS NOT NULL AND pg_catalog.pg_has_role(session_user, r.oid, 'MEMBER')");
	for (int row = 0; row < rows.rows(); ++row)
		found[{std::string(rows.text(row, 0)), std::string(rows.text(row, 1)), std::string(rows.text(row, 2)),
			   std::string(rows.text(row, 3))}];
}

// Raises std::exception, which says what of the options is wrong.
std::shared_ptr<Pushes::Push> Pushes::begin(const Subscription &subscription) const
{
	const auto push = std::make_shared<Push>(subscription, pause_->get_executor());
	webhook::Target &target = push->target;
	target.url = webhook::parse_url(subscription.url);
	target.tls = tls_;
	target.allow_private = options_.push_private;
	if (!options_.push_hosts.empty() && !webhook::host_allowed(target.url.host, options_.push_hosts))
		throw std::invalid_argument("its host is none of --push-host");
	for (const auto &[name, raw] : members_of(subscription.options))
	{
		if (name == "secret")
		{
			std::string secrets;
			for (const std::string &one : strings(name, raw))
				secrets += one + "\n";
			target.keys = webhook::parse_secrets(secrets);
		}
		else if (name == "kinds")
			push->kinds = strings(name, raw);
		else if (name == "concurrency")
			push->concurrency = number(name, raw, kMaxConcurrency);
		else if (name == "timeout")
			target.timeout = std::chrono::seconds(number(name, raw, int(kMaxTimeout.count())));
		else
			throw std::invalid_argument("option " + name + " is unknown");
	}
	if (target.keys.empty())
		throw std::invalid_argument("option secret is missing");
	return push;
}

tq::Task<> Pushes::claim(std::shared_ptr<Push> push)
{
	struct Counted
	{
		explicit Counted(int &of) : n(of) { ++n; }
		~Counted() { --n; }
		int &n;
	};
	const Counted counted(claiming_);
	const auto executor = co_await asio::this_coro::executor;
	const Subscription &subscription = push->subscription;
	const auto lease = std::chrono::duration_cast<std::chrono::milliseconds>(push->target.timeout + kLeaseRest);
	std::chrono::seconds pause = kFirstPause;
	while (!push->over)
	{
		if (push->running >= push->concurrency)
		{
			boost::system::error_code error;
			push->freed.expires_at(asio::steady_timer::time_point::max());
			co_await push->freed.async_wait(asio::redirect_error(asio::use_awaitable, error));
			continue;
		}
		std::string failure;
		std::vector<Job> jobs;
		try
		{
			std::vector<Given> arguments{
				{"queues", "text[]", tq::value(std::vector<tq::Value>{subscription.queue})},
				{"max_jobs", "int", std::to_string(push->concurrency - push->running)},
				{"worker", "text", "push " + subscription.url.substr(0, 58)}, // a name has at most 63 bytes
				{"lease_for", "interval", std::to_string(lease.count()) + " ms"},
			};
			if (!push->kinds.empty())
				arguments.push_back(
					{"kinds", "text[]", tq::value(std::vector<tq::Value>(push->kinds.begin(), push->kinds.end()))});
			Answer answer = co_await claims_.claim(std::move(arguments), subscription.role, kWait, *push);
			if (push->over && answer.undo)
				co_await answer.undo();
			else
			{
				const auto members = members_of(answer.body, kDepthOfAnswer);
				for (const Raw &one : elements_of(members.front().second.text, kDepthOfAnswer))
				{
					Job job;
					for (const auto &[name, raw] : members_of(one.text, kDepthOfAnswer))
					{
						if (name == "id")
							job.id = raw.text;
						else if (name == "lease")
							job.lease = lease_of(raw.string).second;
						else if (name == "payload")
							job.payload = raw.text;
					}
					jobs.push_back(std::move(job));
				}
			}
		}
		catch (const std::exception &error)
		{
			failure = error.what();
		}
		for (Job &job : jobs)
		{
			++push->running;
			++delivering_;
			asio::co_spawn(executor, deliver(push, std::move(job)), asio::detached);
		}
		if (failure.empty())
		{
			pause = kFirstPause;
			continue;
		}
		if (pause == kFirstPause)
			spdlog::warn("no jobs of queue {} for {}: {}", subscription.queue, subscription.url, failure);
		push->freed.expires_after(pause);
		boost::system::error_code error;
		if (!push->over)
			co_await push->freed.async_wait(asio::redirect_error(asio::use_awaitable, error));
		pause = std::min(pause * 2, std::chrono::seconds(kLastPause));
	}
}

tq::Task<> Pushes::deliver(std::shared_ptr<Push> push, Job job)
{
	try
	{
		webhook::Outcome outcome = co_await webhook::deliver(push->target, "tq-" + job.id, std::move(job.payload));
		++(outcome.delivered ? delivered_ : failed_);
		co_await finish(*push, job, std::move(outcome));
	}
	catch (const std::exception &error)
	{
		spdlog::warn("job {} was sent to {}, but its end could not be written: {}", job.id, push->subscription.url,
					 error.what());
	}
	--delivering_;
	--push->running;
	push->freed.cancel();
}

// Writes how a delivery ended. Tries again if the connection is lost or none is free: the lease lasts longer than the
// delivery.
tq::Task<> Pushes::finish(const Push &push, const Job &job, webhook::Outcome outcome)
{
	tq::Statement statement;
	statement.often = true;
	statement.values = {job.id, job.lease};
	if (outcome.delivered)
	{
		statement.sql = "SELECT tq_complete($1, $2, $3::jsonb)";
		statement.values.push_back(outcome.result);
	}
	else
	{
		statement.sql = "SELECT tq_fail($1, $2, $3, retry_in => $4::interval, fatal => $5::boolean)";
		statement.values.push_back(outcome.error);
		tq::Value retry_in;
		if (outcome.retry_in)
			retry_in = std::to_string(outcome.retry_in->count()) + " s";
		statement.values.push_back(retry_in);
		statement.values.push_back(std::string(outcome.fatal ? "true" : "false"));
	}
	for (int left = kTries;; --left)
	{
		try
		{
			Pool::Taken connection = co_await pool_.take(push.subscription.role);
			co_await connection->query(statement);
			co_return;
		}
		catch (const Refusal &)
		{
			if (left == 0)
				throw;
		}
		catch (const tq::ConnectionError &)
		{
			if (left == 0)
				throw;
		}
		co_await sleep(1s);
	}
}

} // namespace gateway
