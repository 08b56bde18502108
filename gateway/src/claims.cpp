#include "claims.hpp"

#include "problem.hpp"
#include "waits.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <map>

namespace asio = boost::asio;
using namespace std::chrono_literals;

namespace gateway
{

namespace
{

constexpr std::ptrdiff_t kMaxKinds = 200; // tq_wait takes 256
constexpr std::int64_t kBatch = 1000;	  // jobs of one call
constexpr int kCalls = 2;				  // at a time, of clients that ask for the same
constexpr auto kLongestPause = 100ms;	  // after rounds in which nobody got a job
constexpr auto kPollInterval = 1s;		  // where tq_wait is not possible
constexpr auto kCancelPause = 50ms;		  // before a wait that has not ended is cancelled again; then twice as long
constexpr auto kLastCancelPause = 5000ms; // ... up to this

int number(const tq::Value &text, int otherwise)
{
	int result = otherwise;
	if (text)
		std::from_chars(text->data(), text->data() + text->size(), result);
	return result;
}

bool contains(const std::vector<std::string> &texts, const std::string &text)
{
	return std::find(texts.begin(), texts.end(), text) != texts.end();
}

// Raises Refusal for a null.
std::vector<std::string> texts(const std::string &name, const tq::Value &array)
{
	std::vector<std::string> result;
	if (array)
	{
		for (tq::Value &one : tq::parse_array(*array))
		{
			if (!one)
				throw Refusal(400, "\"" + name + "\" must not contain null");
			result.push_back(std::move(*one));
		}
	}
	return result;
}

} // namespace

struct Claims::Waiter
{
	Waiter(const asio::any_io_executor &executor, tq::Value name, asio::steady_timer::time_point until)
		: worker(std::move(name)), timer(executor, until)
	{}

	tq::Value worker;
	asio::steady_timer timer;
	std::vector<Job> jobs;
	std::exception_ptr error;
	bool done = false; // a call at once has ended
};

// A vector of jobs for each client, or one for all if they have no names.
tq::Task<std::vector<std::vector<Claims::Job>>> Claims::take(tq::Connection &connection, const Wish &wish,
															 std::vector<std::string> workers, int clients)
{
	std::vector<Given> arguments = {{"queues", "text[]", tq::value(wish.queues)}};
	if (wish.named)
		arguments.push_back({"workers", "text[]", tq::value(workers)});
	const int max_jobs = wish.named ? wish.max_jobs : std::min(wish.max_jobs * clients, 10000);
	arguments.push_back({"max_jobs", "int", std::to_string(max_jobs)});
	if (wish.lease_for)
		arguments.push_back({"lease_for", "interval", wish.lease_for});
	if (!wish.kinds.empty())
		arguments.push_back({"kinds", "text[]", tq::value(wish.kinds)});
	tq::Statement statement;
	statement.often = true;
	const std::string json = "(SELECT row_to_json(t) FROM (SELECT " + columns_ + ") t)";
	if (wish.named)
		statement.sql = "SELECT worker, id, lease, " + json + " FROM (SELECT worker, (job).* FROM " +
						call_of("tq_claim_for", arguments, statement.values) + " OFFSET 0) j";
	else
		statement.sql =
			"SELECT NULL, id, lease, " + json + " FROM " + call_of("tq_claim_any", arguments, statement.values);
	const tq::Result rows = co_await connection.query(std::move(statement));
	std::vector<std::vector<Job>> jobs(wish.named ? workers.size() : 1);
	for (int row = 0; row < rows.rows(); ++row)
	{
		const auto to = std::find(workers.begin(), workers.end(), rows.text(row, 0));
		std::vector<Job> &into = wish.named ? jobs.at(std::size_t(to - workers.begin())) : jobs.front();
		into.push_back(
			{std::string(rows.text(row, 1)), std::string(rows.text(row, 2)), std::string(rows.text(row, 3))});
	}
	co_return jobs;
}

// The waiters that the next call serves. Two clients with the same name are served one after the other.
Claims::Waiters Claims::first_of(const Wish &wish, const Waiters &waiters, std::int64_t jobs)
{
	Waiters first;
	std::set<std::string> names;
	for (const auto &waiter : waiters)
	{
		if (std::int64_t(first.size()) * wish.max_jobs >= std::min(jobs, kBatch))
			break;
		if (!waiter->worker || names.insert(*waiter->worker).second)
			first.push_back(waiter);
	}
	return first;
}

// Makes one call and distributes its jobs.
tq::Task<> Claims::hand_out(tq::Connection &connection, const Wish &wish, const Waiters &waiters)
{
	std::vector<std::string> workers;
	for (const auto &waiter : waiters)
	{
		if (waiter->worker)
			workers.push_back(*waiter->worker);
	}
	std::vector<std::vector<Job>> taken = co_await take(connection, wish, std::move(workers), int(waiters.size()));
	for (std::size_t i = 0; i < taken.size(); ++i)
	{
		for (std::size_t j = 0; j < taken[i].size(); ++j)
			waiters[wish.named ? i : j % waiters.size()]->jobs.push_back(std::move(taken[i][j]));
	}
}

void Claims::end(const Waiters &waiters, std::exception_ptr error)
{
	for (const auto &waiter : waiters)
	{
		waiter->error = error;
		waiter->done = true;
		waiter->timer.cancel();
	}
}

// Ends the waiters. If the server refuses their call, makes one call for each.
tq::Task<> Claims::settle(tq::Connection &connection, const Wish &wish, Waiters waiters)
{
	std::exception_ptr error;
	bool alone = false;
	try
	{
		co_await hand_out(connection, wish, waiters);
	}
	catch (const tq::Error &refusal)
	{
		error = std::current_exception();
		alone = waiters.size() > 1 && !dynamic_cast<const tq::ConnectionError *>(&refusal);
	}
	catch (...)
	{
		error = std::current_exception();
	}
	if (!alone)
		end(waiters, error);
	for (std::size_t i = 0; alone && i < waiters.size(); ++i)
		co_await settle(connection, wish, Waiters(1, waiters[i]));
}

// Makes calls until the line is empty. A call serves all that are in the line when it gets its connection.
tq::Task<> Claims::run_line(Wish wish)
{
	Line &line = lines_[wish];
	while (!line.waiters.empty() && !line.gathers)
	{
		line.gathers = true;
		try
		{
			Pool::Taken connection = co_await pool_.take(wish.role);
			line.gathers = false;
			Waiters first = first_of(wish, line.waiters, kBatch);
			auto next = first.cbegin(); // both are in the order of the line
			std::erase_if(line.waiters, [&](const auto &waiter) {
				const bool served = next != first.cend() && waiter == *next;
				next += served;
				return served;
			});
			co_await settle(*connection, wish, std::move(first));
		}
		catch (...)
		{
			// there is no connection
			line.gathers = false;
			end(std::exchange(line.waiters, {}), std::current_exception());
		}
	}
	if (--line.calls == 0)
		lines_.erase(wish);
}

// The jobs that are ready. Clients that ask for the same share a call.
tq::Task<std::vector<Claims::Job>> Claims::at_once(Wish wish, tq::Value worker)
{
	const auto executor = co_await asio::this_coro::executor;
	const auto self = std::make_shared<Waiter>(executor, std::move(worker), asio::steady_timer::time_point::max());
	Line &line = lines_[wish];
	line.waiters.push_back(self);
	if (line.calls < kCalls && !line.gathers)
	{
		++line.calls;
		asio::co_spawn(executor, run_line(std::move(wish)), asio::detached);
	}
	boost::system::error_code error;
	while (!self->done)
		co_await self->timer.async_wait(asio::redirect_error(asio::use_awaitable, error));
	if (self->error)
		std::rethrow_exception(self->error);
	co_return std::move(self->jobs);
}

tq::Task<> Claims::give_back(std::string role, std::vector<Job> jobs)
{
	std::vector<tq::Statement> statements;
	for (const Job &job : jobs)
		statements.push_back(tq::Statement("SELECT tq_release($1, $2)", {job.id, job.lease}));
	try
	{
		Pool::Taken connection = co_await pool_.take(std::move(role));
		co_await connection->pipeline(std::move(statements));
	}
	catch (const std::exception &error)
	{
		spdlog::warn("{} jobs of clients that have gone are free when their leases end: {}", jobs.size(), error.what());
	}
}

Answer Claims::answer(const std::string &role, std::vector<Job> jobs)
{
	Answer result;
	result.body = "{\"jobs\":[";
	for (const Job &job : jobs)
		result.body += (&job == &jobs.front() ? "" : ",") + job.text;
	result.body += "]}";
	if (!jobs.empty())
		result.undo = [this, role, jobs = std::move(jobs)] { return give_back(role, jobs); };
	return result;
}

tq::Task<Answer> Claims::claim(std::vector<Given> arguments, std::string role, std::chrono::microseconds wait,
							   Client &client)
{
	using namespace asio::experimental::awaitable_operators;
	Wish wish;
	wish.role = role;
	const bool one = !arguments.empty() && arguments.front().type == "text";
	const tq::Value queues = gateway::take(arguments, "queues");
	wish.queues = one ? std::vector<std::string>{*queues} : texts("queues", queues);
	const tq::Value kinds = gateway::take(arguments, "kinds");
	wish.kinds = texts("kinds", kinds);
	if (kinds && wish.kinds.empty())
		throw Refusal(400, "\"kinds\" must not be empty", "Leave it out to get jobs of all kinds.");
	wish.lease_for = gateway::take(arguments, "lease_for");
	wish.max_jobs = number(gateway::take(arguments, "max_jobs"), 1);
	tq::Value worker = gateway::take(arguments, "worker");
	wish.named = worker.has_value();
	if (wish.max_jobs < 1 || wish.max_jobs > 10000)
		throw Refusal(400, "\"max_jobs\" must be between 1 and 10000");

	// nobody overtakes those that wait for the same
	if (wait <= 0us || !groups_.contains(wish))
	{
		std::vector<Job> jobs = co_await at_once(wish, worker);
		if (!jobs.empty() || wait <= 0us || stopped_)
			co_return answer(role, std::move(jobs));
	}
	if (stopped_)
		co_return answer(role, {});
	const auto waiter = std::make_shared<Waiter>(co_await asio::this_coro::executor, std::move(worker),
												 asio::steady_timer::clock_type::now() + wait);
	groups_[wish].push_back(waiter);
	++waiting_;
	for (const Pair &pair : pairs_of(wish))
		changed_ = changed_ || (!watched_.contains(pair) && !watched_.contains({pair.first, std::nullopt}));
	if (changed_ && watching_ && !interrupting_)
	{
		interrupting_ = true;
		asio::co_spawn(waiter->timer.get_executor(), interrupt(), asio::detached);
	}
	if (idle_)
		idle_->cancel();
	boost::system::error_code error;
	co_await (waiter->timer.async_wait(asio::redirect_error(asio::use_awaitable, error)) || client.gone());
	leave(wish, waiter);
	if (waiter->error)
		std::rethrow_exception(waiter->error);
	co_return answer(role, std::move(waiter->jobs));
}

void Claims::leave(const Wish &wish, const std::shared_ptr<Waiter> &waiter)
{
	const auto group = groups_.find(wish);
	if (group == groups_.end() || std::erase(group->second, waiter) == 0)
		return;
	--waiting_;
	if (group->second.empty())
		groups_.erase(group);
}

std::vector<Claims::Pair> Claims::pairs_of(const Wish &wish)
{
	std::vector<Pair> pairs;
	for (const std::string &queue : wish.queues)
	{
		if (wish.kinds.empty())
			pairs.emplace_back(queue, std::nullopt);
		for (const std::string &kind : wish.kinds)
			pairs.emplace_back(queue, kind);
	}
	return pairs;
}

bool Claims::waits(const Wish &wish, const std::shared_ptr<Waiter> &waiter) const
{
	const auto group = groups_.find(wish);
	return group != groups_.end() &&
		   std::find(group->second.begin(), group->second.end(), waiter) != group->second.end();
}

void Claims::served(const Wish &wish, const std::shared_ptr<Waiter> &waiter)
{
	leave(wish, waiter);
	waiter->timer.cancel();
}

std::set<Claims::Pair> Claims::pairs() const
{
	std::set<Pair> pairs;
	for (const auto &[wish, waiters] : groups_)
	{
		for (Pair &pair : pairs_of(wish))
			pairs.insert(std::move(pair));
	}
	if (std::count_if(pairs.begin(), pairs.end(), [](const Pair &pair) { return pair.second.has_value(); }) <=
		kMaxKinds)
		return pairs;
	std::set<Pair> queues;
	for (const auto &[queue, kind] : pairs)
		queues.emplace(queue, std::nullopt);
	return queues;
}

// One call for those that have this wish; jobs: how many are ready.
tq::Task<bool> Claims::serve(Wish wish, std::int64_t jobs)
{
	const Waiters waiters = first_of(wish, groups_[wish], jobs);
	struct Serving
	{
		explicit Serving(bool &of) : flag(of) { flag = true; }
		~Serving() { flag = false; }
		bool &flag;
	};
	const Serving serving(serving_);
	bool got = false;
	std::vector<Job> left;
	std::exception_ptr error;
	try
	{
		Pool::Taken connection = co_await pool_.take(wish.role);
		co_await hand_out(*connection, wish, waiters);
		for (const auto &waiter : waiters)
		{
			if (waiter->jobs.empty())
				continue;
			got = true;
			if (waits(wish, waiter))
				served(wish, waiter);
			else
				std::move(waiter->jobs.begin(), waiter->jobs.end(), std::back_inserter(left));
		}
	}
	catch (const tq::ConnectionError &)
	{
		throw;
	}
	catch (...)
	{
		error = std::current_exception();
	}
	if (!left.empty())
		co_await give_back(wish.role, std::move(left));
	for (const auto &waiter : error ? waiters : Waiters())
	{
		waiter->error = error;
		served(wish, waiter);
	}
	co_return got || error;
}

// Serves the wishes that fit what is ready, or all.
tq::Task<bool> Claims::serve(std::map<Pair, std::int64_t> ready, bool all)
{
	std::vector<std::pair<Wish, std::int64_t>> wishes; // with the number of jobs
	for (const auto &[wish, waiters] : groups_)
	{
		std::int64_t jobs = all ? kBatch : 0;
		for (const auto &[pair, number] : ready)
		{
			const bool fits = contains(wish.queues, pair.first) &&
							  (wish.kinds.empty() || (pair.second && contains(wish.kinds, *pair.second)));
			jobs += fits ? number : 0;
		}
		if (jobs > 0)
			wishes.emplace_back(wish, jobs);
	}
	bool got = false;
	for (auto &[wish, jobs] : wishes)
	{
		const bool one = groups_.contains(wish) && co_await serve(wish, jobs);
		got = got || one;
	}
	co_return got;
}

// Ends the wait of a round. A cancel that comes before the server has begun to wait has no effect.
tq::Task<> Claims::interrupt()
{
	for (auto pause = kCancelPause; changed_ && watching_; pause = std::min(pause * 2, kLastCancelPause))
	{
		connection_.cancel();
		co_await sleep(pause);
	}
	interrupting_ = false;
}

// Waits until there are jobs for a client that waits, and hands them out.
tq::Task<> Claims::round()
{
	if (!connection_.is_open())
		connection_ = co_await Pool::connect(dsn_);
	watched_ = pairs();
	changed_ = false;
	std::vector<tq::Value> queues, kinds;
	for (const auto &[queue, kind] : watched_)
	{
		queues.push_back(queue);
		kinds.push_back(kind);
	}
	const std::vector<tq::Value> values{tq::value(queues), tq::value(kinds)};
	std::map<Pair, std::int64_t> ready;
	bool poll = false;
	try
	{
		watching_ = true;
		co_await connection_.query("CALL tq_wait($1::text[], '1 min', $2::text[], true)", values);
		watching_ = false;
		const tq::Result rows =
			co_await connection_.query("SELECT queue, kind, jobs FROM tq_ready($1::text[], $2::text[], true)", values);
		for (int row = 0; row < rows.rows(); ++row)
			ready[{std::string(rows.text(row, "queue")), rows.optional_text(row, "kind")}] += rows.integer(row, "jobs");
	}
	catch (const tq::ConnectionError &)
	{
		watching_ = false;
		throw;
	}
	catch (const tq::Error &error)
	{
		watching_ = false;
		if (error.sqlstate() == "57014")
			co_return; // a client waits for another queue
		poll = true;
	}
	if (poll)
		co_await sleep(kPollInterval);
	if (co_await serve(std::move(ready), poll) || poll)
	{
		vain_ = 0;
		co_return;
	}
	// the jobs are for others, or others were faster
	co_await sleep(std::min<std::chrono::microseconds>(1ms * (1 << std::min(vain_++, 10)), kLongestPause));
}

tq::Task<> Claims::run()
{
	idle_ = std::make_unique<asio::steady_timer>(co_await asio::this_coro::executor);
	co_await for_ever(*idle_, [this] { return groups_.empty(); }, [this] { return round(); },
					  "waiting claims get no jobs");
}

void Claims::stop()
{
	stopped_ = true;
	for (const auto &[wish, waiters] : groups_)
	{
		for (const auto &waiter : waiters)
			waiter->timer.cancel();
	}
}

} // namespace gateway
