// libFuzzer: requests of HTTP through all of the gateway that comes before who calls and the database. What is refused
// gets a problem with a 4xx; what passes is what openapi.json allows, and its statement has only names of tq.
#include "openapi.hpp"
#include "once.hpp"
#include "problem.hpp"
#include "raw_json.hpp"
#include "reading.hpp"
#include "statement.hpp"
#include "text.hpp"

#include <tq/utf8.hpp>

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/json.hpp>
#include <boost/json/src.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>

namespace asio = boost::asio;
namespace http = boost::beast::http;
namespace json = boost::json;

namespace
{

using gateway::Given, gateway::Operation, gateway::Refusal, gateway::Request, gateway::Route;

constexpr std::uint32_t kMaxHeader = 500;

std::string_view input;

void check(bool right, const std::string &what)
{
	if (right)
		return;
	std::fprintf(stderr, "%s: %.*s\n", what.c_str(), int(input.size()), input.data());
	std::abort();
}

// A connection on which a request comes in two pieces, and then no more.
class Pieces
{
public:
	Pieces(std::string_view text, std::size_t first) : pieces_{text.substr(0, first), text.substr(first)} {}

	template <class Buffers>
	std::size_t read_some(const Buffers &buffers, boost::system::error_code &error)
	{
		std::string_view &piece = pieces_[pieces_[0].empty()];
		error = piece.empty() ? boost::system::error_code(asio::error::eof) : boost::system::error_code();
		const std::size_t got = asio::buffer_copy(buffers, asio::buffer(piece.data(), piece.size()));
		piece.remove_prefix(got);
		return got;
	}
	template <class Buffers>
	std::size_t read_some(const Buffers &buffers)
	{
		boost::system::error_code error;
		return read_some(buffers, error);
	}

private:
	std::string_view pieces_[2];
};

json::value parsed(const std::string &text, const char *what)
{
	json::parse_options options;
	options.max_depth = 6000;
	json::error_code error;
	json::value value = json::parse(text, error, {}, options);
	check(!error, std::string(what) + " is not JSON");
	return value;
}

void check_problem(const gateway::Answer &answer)
{
	check(answer.status >= 400 && answer.status < 500, "a status of " + std::to_string(answer.status));
	check(answer.type == "application/problem+json", "a refusal that is no problem");
	const json::value problem = parsed(answer.body, "a problem");
	check(problem.at("status").to_number<unsigned>() == answer.status && !problem.at("title").as_string().empty() &&
			  problem.at("detail").is_string(),
		  "a problem that lacks something");
}

// The operations of openapi.json by name, each with its method and path.
const std::map<std::string, json::object> &described()
{
	static const auto operations = [] {
		std::map<std::string, json::object> found;
		const json::value whole = json::parse(gateway::openapi());
		for (const auto &[path, methods] : whole.at("paths").as_object())
			for (const auto &[method, operation] : methods.as_object())
			{
				json::object object = operation.as_object();
				object["method"] = method;
				object["path"] = path;
				found[json::value_to<std::string>(object.at("operationId"))] = object;
			}
		return found;
	}();
	return operations;
}

bool is_lease(std::string_view text)
{
	const std::size_t dot = text.find('.');
	const auto digits = [](std::string_view part) {
		return !part.empty() && part.find_first_not_of("0123456789") == part.npos;
	};
	return dot != text.npos && digits(text.substr(0, dot)) && digits(text.substr(dot + 1));
}

bool allows(const json::value &schema, const json::value &value);

bool has_type(const json::object &schema, std::string_view name, const json::value &value)
{
	if (name == "null")
		return value.is_null();
	if (name == "boolean")
		return value.is_bool();
	if (name == "array")
		return value.is_array() && std::all_of(value.as_array().begin(), value.as_array().end(),
											   [&](const json::value &one) { return allows(schema.at("items"), one); });
	if (name == "string")
		return value.is_string() && (!schema.contains("pattern") || is_lease(value.as_string()));
	check(name == "integer", "a type that the fuzzer does not know");
	using Limits = std::numeric_limits<std::int32_t>;
	return value.is_int64() &&
		   (schema.at("format") == "int64" || (value.as_int64() >= Limits::min() && value.as_int64() <= Limits::max()));
}

bool allows(const json::value &schema, const json::value &value)
{
	const json::value *type = schema.as_object().if_contains("type");
	if (!type)
		return true;
	if (type->is_string())
		return has_type(schema.as_object(), type->as_string(), value);
	return std::any_of(type->as_array().begin(), type->as_array().end(), [&](const json::value &one) {
		return has_type(schema.as_object(), one.as_string(), value);
	});
}

// Of a path or a query, where all values are text.
bool allows_text(const json::value &schema, const std::string &text)
{
	if (!schema.as_object().contains("type"))
		return true;
	const std::string type = json::value_to<std::string>(schema.at("type"));
	if (type == "string")
		return allows(schema, json::value(text));
	if (type == "boolean")
		return text == "true" || text == "false";
	std::int64_t number = 0;
	const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
	return error == std::errc() && end == text.data() + text.size() && allows(schema, json::value(number));
}

void check_parameters(const json::object &operation, const Route &route, const Request &request)
{
	std::size_t parts = 0, query = 0;
	const json::value *parameters = operation.if_contains("parameters");
	for (const json::value &one : parameters ? parameters->as_array() : json::array())
	{
		if (one.at("in") == "header")
			continue;
		const bool in_path = one.at("in") == "path";
		const auto &values = in_path ? route.parts : request.query;
		const auto found = values.find(json::value_to<std::string>(one.at("name")));
		check(found != values.end() || !one.at("required").as_bool(), "a parameter is missing");
		check(found == values.end() || allows_text(one.at("schema"), found->second), "a parameter of another type");
		(in_path ? parts : query) += found != values.end();
	}
	check(parts == route.parts.size() && query == request.query.size(), "a parameter that is not described");
}

void check_body(const json::object &operation, const Request &request)
{
	const json::value *body = operation.if_contains("requestBody");
	const json::value given = parsed(request.body.empty() ? "{}" : request.body, "a body");
	check(given.is_object(), "a body that is no object");
	if (!body)
	{
		check(given.as_object().empty(), "a body that is not described");
		return;
	}
	const json::object &schema = body->at("content").at("application/json").at("schema").as_object();
	for (const auto &[name, value] : given.as_object())
	{
		const json::value *property = schema.at("properties").as_object().if_contains(name);
		check(property && allows(*property, value), "a member that is not allowed: " + std::string(name));
	}
	if (const json::value *required = schema.if_contains("required"))
		for (const json::value &name : required->as_array())
			check(given.as_object().contains(name.as_string()), "a required member is missing");
}

// The same request, with each byte of the parts of its path encoded, is the same.
void check_path(const json::object &operation, const Route &route, const Request &request)
{
	std::string path = json::value_to<std::string>(operation.at("path"));
	for (const auto &[name, part] : route.parts)
	{
		std::string encoded;
		for (const unsigned char byte : part)
		{
			char text[4];
			std::snprintf(text, sizeof text, "%%%02x", byte);
			encoded += text;
		}
		path.replace(path.find("{" + name + "}"), name.size() + 2, encoded);
	}
	const Route again = gateway::route_of(request.method, path);
	check(again.operation == route.operation && again.parts == route.parts, "another path");
	const std::string method = gateway::lower(request.method);
	const std::string described_method = json::value_to<std::string>(operation.at("method"));
	check(method == described_method || (method == "head" && described_method == "get"), "another method");
}

// A value is never part of the text of a statement.
void check_statement(const Operation &operation, std::vector<Given> arguments)
{
	tq::Statement statement = gateway::statement_of(operation, arguments);
	check(statement.values.size() == arguments.size(), "values are missing");
	check(statement.sql.find('$' + std::to_string(arguments.size() + 1)) == std::string::npos, "more places than values");
	const std::string sql = std::move(statement.sql);
	for (Given &given : arguments)
	{
		check(!given.value || given.value->find('\0') == std::string::npos, "a zero byte");
		const bool array = given.type.ends_with("[]");
		check(!array || !given.value || tq::value(tq::parse_array(*given.value)) == given.value, "another array");
		given.value = "other";
	}
	check(gateway::statement_of(operation, arguments).sql == sql, "a value is in the statement");
}

void check_request(const http::request<http::string_body> &read)
{
	const Request request = gateway::request_of(read);
	const Route route = gateway::route_of(request.method, request.path);
	std::vector<Given> arguments = gateway::arguments_of(route, request);
	const Operation &operation = *route.operation;
	const json::object &description = described().at(operation.name);
	check_path(description, route, request);
	check_parameters(description, route, request);
	check_body(description, request);
	if (const std::string key = request.header("idempotency-key"); operation.once && !key.empty())
		gateway::make_once(arguments, "role", key);
	if (*operation.source)
		check_statement(operation, std::move(arguments));
}

// The request and the answer of the gateway; nothing if it cannot be read.
std::string outcome(std::string_view text, std::size_t first)
{
	gateway::Options options;
	options.max_body = 700;
	options.max_header = kMaxHeader;
	gateway::Parser parser(options);
	Pieces pieces(text, first);
	boost::beast::flat_buffer buffer;
	boost::system::error_code error;
	http::read_header(pieces, buffer, parser, error);
	if (!error)
		http::read(pieces, buffer, parser, error);
	if (error)
	{
		if (const unsigned status = gateway::status_of(error); status != 0)
			check_problem(gateway::problem(Refusal(status, "the request cannot be read: " + error.message())));
		return "";
	}
	const auto &read = parser.get();
	std::string result = std::string(read.method_string()) + ' ' + std::string(read.target()) + '\n' + read.body();
	try
	{
		check_request(read);
	}
	catch (...)
	{
		const gateway::Answer answer = gateway::problem(std::current_exception());
		check_problem(answer);
		result += '\n' + answer.body;
	}
	return result;
}

} // namespace

// A head without a length gets that of what follows it, so that a mutated body is read.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char *data, std::size_t size)
{
	std::string text(reinterpret_cast<const char *>(data), size);
	input = text;
	const std::size_t end = text.find("\r\n\r\n");
	const auto has = [&text](const char *word) { return text.find(word) != text.npos; };
	if (end != text.npos && end + 4 < size && !has("Content-Length") && !has("chunked"))
		text.insert(end, "\r\nContent-Length: " + std::to_string(size - end - 4));
	const std::size_t first = size == 0 ? 0 : data[size - 1] * text.size() / 256;
	const std::string pieces = outcome(text, first), whole = outcome(text, text.size());
	// close to the limit it depends on the pieces whether a head is too large
	const bool large = text.size() > kMaxHeader && (pieces.empty() || whole.empty());
	check(pieces == whole || large, "in two pieces it is another request");
	return 0;
}
