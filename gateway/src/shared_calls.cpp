#include "shared_calls.hpp"

#include <boost/asio/this_coro.hpp>

namespace gateway
{

tq::Task<std::shared_ptr<tq::Shared>> SharedCalls::of(std::string role)
{
	if (auto shared = roles_[role].lock())
		co_return shared;
	std::erase_if(roles_, [](const auto &entry) { return entry.second.expired(); });
	tq::SharedOptions options;
	options.with_connection = [&pool = pool_,
							   role](std::function<tq::Task<>(tq::Connection &)> use) -> tq::Task<> {
		Pool::Taken connection = co_await pool.take(role);
		co_await use(*connection);
	};
	const auto executor = co_await boost::asio::this_coro::executor;
	const auto shared = std::make_shared<tq::Shared>(executor, std::move(options));
	roles_[role] = shared;
	co_return shared;
}

tq::Task<tq::Enqueued> SharedCalls::enqueue(std::string role, std::vector<Given> arguments)
{
	const auto shared = co_await of(std::move(role));
	std::vector<tq::Argument> named;
	for (Given &given : arguments)
		named.push_back({std::move(given.name), std::move(given.type), std::move(given.value)});
	co_return co_await shared->enqueue(std::move(named));
}

tq::Task<> SharedCalls::complete(std::string role, std::vector<Given> arguments)
{
	const auto shared = co_await of(std::move(role));
	const tq::Value id = take(arguments, "id"), lease = take(arguments, "lease");
	co_await shared->complete(std::stoll(*id), std::stoll(*lease), take(arguments, "result"));
}

} // namespace gateway
