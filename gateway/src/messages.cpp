#include "messages.hpp"

#include "raw_json.hpp"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace pb = google::protobuf;

namespace gateway
{

namespace
{

// One value of a field: the element `at` of a repeated one. As JSON if the call takes JSON there.
std::string value_of(const pb::Message &message, const pb::FieldDescriptor &field, int at)
{
	const pb::Reflection &reflection = *message.GetReflection();
	const bool repeated = field.is_repeated();
	switch (field.cpp_type())
	{
		case pb::FieldDescriptor::CPPTYPE_INT32:
			return std::to_string(repeated ? reflection.GetRepeatedInt32(message, &field, at)
										   : reflection.GetInt32(message, &field));
		case pb::FieldDescriptor::CPPTYPE_INT64:
			return std::to_string(repeated ? reflection.GetRepeatedInt64(message, &field, at)
										   : reflection.GetInt64(message, &field));
		case pb::FieldDescriptor::CPPTYPE_BOOL:
			return reflection.GetBool(message, &field) ? "true" : "false";
		default:
			return repeated ? reflection.GetRepeatedString(message, &field, at) : reflection.GetString(message, &field);
	}
}

// Of a field of a body.
std::string json_of(const pb::Message &message, const pb::FieldDescriptor &field, std::string type)
{
	const bool is_text = field.cpp_type() == pb::FieldDescriptor::CPPTYPE_STRING && !type.starts_with("jsonb");
	const auto one = [&](int at) {
		const std::string text = value_of(message, field, at);
		return is_text ? quoted(text) : text;
	};
	if (!field.is_repeated())
		return one(0);
	std::string text;
	for (int at = 0; at < message.GetReflection()->FieldSize(message, &field); ++at)
		text += (at > 0 ? "," : "") + one(at);
	return "[" + text + "]";
}

std::int64_t number(const std::string &text)
{
	std::int64_t value = 0;
	std::from_chars(text.data(), text.data() + text.size(), value);
	return value;
}

bool is_json(const Operation &operation, const std::string &name)
{
	return std::any_of(operation.columns.begin(), operation.columns.end(),
					   [&name](const Column &column) { return column.name == name && column.type == "jsonb"; });
}

void set(const Operation &operation, pb::Message &into, const pb::FieldDescriptor &field, const Raw &value)
{
	const pb::Reflection &reflection = *into.GetReflection();
	const bool repeated = field.is_repeated();
	switch (field.cpp_type())
	{
		case pb::FieldDescriptor::CPPTYPE_INT32:
			reflection.SetInt32(&into, &field, std::int32_t(number(value.text)));
			return;
		case pb::FieldDescriptor::CPPTYPE_INT64:
			reflection.SetInt64(&into, &field, number(value.text));
			return;
		case pb::FieldDescriptor::CPPTYPE_BOOL:
			reflection.SetBool(&into, &field, value.text == "true");
			return;
		case pb::FieldDescriptor::CPPTYPE_MESSAGE:
			read_answer(operation, value.text,
						repeated ? *reflection.AddMessage(&into, &field)
								 : *reflection.MutableMessage(&into, &field));
			return;
		default:
			break;
	}
	const bool decoded = value.kind == Raw::kString && !is_json(operation, field.name());
	std::string text = decoded ? value.string : value.text;
	if (repeated)
		reflection.AddString(&into, &field, std::move(text));
	else
		reflection.SetString(&into, &field, std::move(text));
}

} // namespace

void write_request(const pb::Message &from, Route &route, Request &request)
{
	const pb::Descriptor &descriptor = *from.GetDescriptor();
	const pb::Reflection &reflection = *from.GetReflection();
	std::string body;
	for (const Field &field : route.operation->fields)
	{
		const std::string name = std::strcmp(field.type, "lease") == 0 ? "lease" : field.name;
		const pb::FieldDescriptor *found = descriptor.FindFieldByName(name);
		if (!found)
			continue;
		const bool given = found->is_repeated()	   ? field.required || reflection.FieldSize(from, found) > 0
						   : found->has_presence() ? reflection.HasField(from, found)
												   : true;
		if (!given)
			continue;
		if (field.in == Field::kPath)
			route.parts[field.name] = value_of(from, *found, 0);
		else if (field.in == Field::kQuery)
			request.query[field.name] = value_of(from, *found, 0);
		else
			body += (body.empty() ? "" : ",") + quoted(field.name) + ":" + json_of(from, *found, field.type);
	}
	if (const pb::FieldDescriptor *key = descriptor.FindFieldByName("idempotency_key"); key)
		request.headers["idempotency-key"] = value_of(from, *key, 0);
	request.body = "{" + body + "}";
	request.headers["content-type"] = "application/json";
}

void read_answer(const Operation &operation, const std::string &body, pb::Message &into)
{
	if (body.empty())
		return;
	for (const auto &[name, value] : members_of(body, kDepthOfAnswer))
	{
		const pb::FieldDescriptor *field = into.GetDescriptor()->FindFieldByName(name);
		if (!field || value.kind == Raw::kNull)
			continue;
		if (!field->is_repeated())
		{
			set(operation, into, *field, value);
			continue;
		}
		for (const Raw &one : elements_of(value.text, kDepthOfAnswer))
			set(operation, into, *field, one);
	}
}

} // namespace gateway
