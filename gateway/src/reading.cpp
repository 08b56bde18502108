#include "reading.hpp"

#include "problem.hpp"
#include "statement.hpp"
#include "text.hpp"

#include <boost/beast/core/error.hpp>
#include <boost/beast/http/error.hpp>

#include <algorithm>

namespace beast = boost::beast;
namespace http = beast::http;

namespace gateway
{

Request request_of(const http::request<http::string_body> &from)
{
	Request request;
	request.method = std::string(from.method_string());
	const std::string target(from.target());
	const std::size_t mark = target.find('?');
	request.path = target.substr(0, mark);
	std::string_view query = mark == target.npos ? std::string_view() : std::string_view(target).substr(mark + 1);
	while (!query.empty())
	{
		const std::string_view one = query.substr(0, query.find('&'));
		query.remove_prefix(std::min(query.size(), one.size() + 1));
		const std::size_t equals = one.find('=');
		const std::string name = decoded(one.substr(0, equals), true);
		if (!request.query.emplace(name, equals == one.npos ? "" : decoded(one.substr(equals + 1), true)).second)
			throw Refusal(400, "the parameter " + name + " is given twice");
	}
	for (const auto &field : from)
	{
		if (!request.headers.emplace(lower(std::string(field.name_string())), field.value()).second &&
			(field.name() == http::field::authorization || field.name() == http::field::host))
			throw Refusal(400, "a header is given twice: " + std::string(field.name_string()));
	}
	request.body = from.body();
	return request;
}

unsigned status_of(const boost::system::error_code &error)
{
	if (error == http::error::body_limit)
		return 413;
	if (error == http::error::header_limit)
		return 431;
	if (error == beast::error::timeout)
		return 408;
	if (error == http::error::end_of_stream || error == http::error::partial_message)
		return 0;
	return error.category() == http::make_error_code(http::error::bad_method).category() ? 400 : 0;
}

} // namespace gateway
