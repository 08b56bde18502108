// Between the messages of gRPC and the calls of the REST interface, by the names of their fields.
#pragma once

#include "exchange.hpp"
#include "statement.hpp"

#include <google/protobuf/message.h>

namespace gateway
{

// Fills the parts, the query and the body of a request for an operation. A lease stands for the part "token".
void write_request(const google::protobuf::Message &from, Route &route, Request &request);

// Reads the answer of an operation into a message. Members that it has no field for are left out, nulls are not set.
// Columns that are JSON are text.
void read_answer(const Operation &operation, const std::string &body, google::protobuf::Message &into);

} // namespace gateway
