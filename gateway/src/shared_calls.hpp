// Calls of clients of one role share commits. Each role has calls of its own, so no transaction has two roles.
#pragma once

#include "pool.hpp"
#include "statement.hpp"

#include <tq/shared.hpp>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gateway
{

class SharedCalls
{
public:
	explicit SharedCalls(Pool &pool) : pool_(pool) {}

	// Raise what the call alone would raise.
	tq::Task<tq::Enqueued> enqueue(std::string role, std::vector<Given> arguments);
	tq::Task<> complete(std::string role, std::vector<Given> arguments);

private:
	tq::Task<std::shared_ptr<tq::Shared>> of(std::string role);

	Pool &pool_;
	std::map<std::string, std::weak_ptr<tq::Shared>> roles_; // while calls of them are under way
};

} // namespace gateway
