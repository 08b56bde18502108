// Text representations of arguments and results.
#include <tq/result.hpp>

#include <charconv>
#include <cstring>
#include <stdexcept>

#include <libpq-fe.h>

namespace tq
{

namespace
{

std::string seconds(std::chrono::microseconds length)
{
	const bool negative = length.count() < 0;
	const auto count = negative ? -length.count() : length.count();
	std::string fraction = std::to_string(count % 1000000);
	fraction.insert(0, 6 - fraction.size(), '0');
	return (negative ? "-" : "") + std::to_string(count / 1000000) + "." + fraction;
}

void append_quoted(std::string &array, const std::string &text)
{
	array += '"';
	for (char c : text)
	{
		if (c == '"' || c == '\\')
			array += '\\';
		array += c;
	}
	array += '"';
}

template <class Elements, class Append>
Value array_of(const Elements &elements, Append append)
{
	std::string array = "{";
	for (const auto &element : elements)
	{
		if (array.size() > 1)
			array += ',';
		append(array, element);
	}
	array += '}';
	return array;
}

} // namespace

Value value(Duration length) { return seconds(length) + " s"; }

Value value(Time time)
{
	// an exact representation: microseconds since 1970 in UTC
	using namespace std::chrono;
	const auto since = duration_cast<microseconds>(time.time_since_epoch());
	const auto day = floor<days>(since);
	const year_month_day date{sys_days(day)};
	const auto rest = since - day;
	char text[64];
	std::snprintf(text, sizeof text, "%04d-%02u-%02u %02d:%02d:%02d.%06d+00", int(date.year()), unsigned(date.month()),
				  unsigned(date.day()), int(duration_cast<hours>(rest).count()),
				  int(duration_cast<minutes>(rest).count() % 60),
				  int(duration_cast<std::chrono::seconds>(rest).count() % 60), int(rest.count() % 1000000));
	return std::string(text);
}

Value value(const std::vector<std::string> &texts) { return array_of(texts, append_quoted); }

Value value(const std::vector<Value> &texts)
{
	return array_of(texts, [](std::string &array, const Value &text) {
		if (text)
			append_quoted(array, *text);
		else
			array += "NULL";
	});
}

Value value(const std::vector<std::int64_t> &numbers)
{
	return array_of(numbers, [](std::string &array, std::int64_t number) { array += std::to_string(number); });
}

Result::Result(pg_result *result) : result_(result, PQclear), rows_(PQntuples(result)) {}

int Result::columns() const noexcept { return result_ ? PQnfields(result_.get()) : 0; }

std::string_view Result::column_name(int column) const { return PQfname(result_.get(), column); }

int Result::column(std::string_view name) const
{
	for (int i = 0; i < columns(); ++i)
	{
		if (name == column_name(i))
			return i;
	}
	throw std::out_of_range("the result has no column " + std::string(name));
}

bool Result::null(int row, int column) const { return PQgetisnull(result_.get(), row, column) != 0; }

std::string_view Result::text(int row, int column) const
{
	return {PQgetvalue(result_.get(), row, column), std::size_t(PQgetlength(result_.get(), row, column))};
}

std::optional<std::string> Result::optional_text(int row, int column) const
{
	if (null(row, column))
		return std::nullopt;
	return std::string(text(row, column));
}

std::int64_t Result::integer(int row, int column) const
{
	const std::string_view digits = text(row, column);
	std::int64_t number = 0;
	const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
	if (error != std::errc() || end != digits.data() + digits.size())
		throw std::invalid_argument("column " + std::string(column_name(column)) +
									" is not a number: " + std::string(digits));
	return number;
}

std::optional<std::int64_t> Result::optional_integer(int row, std::string_view name) const
{
	const int number = column(name);
	if (null(row, number))
		return std::nullopt;
	return integer(row, number);
}

std::optional<Time> Result::time(int row, int column) const
{
	if (null(row, column))
		return std::nullopt;
	const std::string_view digits = text(row, column);
	std::int64_t whole = 0;
	auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), whole);
	if (error != std::errc())
		return std::nullopt; // infinity
	// nanoseconds since 1970 fit until 2262
	constexpr std::int64_t kMost = std::chrono::duration_cast<std::chrono::seconds>(Time::duration::max()).count();
	if (whole >= kMost)
		return Time::max();
	if (whole <= -kMost)
		return Time::min();
	std::int64_t micros = 0;
	if (end != digits.data() + digits.size())
		++end; // the point
	for (int digit = 0; digit < 6; ++digit)
		micros = micros * 10 + (end != digits.data() + digits.size() ? *end++ - '0' : 0);
	const bool negative = !digits.empty() && digits.front() == '-';
	return Time(std::chrono::microseconds(whole * 1000000 + (negative ? -micros : micros)));
}

std::vector<Value> parse_array(std::string_view array)
{
	std::vector<Value> elements;
	if (array.size() < 2 || array.front() != '{' || array.back() != '}')
		throw std::invalid_argument("not an array of PostgreSQL: " + std::string(array));
	array = array.substr(1, array.size() - 2);
	std::size_t at = 0;
	while (at < array.size())
	{
		std::string element;
		const bool quoted = array[at] == '"';
		if (quoted)
			++at;
		while (at < array.size() && (quoted ? array[at] != '"' : array[at] != ','))
		{
			if (array[at] == '\\' && at + 1 < array.size())
				++at;
			element += array[at++];
		}
		if (quoted)
			++at; // the closing quote
		++at;	  // the comma
		if (!quoted && element == "NULL")
			elements.emplace_back();
		else
			elements.emplace_back(std::move(element));
	}
	return elements;
}

} // namespace tq
