// Tables for people.
#include "command.hpp"

#include <algorithm>
#include <iostream>

namespace cli
{

namespace
{

constexpr std::size_t kMaxCell = 60;
constexpr int kMaxColumns = 12; // one row with more is printed line by line

// Columns of a text in UTF-8, one for each character.
std::size_t width(std::string_view text)
{
	return std::size_t(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// A text of several lines, without what a terminal would obey.
std::string lines(std::string_view text)
{
	std::string shown(text);
	for (char &c : shown)
		c = is_control(c) && c != '\n' && c != '\t' ? ' ' : c;
	return shown;
}

std::string cell(std::string_view text)
{
	std::string shown;
	std::size_t columns = 0;
	for (char c : text)
	{
		const bool begins = (c & 0xc0) != 0x80;
		if (begins && columns == kMaxCell)
			return shown + "...";
		columns += begins;
		shown += is_control(c) ? ' ' : c;
	}
	return shown;
}

} // namespace

void print_table(const tq::Result &rows)
{
	const int columns = rows.columns();
	if (rows.rows() == 1 && columns > kMaxColumns)
	{
		for (int column = 0; column < columns; ++column)
			std::cout << rows.column_name(column) << ": " << lines(rows.text(0, column)) << "\n";
		return;
	}
	std::vector<std::size_t> widths;
	for (int column = 0; column < columns; ++column)
	{
		widths.push_back(width(rows.column_name(column)));
		for (int row = 0; row < rows.rows(); ++row)
			widths.back() = std::max(widths.back(), width(cell(rows.text(row, column))));
	}
	for (int row = -1; row < rows.rows(); ++row)
	{
		std::string line;
		for (int column = 0; column < columns; ++column)
		{
			const std::string text = row < 0 ? std::string(rows.column_name(column)) : cell(rows.text(row, column));
			line += text;
			line.append(widths[std::size_t(column)] - width(text) + 2, ' ');
		}
		line.erase(line.find_last_not_of(' ') + 1);
		std::cout << line << "\n";
	}
}

} // namespace cli
