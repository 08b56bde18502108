// Subscriptions: jobs of a queue are delivered to its targets as webhooks (docs/guides/subscriptions.md). Each delivery
// runs with the rights of the role that subscribed.
#pragma once

#include "claims.hpp"
#include "options.hpp"

#include <tq/webhook.hpp>

#include <map>
#include <memory>
#include <optional>

namespace gateway
{

class Pushes
{
public:
	// Raises std::invalid_argument if an option is wrong.
	Pushes(Pool &pool, Claims &claims, const Options &options);

	// Delivers, until stop(). Reads the subscriptions again and again.
	tq::Task<> run();

	// From now on no job is claimed; deliveries that have begun go on.
	void stop();
	bool idle() const noexcept { return claiming_ == 0 && delivering_ == 0; }

	std::uint64_t delivered() const noexcept { return delivered_; }
	std::uint64_t failed() const noexcept { return failed_; }

private:
	// What is read of a subscription; another one takes its place when it changes.
	struct Subscription
	{
		std::string queue, url, role, options;

		auto operator<=>(const Subscription &) const = default;
	};
	struct Push;
	struct Job
	{
		std::string id, lease, payload;
	};

	tq::Task<> look();
	tq::Task<> read(std::string role, std::map<Subscription, std::shared_ptr<Push>> &found);
	std::shared_ptr<Push> begin(const Subscription &subscription) const;
	tq::Task<> claim(std::shared_ptr<Push> push);
	tq::Task<> deliver(std::shared_ptr<Push> push, Job job);
	tq::Task<> finish(const Push &push, const Job &job, tq::webhook::Outcome outcome);

	Pool &pool_;
	Claims &claims_;
	const Options &options_;
	std::shared_ptr<boost::asio::ssl::context> tls_;
	std::map<Subscription, std::shared_ptr<Push>> pushes_;
	std::unique_ptr<boost::asio::steady_timer> pause_;
	int claiming_ = 0, delivering_ = 0;
	std::uint64_t delivered_ = 0, failed_ = 0;
	bool stopped_ = false;
};

} // namespace gateway
