// What comes in and what goes out, whatever carries it.
#pragma once

#include <tq/connection.hpp>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gateway
{

struct Request
{
	std::string method;
	std::string path;							// as it came: percent-encoded, without the query
	std::map<std::string, std::string> query;	// decoded
	std::map<std::string, std::string> headers; // names in lower case
	std::string body;
	std::string certificate; // the name in the client's certificate, which was verified; empty if there is none
	std::string role; // the role that the call runs as; empty: the login of the gateway

	// Empty if there is no such header.
	std::string header(const std::string &name) const
	{
		const auto found = headers.find(name);
		return found == headers.end() ? std::string() : found->second;
	}
};

// Takes the parts of an answer that goes on and on.
class Sink
{
public:
	virtual ~Sink() = default;
	// Raises boost::system::system_error if the client has gone.
	virtual tq::Task<> write(std::string part) = 0;
};

struct Answer
{
	unsigned status = 200;
	std::string body;
	std::string type = "application/json";
	std::vector<std::pair<std::string, std::string>> headers;
	// Called if the client has gone before it got the answer.
	std::function<tq::Task<>()> undo;
	// Writes the body bit by bit, instead of `body`.
	std::function<tq::Task<>(Sink &)> stream;
};

// Whether the client of a request is still there.
class Client
{
public:
	virtual ~Client() = default;
	// Ends when the client has gone.
	virtual tq::Task<> gone() = 0;
};

} // namespace gateway
