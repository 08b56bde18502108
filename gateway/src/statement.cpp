#include "statement.hpp"

#include "problem.hpp"
#include "raw_json.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

namespace gateway
{

namespace
{

// Takes the text before the next slash off the path.
std::string_view first_part(std::string_view &path)
{
	const std::string_view part = path.substr(0, path.find('/'));
	path.remove_prefix(std::min(path.size(), part.size() + 1));
	return part;
}

// Whether a part of a path fits that of a pattern: text, or {name}, each perhaps with :verb.
bool fits(std::string_view pattern, std::string_view part, std::map<std::string, std::string> &parts)
{
	const std::size_t colon = pattern.find(':');
	const std::string_view verb = colon == pattern.npos ? std::string_view() : pattern.substr(colon);
	if (!part.ends_with(verb))
		return false;
	pattern.remove_suffix(verb.size());
	part.remove_suffix(verb.size());
	if (!pattern.starts_with('{'))
		return pattern == part;
	// a colon of a name is percent-encoded
	if (part.empty() || part.find(':') != part.npos)
		return false;
	parts[std::string(pattern.substr(1, pattern.size() - 2))] = decoded(part, false);
	return true;
}

bool fits_path(std::string_view pattern, std::string_view path, std::map<std::string, std::string> &parts)
{
	if (std::count(pattern.begin(), pattern.end(), '/') != std::count(path.begin(), path.end(), '/'))
		return false;
	while (!pattern.empty() || !path.empty())
	{
		if (!fits(first_part(pattern), first_part(path), parts))
			return false;
	}
	return true;
}

[[noreturn]] void refuse(const std::string &field, const std::string &why)
{
	throw Refusal(400, quoted(field) + " " + why);
}

void no_zero(const std::string &field, const std::string &text)
{
	if (text.find('\0') != text.npos)
		refuse(field, "contains a zero character");
}

template <class Integer>
bool is(const std::string &text)
{
	Integer number;
	const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
	return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

void check_integer(const std::string &field, const std::string &type, const std::string &text)
{
	if (!is<std::int64_t>(text))
		refuse(field, "must be an integer");
	if (type == "int" && !is<std::int32_t>(text))
		refuse(field, "is out of range");
}

// The digits of a lease token.
bool is_number(const std::string &text) { return is<std::int64_t>(text) && text.front() != '-'; }

// The value of a JSON value for a type that is no array.
tq::Value scalar(const std::string &field, const std::string &type, const Raw &raw)
{
	if (raw.kind == Raw::kNull && type != "jsonb")
		return std::nullopt;
	if (type == "jsonb")
		return raw.text;
	if (type == "boolean")
	{
		if (raw.kind != Raw::kBool)
			refuse(field, "must be true or false");
		return raw.text;
	}
	if (type == "int" || type == "bigint")
	{
		check_integer(field, type, raw.kind == Raw::kNumber ? raw.text : "");
		return raw.text;
	}
	if (raw.kind != Raw::kString)
		refuse(field, "must be a string");
	no_zero(field, raw.string);
	return raw.string;
}

std::vector<Raw> elements(const std::string &field, const Raw &raw)
{
	if (raw.kind != Raw::kArray)
		refuse(field, "must be an array");
	return elements_of(raw.text);
}

tq::Value value_of(const std::string &field, std::string type, const Raw &raw)
{
	if (!type.ends_with("[]"))
		return scalar(field, type, raw);
	type.resize(type.size() - 2);
	std::vector<tq::Value> values;
	for (const Raw &one : elements(field, raw))
		values.push_back(scalar(field, type, one));
	return tq::value(values);
}

void add_lease(std::vector<Given> &arguments, const std::string &token)
{
	auto [id, lease] = lease_of(token);
	arguments.push_back({"id", "bigint", std::move(id)});
	arguments.push_back({"lease", "bigint", std::move(lease)});
}

void add_leases(std::vector<Given> &arguments, const std::string &field, const Raw &raw)
{
	std::vector<tq::Value> ids, leases;
	for (const Raw &one : elements(field, raw))
	{
		if (one.kind != Raw::kString)
			refuse(field, "must be an array of strings");
		auto [id, lease] = lease_of(one.string);
		ids.push_back(std::move(id));
		leases.push_back(std::move(lease));
	}
	arguments.push_back({"ids", "bigint[]", tq::value(ids)});
	arguments.push_back({"leases", "bigint[]", tq::value(leases)});
}

std::vector<std::pair<std::string, Raw>> body_of(const Request &request)
{
	if (request.body.empty())
		return {};
	const std::string type = request.header("content-type");
	if (type != "application/json" && !type.starts_with("application/json;"))
		throw Refusal(415, "a body must have the Content-Type application/json", "");
	try
	{
		return members_of(request.body);
	}
	catch (const BadJson &error)
	{
		throw Refusal(400, std::string("the body cannot be read: ") + error.what());
	}
}

} // namespace

std::string decoded(std::string_view text, bool query)
{
	std::string result;
	for (std::size_t i = 0; i < text.size(); ++i)
	{
		if (text[i] == '+' && query)
			result += ' ';
		else if (text[i] != '%')
			result += text[i];
		else
		{
			unsigned byte = 0;
			const char *begin = text.data() + i + 1;
			if (i + 2 >= text.size() || std::from_chars(begin, begin + 2, byte, 16).ptr != begin + 2)
				throw Refusal(400, "a % in the URL is not followed by two hexadecimal digits");
			result += char(byte);
			i += 2;
		}
	}
	no_zero("the URL", result);
	return result;
}

std::pair<std::string, std::string> lease_of(const std::string &token)
{
	const std::size_t dot = token.find('.');
	if (dot == token.npos || !is_number(token.substr(0, dot)) || !is_number(token.substr(dot + 1)))
		throw Refusal(400, "not a lease: " + quoted(token), "Use the lease that a claim returned, as it is.");
	return {token.substr(0, dot), token.substr(dot + 1)};
}

Route route_of(const std::string &method, const std::string &path)
{
	std::string allowed;
	for (const Operation &operation : kOperations)
	{
		Route route{&operation, {}};
		if (!fits_path(operation.path, path, route.parts))
			continue;
		if (method == operation.method || (method == "HEAD" && std::strcmp(operation.method, "GET") == 0))
			return route;
		allowed += (allowed.empty() ? "" : ", ") + std::string(operation.method);
	}
	if (allowed.empty())
		throw Refusal(404, "no such path: " + path, "GET /openapi.json describes what there is.");
	Refusal refusal(405, method + " is not possible for " + path);
	refusal.headers.emplace_back("Allow", allowed);
	throw refusal;
}

std::vector<Given> arguments_of(const Route &route, const Request &request)
{
	const Operation &operation = *route.operation;
	auto body = body_of(request);
	auto query = request.query;
	std::vector<Given> arguments;
	for (const Field &field : operation.fields)
	{
		const std::string name = field.name, type = field.type, argument = field.argument ? field.argument : field.name;
		std::optional<std::string> text;
		std::optional<Raw> raw;
		if (field.in == Field::kPath)
			text = route.parts.at(name);
		else if (field.in == Field::kQuery)
		{
			const auto found = query.find(name);
			if (found != query.end())
				text = found->second;
			query.erase(name);
		}
		else
		{
			const auto found =
				std::find_if(body.begin(), body.end(), [&name](const auto &one) { return one.first == name; });
			if (found != body.end())
			{
				// a payload of null is one
				if (found->second.kind != Raw::kNull || (type == "jsonb" && name == "payload"))
					raw = std::move(found->second);
				body.erase(found);
			}
		}
		if (!text && !raw)
		{
			if (field.required)
				refuse(name, "is missing");
			if (field.null)
				arguments.push_back({argument, type, std::nullopt});
			continue;
		}
		if (type == "lease")
			add_lease(arguments, *text);
		else if (type == "leases")
			add_leases(arguments, name, *raw);
		else if (raw)
			arguments.push_back({argument, type, value_of(name, type, *raw)});
		else
		{
			if (type == "int" || type == "bigint")
				check_integer(name, type, *text);
			if (type == "boolean" && *text != "true" && *text != "false")
				refuse(name, "must be true or false");
			arguments.push_back({argument, type, std::move(text)});
		}
	}
	if (!body.empty())
		refuse(body.front().first, "is no field of this call");
	if (!query.empty())
		refuse(query.begin()->first, "is no parameter of this call");
	return arguments;
}

tq::Value take(std::vector<Given> &arguments, std::string_view name)
{
	const auto found =
		std::find_if(arguments.begin(), arguments.end(), [name](const Given &one) { return one.name == name; });
	if (found == arguments.end())
		return std::nullopt;
	tq::Value value = std::move(found->value);
	arguments.erase(found);
	return value;
}

std::string call_of(const char *function, const std::vector<Given> &arguments, std::vector<tq::Value> &values)
{
	std::string text;
	for (const Given &given : arguments)
	{
		values.push_back(given.value);
		text += (text.empty() ? "" : ", ") + given.name + " => $" + std::to_string(values.size()) + "::" + given.type;
	}
	return std::string(function) + "(" + text + ")";
}

std::string columns_of(const Operation &operation)
{
	std::string text;
	for (const Column &column : operation.columns)
	{
		text += text.empty() ? "" : ", ";
		text += column.type == "lease" ? "id || '.' || lease AS " : "";
		text += column.name;
	}
	return text;
}

tq::Statement statement_of(const Operation &operation, const std::vector<Given> &arguments)
{
	tq::Statement statement;
	statement.often = operation.often;
	std::string from;
	if (operation.way == Operation::kLook)
	{
		from = operation.source;
		const char *word = " WHERE ";
		for (const Given &given : arguments)
		{
			statement.values.push_back(given.value);
			from += word + given.name + (given.name.ends_with('<') ? " $" : " = $") + std::to_string(statement.values.size()) + "::" + given.type;
			word = " AND ";
		}
		from += std::string(" ") + operation.order;
	}
	else
	{
		from = call_of(operation.source, arguments, statement.values);
		// a function that returns one value names its column after itself
		if (operation.columns.size() == 1)
			from += std::string(" AS f (") + operation.columns.front().name + ")";
	}
	const std::string rows = "FROM (SELECT " + columns_of(operation) +
							 (operation.shape == Operation::kPage ? ", next_after" : "") + " FROM " + from + ") t";
	switch (operation.shape)
	{
		case Operation::kRow:
			statement.sql = "SELECT row_to_json(t) " + rows;
			break;
		case Operation::kRows:
			statement.sql = std::string("SELECT json_build_object('") + operation.rows +
							"', coalesce(json_agg(row_to_json(t)), '[]')) " + rows;
			break;
		case Operation::kPage:
			statement.sql = std::string("SELECT json_build_object('") + operation.rows +
							"', coalesce(json_agg(to_jsonb(t) - 'next_after') FILTER (WHERE id IS NOT NULL), '[]'), "
							"'next_after', (array_agg(next_after))[count(*)]) " +
							rows;
			break;
		case Operation::kNothing:
			statement.sql = "SELECT FROM " + from;
			break;
	}
	return statement;
}

} // namespace gateway
