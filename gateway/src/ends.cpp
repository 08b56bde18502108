#include "ends.hpp"

#include "waits.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>

namespace asio = boost::asio;
using namespace std::chrono_literals;

namespace gateway
{

namespace
{

constexpr auto kPollInterval = 1s; // where tq_wait_jobs is not possible
// Those that come meanwhile are watched by the same call. It reads all ids, so the more there are, the longer.
constexpr auto kGathering = 2ms;
constexpr auto kGatheringPerJob = 4us;
constexpr auto kCancelPause = 50ms; // before a call that has not ended is cancelled again

} // namespace

tq::Task<Ends::Why> Ends::wait(std::vector<std::string> ids, bool first, std::chrono::microseconds at_most,
							   Client &client)
{
	using namespace asio::experimental::awaitable_operators;
	const auto waiter = std::make_shared<Waiter>(asio::steady_timer(co_await asio::this_coro::executor, at_most),
												 first ? 1 : ids.size());
	for (const std::string &id : ids)
		jobs_[id].push_back(waiter);
	++waiting_;
	const auto now = std::chrono::steady_clock::now();
	const bool watched =
		std::all_of(ids.begin(), ids.end(), [this](const std::string &id) { return watched_.contains(id); });
	if (watching_ && !watched && now > cancelled_ + kCancelPause)
	{
		cancelled_ = now;
		connection_.cancel();
	}
	if (idle_)
		idle_->cancel();
	boost::system::error_code error;
	const auto which =
		co_await (waiter->timer.async_wait(asio::redirect_error(asio::use_awaitable, error)) || client.gone());
	for (const std::string &id : ids)
	{
		const auto job = jobs_.find(id);
		if (job != jobs_.end() && std::erase(job->second, waiter) > 0 && job->second.empty())
			jobs_.erase(job);
	}
	--waiting_;
	if (which.index() == 1)
		co_return Why::gone;
	co_return error ? Why::told : Why::time;
}

// The job is watched no more: it would end the next round at once.
void Ends::tell(const std::string &id)
{
	const auto job = jobs_.find(id);
	if (job == jobs_.end())
		return;
	for (const auto &waiter : job->second)
	{
		if (waiter->left > 0 && --waiter->left == 0)
			waiter->timer.cancel();
	}
	jobs_.erase(job);
}

// Waits until one of the jobs has ended, or another is to be watched.
tq::Task<> Ends::round()
{
	if (!connection_.is_open())
		connection_ = co_await Pool::connect(dsn_);
	co_await sleep(kGathering + kGatheringPerJob * jobs_.size());
	watched_.clear();
	std::vector<tq::Value> ids;
	for (const auto &[id, waiters] : jobs_)
	{
		watched_.insert(id);
		ids.push_back(id);
	}
	if (ids.empty())
		co_return;
	const std::vector<tq::Value> values{tq::value(ids)};
	std::vector<std::string> ended;
	bool poll = false;
	try
	{
		cancelled_ = {};
		watching_ = true;
		co_await connection_.query("CALL tq_wait_jobs($1::bigint[], '5 s', true)", values);
		watching_ = false;
		const tq::Result rows = co_await connection_.query("SELECT unnest(tq_ended($1::bigint[]))", values);
		for (int row = 0; row < rows.rows(); ++row)
			ended.emplace_back(rows.text(row, 0));
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
			co_return; // a client waits for another job
		poll = true;
	}
	if (poll)
	{
		co_await sleep(kPollInterval);
		ended.assign(watched_.begin(), watched_.end());
	}
	for (const std::string &id : ended)
		tell(id);
}

tq::Task<> Ends::run()
{
	idle_ = std::make_unique<asio::steady_timer>(co_await asio::this_coro::executor);
	co_await for_ever(
		*idle_, [this] { return jobs_.empty(); }, [this] { return round(); }, "the ends of jobs are not seen");
}

void Ends::stop()
{
	for (const auto &[id, waiters] : jobs_)
	{
		for (const auto &waiter : waiters)
			waiter->timer.cancel();
	}
}

} // namespace gateway
