// Claims that wait. Any number of clients wait on one connection; those that want the same are served by one call, in
// the order in which they came.
#pragma once

#include "exchange.hpp"
#include "pool.hpp"
#include "statement.hpp"

#include <chrono>
#include <map>
#include <memory>
#include <set>

namespace gateway
{

class Claims
{
public:
	Claims(Pool &pool, std::string dsn)
		: pool_(pool), dsn_(std::move(dsn)), columns_(columns_of(operation_named("claim_any")))
	{}

	// Answers a claim. Waits for up to `wait` while the client is there.
	tq::Task<Answer> claim(std::vector<Given> arguments, std::string role, std::chrono::microseconds wait, Client &client);

	// Serves those that wait, for ever.
	tq::Task<> run();

	// From now on nobody waits: those that do get no jobs.
	void stop();

	std::size_t waiting() const noexcept { return waiting_; }
	// Whether no call for those that wait is under way. Its jobs are given back if their clients have gone.
	bool idle() const noexcept { return !serving_; }

private:
	struct Job
	{
		std::string id, lease, text;
	};
	// What claims have in common that one call can serve.
	struct Wish
	{
		std::string role;
		std::vector<std::string> queues, kinds;
		tq::Value lease_for;
		int max_jobs = 1;
		bool named = false;

		auto operator<=>(const Wish &) const = default;
	};
	struct Waiter;
	using Waiters = std::vector<std::shared_ptr<Waiter>>;
	using Pair = std::pair<std::string, tq::Value>; // a queue and a kind, or any kind

	// Clients that ask for the same at once: the next call serves them.
	struct Line
	{
		Waiters waiters;
		int calls = 0;		  // under way
		bool gathers = false; // one of them waits for its connection
	};

	tq::Task<std::vector<std::vector<Job>>> take(tq::Connection &connection, const Wish &wish,
												 std::vector<std::string> workers, int clients);
	tq::Task<> hand_out(tq::Connection &connection, const Wish &wish, const Waiters &waiters);
	tq::Task<> settle(tq::Connection &connection, const Wish &wish, Waiters waiters);
	static void end(const Waiters &waiters, std::exception_ptr error);
	tq::Task<std::vector<Job>> at_once(Wish wish, tq::Value worker);
	tq::Task<> run_line(Wish wish);
	static Waiters first_of(const Wish &wish, const Waiters &waiters, std::int64_t jobs);
	tq::Task<> give_back(std::string role, std::vector<Job> jobs);
	Answer answer(const std::string &role, std::vector<Job> jobs);
	static std::vector<Pair> pairs_of(const Wish &wish);
	std::set<Pair> pairs() const;
	bool waits(const Wish &wish, const std::shared_ptr<Waiter> &waiter) const;
	void leave(const Wish &wish, const std::shared_ptr<Waiter> &waiter);
	void served(const Wish &wish, const std::shared_ptr<Waiter> &waiter);
	tq::Task<bool> serve(Wish wish, std::int64_t jobs);
	tq::Task<bool> serve(std::map<Pair, std::int64_t> ready, bool all);
	tq::Task<> interrupt();
	tq::Task<> round();

	Pool &pool_;
	const std::string dsn_;
	const std::string columns_; // of a job
	std::map<Wish, Waiters> groups_; // each in order of arrival; none is empty
	std::map<Wish, Line> lines_;	 // each has calls under way
	std::size_t waiting_ = 0;
	int vain_ = 0; // rounds without a job
	tq::Connection connection_;
	std::set<Pair> watched_;
	bool watching_ = false, changed_ = false, interrupting_ = false, serving_ = false, stopped_ = false;
	std::unique_ptr<boost::asio::steady_timer> idle_;
};

} // namespace gateway
