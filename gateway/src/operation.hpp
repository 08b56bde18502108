// The calls of the REST interface as data: what runs them, openapi.json and the tests are made from this table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gateway
{

// An argument: a part of the path, of the query or a member of the body.
struct Field
{
	enum In
	{
		kPath,
		kQuery,
		kBody,
	};

	In in;
	const char *name;
	const char
		*type; // of SQL; or "lease" and "leases": tokens that stand for the arguments id and lease, ids and leases
	const char *help;
	bool required = false;
	const char *argument = nullptr; // how the SQL function calls it, if not by its name; of a view perhaps with "<"
	bool null = false;				// passed on as null if it is not given: the SQL function has no default
};

// A member of the answer, when that is made from rows.
struct Column
{
	std::string name;
	std::string type; // of SQL; or "lease": the token made of id and lease
};

// Written as "id bigint, state text".
class Columns : public std::vector<Column>
{
public:
	Columns(const char *text);
};

struct Operation
{
	enum Shape
	{
		kRow,	  // an object
		kRows,	  // {"NAME": [objects]}
		kPage,	  // as kRows, with next_after
		kNothing, // 204
	};
	// What runs it, if not the statement alone.
	enum Way
	{
		kCall,	   // the SQL function
		kLook,	   // a view; arguments are conditions
		kEnqueue,  // 201 or 200; with wait, when the job has ended
		kComplete, // shares commits with others of its role, as kEnqueue
		kClaim,	   // with wait, a long poll
		kWaitJob,  // with wait, when the job has ended
		kWaitJobs, // with wait, when all of the jobs have ended, or the first one
		kDefine,   // creates or changes a queue: 201 or 204
		kChanges,  // server-sent events
		kText,	   // a function that returns a text
		kDescribe, // openapi.json
		kMetrics,
		kAlive,
		kReady,
	};

	const char *method;
	const char *path; // /v1/jobs/{id}:cancel
	const char *name; // operationId
	const char *summary;
	Way way;
	Shape shape;
	const char *source; // function or view
	Columns columns;	// what it returns
	std::vector<Field> fields;
	const char *rows = "";	// the name of the member with the rows
	const char *order = ""; // of a view
	unsigned status = 200;
	bool often = false; // worth a prepared statement
	bool open = false;	// needs no credentials
	bool once = false;	// takes an Idempotency-Key
};

extern const std::vector<Operation> kOperations;

// There is one.
const Operation &operation_named(std::string_view name);

} // namespace gateway
