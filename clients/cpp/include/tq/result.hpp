// Arguments and results of statements. Values are text, as PostgreSQL prints them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

struct pg_result;

namespace tq
{

using Time = std::chrono::system_clock::time_point;
using Duration = std::chrono::microseconds;

// An argument: text, or null.
using Value = std::optional<std::string>;

// Each turns a value into text that PostgreSQL reads.
inline Value value(std::nullopt_t) { return std::nullopt; }
inline Value value(std::string text) { return text; }
inline Value value(std::string_view text) { return std::string(text); }
inline Value value(const char *text) { return std::string(text); }
inline Value value(bool flag) { return std::string(flag ? "t" : "f"); }
template <class Number>
requires std::is_arithmetic_v<Number> Value value(Number number) { return std::to_string(number); }
Value value(Duration length);
Value value(Time time);
// Arrays. A null element is std::nullopt.
Value value(const std::vector<std::string> &texts);
Value value(const std::vector<Value> &texts);
Value value(const std::vector<std::int64_t> &numbers);
template <class T>
Value value(const std::optional<T> &given)
{
	return given ? value(*given) : std::nullopt;
}
template <class T>
requires(!std::is_same_v<T, std::string>) Value value(const std::vector<std::optional<T>> &elements)
{
	std::vector<Value> texts;
	for (const std::optional<T> &element : elements)
		texts.push_back(value(element));
	return value(texts);
}

template <class... T>
std::vector<Value> values(const T &...given)
{
	return {value(given)...};
}

// The rows of a statement.
class Result
{
public:
	Result() = default;
	explicit Result(pg_result *result);

	int rows() const noexcept { return rows_; }
	int columns() const noexcept;
	std::string_view column_name(int column) const;
	// The number of a column. Raises std::out_of_range.
	int column(std::string_view name) const;

	bool null(int row, int column) const;
	// Empty if the value is null.
	std::string_view text(int row, int column) const;
	std::string_view text(int row, std::string_view name) const { return text(row, column(name)); }
	std::optional<std::string> optional_text(int row, int column) const;
	std::optional<std::string> optional_text(int row, std::string_view name) const
	{
		return optional_text(row, column(name));
	}
	// Raises std::invalid_argument if the value is not an integer.
	std::int64_t integer(int row, int column) const;
	std::int64_t integer(int row, std::string_view name) const { return integer(row, column(name)); }
	std::optional<std::int64_t> optional_integer(int row, std::string_view name) const;
	// Of a column with seconds since 1970, as extract(epoch FROM ...) returns them. Beyond what Time holds (1677 to
	// 2262) it is Time::min() or Time::max().
	std::optional<Time> time(int row, int column) const;
	std::optional<Time> time(int row, std::string_view name) const { return time(row, column(name)); }

private:
	std::shared_ptr<pg_result> result_;
	int rows_ = 0;
};

// The elements of a one-dimensional array. Null elements are std::nullopt.
std::vector<Value> parse_array(std::string_view array);

} // namespace tq
