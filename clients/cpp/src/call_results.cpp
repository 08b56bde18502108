#include "call_results.hpp"

namespace tq::detail
{

Statement often(Statement statement)
{
	statement.often = true;
	return statement;
}

Task<> ignore(Connection &connection, Statement statement) { co_await connection.query(std::move(statement)); }

Task<std::string> text_of(Connection &connection, Statement statement)
{
	const Result result = co_await connection.query(std::move(statement));
	co_return std::string(result.text(0, 0));
}

Task<bool> flag_of(Connection &connection, Statement statement)
{
	const std::string text = co_await text_of(connection, std::move(statement));
	co_return text == "t";
}

Task<std::int64_t> number_of(Connection &connection, Statement statement)
{
	const std::string text = co_await text_of(connection, std::move(statement));
	co_return std::stoll(text);
}

std::vector<std::string> texts_of(const Value &array)
{
	std::vector<std::string> texts;
	for (Value &text : parse_array(array.value_or("{}")))
		texts.push_back(std::move(text).value_or(""));
	return texts;
}

Task<std::vector<JobStatus>> statuses_of(Connection &connection, Statement statement)
{
	return rows_of(connection, std::move(statement), [](const Result &rows, int row) {
		return JobStatus{rows.integer(row, "id"), std::string(rows.text(row, "status"))};
	});
}

} // namespace tq::detail
