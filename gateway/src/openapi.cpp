#include "openapi.hpp"

#include "operation.hpp"
#include "text.hpp"

#include <boost/json.hpp>

#include <algorithm>

namespace json = boost::json;

namespace gateway
{

namespace
{

json::object schema_of(std::string type, bool may_be_null)
{
	if (type.ends_with("[]"))
	{
		type.resize(type.size() - 2);
		json::object array{{"type", "array"}, {"items", schema_of(type, true)}};
		if (may_be_null)
			array["type"] = {"array", "null"};
		return array;
	}
	json::object schema;
	const char *name = "string";
	if (type == "jsonb")
		return {{"description", "any JSON"}};
	if (type == "leases")
		return {{"type", "array"}, {"items", {{"type", "string"}, {"pattern", "^[0-9]+\\.[0-9]+$"}}}};
	if (type == "int" || type == "bigint")
	{
		name = "integer";
		schema["format"] = type == "int" ? "int32" : "int64";
	}
	else if (type == "boolean")
		name = "boolean";
	else if (type == "timestamptz")
		schema["format"] = "date-time";
	else if (type == "interval")
		schema["description"] = "an interval as PostgreSQL reads it, such as 10 min or PT10M";
	else if (type == "lease")
		schema["pattern"] = "^[0-9]+\\.[0-9]+$";
	if (may_be_null)
		schema["type"] = {name, "null"};
	else
		schema["type"] = name;
	return schema;
}

// PostgreSQL also has infinity where a time is expected.
json::object schema_of_column(const Column &column)
{
	json::object schema = schema_of(column.type, column.type != "lease");
	schema.erase(column.type == "timestamptz" ? "format" : "");
	return schema;
}

json::object object_of(const Columns &columns)
{
	json::object properties;
	json::array required;
	for (const Column &column : columns)
	{
		properties[column.name] = schema_of_column(column);
		required.push_back(json::value(column.name));
	}
	return {{"type", "object"}, {"properties", properties}, {"required", required}};
}

json::object content(const char *type, json::value schema) { return {{type, {{"schema", std::move(schema)}}}}; }

json::object answer_of(const Operation &operation)
{
	json::object answer{{"description", operation.summary}};
	switch (operation.way)
	{
		case Operation::kMetrics:
		case Operation::kText:
			answer["content"] = content("text/plain", {{"type", "string"}});
			return answer;
		case Operation::kChanges:
			answer["content"] = content("text/event-stream", {{"type", "string"}});
			return answer;
		case Operation::kDescribe:
		case Operation::kAlive:
		case Operation::kReady:
			answer["content"] = content("application/json", {{"type", "object"}});
			return answer;
		default:
			break;
	}
	if (operation.shape == Operation::kNothing)
		return answer;
	json::object schema = object_of(operation.columns);
	if (operation.way == Operation::kEnqueue)
	{
		// with wait, the job as GET shows it
		const json::object job = object_of(operation_named("get_job").columns);
		for (const auto &[name, of_column] : job.at("properties").as_object())
			schema["properties"].as_object().emplace(name, of_column);
		schema["required"] = json::array{"id"};
	}
	if (operation.shape != Operation::kRow)
	{
		json::object properties{{operation.rows, {{"type", "array"}, {"items", schema}}}};
		json::array required{operation.rows};
		if (operation.shape == Operation::kPage)
		{
			properties["next_after"] = schema_of("bigint", true);
			required.push_back("next_after");
		}
		schema = {{"type", "object"}, {"properties", properties}, {"required", required}};
	}
	answer["content"] = content("application/json", schema);
	return answer;
}

json::object operation_of(const Operation &operation)
{
	json::array parameters;
	json::object properties;
	json::array required;
	for (const Field &field : operation.fields)
	{
		json::object schema = schema_of(field.type, field.in == Field::kBody && !field.required);
		if (field.in == Field::kBody)
		{
			if (!schema.contains("description"))
				schema["description"] = field.help;
			properties[field.name] = schema;
			if (field.required)
				required.push_back(field.name);
			continue;
		}
		parameters.push_back({{"name", field.name},
							  {"in", field.in == Field::kPath ? "path" : "query"},
							  {"required", field.required},
							  {"description", field.help},
							  {"schema", schema}});
	}
	json::object result{{"operationId", operation.name}, {"summary", operation.summary}};
	if (operation.way == Operation::kChanges)
		parameters.push_back({{"name", "Last-Event-ID"},
							  {"in", "header"},
							  {"required", false},
							  {"description", "continue after this event"},
							  {"schema", {{"type", "string"}}}});
	if (operation.once)
		parameters.push_back({{"name", "Idempotency-Key"},
							  {"in", "header"},
							  {"required", false},
							  {"description", "the same key of the same role within 24 h gives the same ids"},
							  {"schema", {{"type", "string"}, {"maxLength", 255}}}});
	if (!parameters.empty())
		result["parameters"] = parameters;
	if (!properties.empty())
	{
		json::object body{{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
		if (!required.empty())
			body["required"] = required;
		result["requestBody"] = {{"required", !required.empty()}, {"content", content("application/json", body)}};
	}
	json::object answers{{std::to_string(operation.status), answer_of(operation)}};
	if (operation.way == Operation::kEnqueue)
		answers["200"] = answer_of(operation);
	if (operation.way == Operation::kDefine)
		answers["201"] = {{"description", "The queue was created"}};
	answers["default"] = {{"$ref", "#/components/responses/problem"}};
	result["responses"] = answers;
	if (operation.open)
		result["security"] = json::array{};
	return result;
}

std::string described()
{
	json::object paths;
	for (const Operation &operation : kOperations)
	{
		const std::string method = lower(operation.method);
		if (!paths.contains(operation.path))
			paths[operation.path] = json::object{};
		paths[operation.path].as_object()[method] = operation_of(operation);
	}
	const json::object problem{{"type", "object"},
							   {"properties",
								{{"status", schema_of("int", false)},
								 {"title", schema_of("text", false)},
								 {"detail", schema_of("text", false)},
								 {"hint", schema_of("text", false)},
								 {"code", {{"type", "string"}, {"description", "the SQLSTATE"}}}}},
							   {"required", {"status", "title", "detail"}}};
	return json::serialize(json::object{
		{"openapi", "3.1.0"},
		{"info",
		 {{"title", "tq"},
		  {"version", TQ_VERSION},
		  {"description", "A task queue inside PostgreSQL. Names and meanings are those of its SQL functions."},
		  {"license", {{"name", "PostgreSQL"}, {"identifier", "PostgreSQL"}}}}},
		{"paths", paths},
		{"components",
		 {{"responses",
		   {{"problem", {{"description", "Refused"}, {"content", content("application/problem+json", problem)}}}}},
		  {"securitySchemes", {{"token", {{"type", "http"}, {"scheme", "bearer"}}}}}}},
		{"security", json::array{json::object{{"token", json::array{}}}, json::object{}}}});
}

} // namespace

const std::string &openapi()
{
	static const std::string text = described();
	return text;
}

} // namespace gateway
