// Clients that wait for the end of jobs. All of them wait on one connection.
#pragma once

#include "exchange.hpp"
#include "pool.hpp"

#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace gateway
{

class Ends
{
public:
	enum class Why
	{
		told, // they have ended, or only the client's role can tell
		time,
		gone, // the client
	};

	explicit Ends(std::string dsn) : dsn_(std::move(dsn)) {}

	// Waits for the end of all of the jobs, or with `first` of one of them. The ids differ.
	tq::Task<Why> wait(std::vector<std::string> ids, bool first, std::chrono::microseconds at_most, Client &client);

	// Tells those that wait, for ever.
	tq::Task<> run();

	// Those that wait are told now.
	void stop();

	std::size_t waiting() const noexcept { return waiting_; }

private:
	struct Waiter
	{
		boost::asio::steady_timer timer;
		std::size_t left; // so many jobs have to end
	};
	using Waiters = std::vector<std::shared_ptr<Waiter>>;

	void tell(const std::string &id);
	tq::Task<> round();

	const std::string dsn_;
	std::map<std::string, Waiters> jobs_; // by id; none is empty
	std::size_t waiting_ = 0;
	tq::Connection connection_;
	std::set<std::string> watched_;
	bool watching_ = false;
	std::chrono::steady_clock::time_point cancelled_;
	std::unique_ptr<boost::asio::steady_timer> idle_;
};

} // namespace gateway
