// Requests of HTTP/1.1 as they come in.
#pragma once

#include "exchange.hpp"
#include "options.hpp"

#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

namespace gateway
{

// With the limits of the options.
class Parser : public boost::beast::http::request_parser<boost::beast::http::string_body>
{
public:
	explicit Parser(const Options &options)
	{
		body_limit(options.max_body);
		header_limit(options.max_header);
	}
};

// Raises Refusal.
Request request_of(const boost::beast::http::request<boost::beast::http::string_body> &from);

// Why a request cannot be read, as a status; 0: say nothing.
unsigned status_of(const boost::system::error_code &error);

} // namespace gateway
