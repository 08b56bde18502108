// Idempotency-Key: the same request twice enqueues its jobs once.
#pragma once

#include "statement.hpp"

#include <string>
#include <vector>

namespace gateway
{

// Gives each job a unique key made of the role, the key and the number of the job, which stays taken for a day. Raises
// Refusal if the request has unique keys of its own, or if the key is too long.
void make_once(std::vector<Given> &arguments, const std::string &role, const std::string &key);

} // namespace gateway
