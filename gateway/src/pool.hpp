// The connections of the gateway, shared by its calls. Each call runs as the role of its caller.
#pragma once

#include <tq/connection.hpp>

#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace gateway
{

class Pool
{
	struct Slot
	{
		tq::Connection connection;
		std::string role;	 // that is set on it
		bool direct = false; // no pooler is between: what is set on it stays on it
	};

public:
	// patience: how long take() waits for a free connection
	Pool(std::string dsn, int size, std::chrono::milliseconds patience);

	// A connection that is the caller's until it is destroyed.
	class Taken
	{
	public:
		Taken(Pool &pool, std::unique_ptr<Slot> slot) : pool_(&pool), slot_(std::move(slot)) {}
		Taken(Taken &&other) noexcept : pool_(std::exchange(other.pool_, nullptr)), slot_(std::move(other.slot_)) {}
		Taken &operator=(Taken &&) = delete;
		~Taken();

		tq::Connection &operator*() noexcept { return slot_->connection; }
		tq::Connection *operator->() noexcept { return &slot_->connection; }

	private:
		friend Pool;
		tq::Task<> become(std::string role);

		Pool *pool_;
		std::unique_ptr<Slot> slot_;
	};

	// Waits for a free connection and sets the role on it; empty: the login of the gateway. Raises Refusal (503) if
	// none is free in time or a pooler is in the way of roles, and what connecting and setting the role raise.
	tq::Task<Taken> take(std::string role);

	// A connection beside those of the pool.
	static tq::Task<tq::Connection> connect(std::string dsn);

	int size() const noexcept { return size_; }
	int used() const noexcept { return used_; }
	std::size_t waiting() const noexcept { return waiters_.size(); }

private:
	struct Waiter;

	tq::Task<> acquire();
	void release() noexcept;

	const std::string dsn_;
	const int size_;
	const std::chrono::milliseconds patience_;
	int used_ = 0;
	std::vector<std::unique_ptr<Slot>> idle_; // the one used last is last
	std::deque<std::shared_ptr<Waiter>> waiters_;
};

} // namespace gateway
