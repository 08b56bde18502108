// Refusals as application/problem+json (RFC 9457).
#pragma once

#include "exchange.hpp"

#include <tq/error.hpp>

namespace gateway
{

// What the gateway itself refuses.
class Refusal : public std::runtime_error
{
public:
	Refusal(unsigned code, const std::string &detail, std::string advice = {})
		: std::runtime_error(detail), status(code), hint(std::move(advice))
	{}

	unsigned status;
	std::string hint;
	std::vector<std::pair<std::string, std::string>> headers;
};

Answer problem(const Refusal &refusal);
// The status follows from the SQLSTATE.
Answer problem(const tq::Error &error);
// Any exception.
Answer problem(std::exception_ptr exception);

} // namespace gateway
