// What the typed calls share.
#pragma once

#include <tq/calls.hpp>

namespace tq::detail
{

template <class T>
Value unless_empty(const std::vector<T> &elements)
{
	return elements.empty() ? std::nullopt : value(elements);
}

// A flag that older versions of a function lack.
inline Value if_set(bool flag) { return flag ? value(true) : std::nullopt; }

// The arguments of tq_enqueue, and those that say which lease of which job is meant.
std::vector<Argument> enqueue_arguments(const std::string &queue, const std::string &payload,
										const EnqueueOptions &options);
std::vector<Argument> job_arguments(std::int64_t id, std::int64_t lease);

// Marks a statement that is worth preparing; see prepare_if_direct.
Statement often(Statement statement);

// The reads of a result of one row.
Task<> ignore(Connection &connection, Statement statement);
Task<std::string> text_of(Connection &connection, Statement statement);
Task<bool> flag_of(Connection &connection, Statement statement);
Task<std::int64_t> number_of(Connection &connection, Statement statement);

// Calls read(rows, row) for each row.
template <class Read>
auto rows_of(Connection &connection, Statement statement, Read read)
	-> Task<std::vector<std::invoke_result_t<Read, const Result &, int>>>
{
	const Result rows = co_await connection.query(std::move(statement));
	std::vector<std::invoke_result_t<Read, const Result &, int>> list;
	for (int row = 0; row < rows.rows(); ++row)
		list.push_back(read(rows, row));
	co_return list;
}

// The elements of an array; none if it is null.
std::vector<std::string> texts_of(const Value &array);

// Of the columns id and status.
Task<std::vector<JobStatus>> statuses_of(Connection &connection, Statement statement);

} // namespace tq::detail
