// From a request to the statement that answers it.
#pragma once

#include "exchange.hpp"
#include "operation.hpp"

#include <tq/connection.hpp>

#include <map>
#include <string>
#include <vector>

namespace gateway
{

// The operation of a request, and the parts of its path by name, decoded.
struct Route
{
	const Operation *operation = nullptr;
	std::map<std::string, std::string> parts;
};

// Raises Refusal: 404, or 405 with Allow.
Route route_of(const std::string &method, const std::string &path);

// What a request gives, by the names of SQL arguments.
struct Given
{
	std::string name, type;
	tq::Value value;
};

// Checks the request against the fields of its operation. Fields that are null or left out are not in the result.
// Raises Refusal.
std::vector<Given> arguments_of(const Route &route, const Request &request);

// Takes an argument out; nothing if it is not given.
tq::Value take(std::vector<Given> &arguments, std::string_view name);

// The statement that calls the function or reads the view. It returns one row of one column: the body, or no row.
tq::Statement statement_of(const Operation &operation, const std::vector<Given> &arguments);

// The columns of an operation as they are selected.
std::string columns_of(const Operation &operation);

// SOURCE(name => $1::type, ...), with the values appended.
std::string call_of(const char *function, const std::vector<Given> &arguments, std::vector<tq::Value> &values);

// Decodes %XX; + is a space in a query. Raises Refusal.
std::string decoded(std::string_view text, bool query);

// The id and the lease that a token stands for. Raises Refusal.
std::pair<std::string, std::string> lease_of(const std::string &token);

} // namespace gateway
