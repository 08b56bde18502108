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

Task<std::vector<JobStatus>> statuses_of(Connection &connection, Statement statement)
{
	const Result rows = co_await connection.query(std::move(statement));
	std::vector<JobStatus> jobs;
	for (int row = 0; row < rows.rows(); ++row)
		jobs.push_back({rows.integer(row, "id"), std::string(rows.text(row, "status"))});
	co_return jobs;
}

} // namespace tq::detail
