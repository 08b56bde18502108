#include "pool.hpp"

#include "problem.hpp"

#include <tq/calls.hpp>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>

#include <libpq-fe.h>
#include <poll.h>

namespace asio = boost::asio;

namespace gateway
{

namespace
{

// Whether the server has said something to an idle connection: that it ends, mostly.
bool has_news(tq::Connection &connection)
{
	pollfd poll_one{PQsocket(connection.native()), POLLIN, 0};
	return poll(&poll_one, 1, 0) != 0;
}

} // namespace

struct Pool::Waiter
{
	Waiter(const asio::any_io_executor &executor, std::chrono::milliseconds patience) : timer(executor, patience) {}
	asio::steady_timer timer;
	bool granted = false;
};

Pool::Pool(std::string dsn, int size, std::chrono::milliseconds patience)
	: dsn_(std::move(dsn)), size_(size), patience_(patience)
{}

tq::Task<tq::Connection> Pool::connect(std::string dsn)
{
	std::vector<std::pair<std::string, std::string>> settings = {
		{"options", "-c intervalstyle=iso_8601 -c timezone=UTC -c datestyle=ISO"},
		{"application_name", "tq-gateway"},
		{"client_encoding", "UTF8"},
		{"target_session_attrs", "primary"}};
	return tq::Connection::open(std::move(dsn), std::move(settings));
}

tq::Task<> Pool::acquire()
{
	if (used_ < size_)
	{
		++used_;
		co_return;
	}
	auto waiter = std::make_shared<Waiter>(co_await asio::this_coro::executor, patience_);
	waiters_.push_back(waiter);
	boost::system::error_code error;
	co_await waiter->timer.async_wait(asio::redirect_error(asio::use_awaitable, error));
	if (waiter->granted)
		co_return;
	std::erase(waiters_, waiter);
	Refusal refusal(503, "all connections to the database are busy", "Try again, or raise --connections.");
	refusal.headers.emplace_back("Retry-After", "1");
	throw refusal;
}

void Pool::release() noexcept
{
	if (waiters_.empty())
	{
		--used_;
		return;
	}
	const auto next = waiters_.front();
	waiters_.pop_front();
	next->granted = true;
	next->timer.cancel();
}

tq::Task<Pool::Taken> Pool::take(std::string role)
{
	co_await acquire();
	std::unique_ptr<Slot> slot;
	while (!idle_.empty() && !slot)
	{
		auto found = std::find_if(idle_.begin(), idle_.end(), [&role](const auto &one) { return one->role == role; });
		if (found == idle_.end())
			found = idle_.begin();
		slot = std::move(*found);
		idle_.erase(found);
		if (!slot->connection.is_open() || has_news(slot->connection))
			slot.reset();
	}
	Taken taken(*this, slot ? std::move(slot) : std::make_unique<Slot>());
	if (!taken->is_open())
	{
		*taken = co_await connect(dsn_);
		taken.slot_->direct = co_await tq::prepare_if_direct(*taken);
	}
	co_await taken.become(std::move(role));
	co_return taken;
}

tq::Task<> Pool::Taken::become(std::string role)
{
	if (slot_->role == role)
		co_return;
	// a pooler in transaction mode gives the server connection, with its role, to the next call
	if (!slot_->direct)
		throw Refusal(503, "the gateway cannot set roles through a connection pooler",
					  "Connect it to the server itself (--dsn); it has a pool of its own.");
	if (role == "none") // would be the login of the gateway
		throw Refusal(403, "no role is called none");
	std::vector<tq::Value> values{role.empty() ? "none" : role};
	slot_->role = "?"; // in case of an error
	co_await slot_->connection.query("SELECT set_config('role', $1, false)", std::move(values));
	slot_->role = std::move(role);
}

Pool::Taken::~Taken()
{
	if (!pool_)
		return;
	if (slot_ && slot_->connection.is_open())
		pool_->idle_.push_back(std::move(slot_));
	pool_->release();
}

} // namespace gateway
