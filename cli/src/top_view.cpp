// Lays out tq top: three panels of rows. Columns that do not fit are left out, the least important first.
#include "top_view.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cwchar>
#include <langinfo.h>

namespace cli
{

namespace
{

struct Column
{
	std::string title;
	int width;		  // at least
	int importance;	  // the column with the least goes first
	bool right;		  // numbers
	int longest = 0;  // width that it takes if there is room
	bool end = false; // a cell that is too long keeps its end
};

struct Row
{
	std::string key;
	std::vector<std::string> cells;
	bool warning = false;
};

struct Table
{
	std::vector<Column> columns;
	std::vector<Row> rows;
	std::string error; // instead of rows
	const char *none;  // without rows
};

bool is_utf8()
{
	static const bool utf8 = std::string_view(nl_langinfo(CODESET)) == "UTF-8";
	return utf8;
}

// Takes one character off the text: its columns, and its bytes. A byte that the terminal must not get is "?".
std::pair<int, std::string_view> next_character(std::string_view &text)
{
	std::mbstate_t state{};
	wchar_t character = 0;
	const std::size_t size = std::mbrtowc(&character, text.data(), text.size(), &state);
	const bool valid = size != std::size_t(-1) && size != std::size_t(-2) && size != 0;
	const int columns = valid ? wcwidth(character) : -1;
	const std::string_view bytes = columns < 0 ? "?" : text.substr(0, size);
	text.remove_prefix(valid ? size : 1);
	// one "?" for a character of UTF-8 that the locale does not have
	if (!valid && !is_utf8())
		while (!text.empty() && (text.front() & 0xc0) == 0x80)
			text.remove_prefix(1);
	return {std::max(columns, columns < 0 ? 1 : 0), bytes};
}

int width_of(std::string_view text)
{
	int width = 0;
	while (!text.empty())
		width += next_character(text).first;
	return width;
}

std::string printed(const char *format, double number)
{
	char text[32];
	std::snprintf(text, sizeof(text), format, number);
	return text;
}

// At most 5 characters.
std::string count(double number)
{
	if (number < 99999.5)
		return printed("%.0f", number);
	const char *units[] = {"%.0fk", "%.0fM", "%.0fG", "%.0fT"};
	std::size_t unit = 0;
	for (number /= 1000; number >= 999.5 && unit < 3; ++unit)
		number /= 1000;
	return printed(units[unit], number);
}

std::string rate(std::optional<double> per_second)
{
	if (!per_second)
		return "-";
	return *per_second == 0 ? "0" : *per_second < 9.95 ? printed("%.1f", *per_second) : count(*per_second);
}

// At most 5 characters.
std::string length(Seconds seconds)
{
	if (!seconds)
		return "-";
	const double s = std::fabs(*seconds);
	const std::string sign = *seconds < 0 ? "-" : "";
	if (s < 0.9995)
		return sign + printed("%.0fms", s * 1000);
	if (s < 9.95)
		return sign + printed("%.1fs", s);
	if (s < 99.5)
		return sign + printed("%.0fs", s);
	if (s < 99.5 * 60)
		return sign + printed("%.0fm", s / 60);
	return sign + (s < 99.5 * 3600 ? printed("%.0fh", s / 3600) : printed("%.0fd", s / 86400));
}

std::string percentiles(Seconds half, Seconds most) { return half || most ? length(half) + "/" + length(most) : "-"; }

// The whole seconds that are left, so that a countdown reaches 0.
std::string countdown(Seconds seconds)
{
	if (!seconds)
		return "-";
	return std::fabs(*seconds) < 1000 ? printed("%.0fs", std::floor(*seconds)) : length(seconds);
}

constexpr int kMinutes = 60; // that a series has

// One character for each minute, relative to the greatest.
std::string sparkline(const std::vector<std::int64_t> &counts)
{
	static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
	static const char *const letters[] = {".", ":", "-", "=", "+", "*", "%", "#"};
	const auto &marks = is_utf8() ? blocks : letters;
	std::int64_t most = 0;
	for (std::int64_t n : counts)
		most = std::max(most, n);
	std::string line;
	for (std::int64_t n : counts)
		line += n <= 0 ? " " : marks[std::min<std::int64_t>(7, (n * 8 - 1) / most)];
	return line;
}

// The end of a text whose characters have one column each.
std::string_view last_columns(std::string_view text, int width)
{
	for (int excess = width_of(text) - width; excess > 0; --excess)
		next_character(text);
	return text;
}

Table queues_of(const Reading &reading)
{
	Table table{{{"QUEUE", 14, 10, false, 40},
				 {"IN/s", 5, 8, true},
				 {"OUT/s", 5, 8, true},
				 {"READY", 5, 9, true},
				 {"LATER", 5, 1, true},
				 {"RUN", 5, 7, true},
				 {"OLDEST", 6, 6, true},
				 {"WAIT 50/99%", 11, 5, true},
				 {"RUN 50/99%", 11, 4, true},
				 {"MINUTES", 8, 3, false, kMinutes, true}},
				{},
				reading.queues_error,
				"no queues"};
	for (const QueueLine &queue : reading.queues)
	{
		const std::string mark = queue.paused ? "[paused] " : queue.state != "active" ? "[" + queue.state + "] " : "";
		table.rows.push_back(
			{queue.name,
			 {mark + queue.name, rate(queue.enqueued), rate(queue.finished), count(double(queue.ready)),
			  count(double(queue.delayed + queue.blocked)), count(double(queue.running)), length(queue.oldest),
			  percentiles(queue.wait_p50, queue.wait_p99), percentiles(queue.run_p50, queue.run_p99),
			  sparkline(queue.claimed)},
			 queue.paused});
	}
	return table;
}

Table jobs_of(const Reading &reading)
{
	Table table{{{"JOB", 8, 10, true, 16},
				 {"QUEUE", 8, 9, false, 40},
				 {"KIND", 8, 3, false, 30},
				 {"WORKER", 8, 5, false, 40},
				 {"TRY", 3, 2, true},
				 {"LEASE", 5, 8, true},
				 {"RUNS", 5, 6, true},
				 {"PROGRESS", 10, 7, false, 60}},
				{},
				reading.jobs_error,
				"no running jobs"};
	for (const JobLine &job : reading.jobs)
		table.rows.push_back(
			{std::to_string(job.id),
			 {std::to_string(job.id), job.queue, job.kind, job.worker, job.attempt, countdown(job.lease),
			  length(job.runs), (job.cancel_asked ? "[cancel] " : "") + job.progress},
			 job.cancel_asked || (job.lease && *job.lease < 0)});
	return table;
}

Table workers_of(const Reading &reading)
{
	Table table{{{"WORKER", 12, 10, false, 60},
				 {"HOLDS", 6, 9, true},
				 {"CLAIMED", 8, 6, true},
				 {"SEEN", 6, 8, true},
				 {"STATE", 8, 7, false}},
				{},
				reading.workers_error,
				"no workers"};
	for (const WorkerLine &worker : reading.workers)
		table.rows.push_back({worker.name,
							  {worker.name, std::to_string(worker.running), count(double(worker.claimed)),
							   length(worker.seen), worker.draining ? "draining" : "active"},
							  worker.draining});
	return table;
}

constexpr int kGap = 1, kMargin = 2;

// Leaves out columns until the others fit, and gives them what is left over.
std::vector<std::size_t> choose_columns(Table &table, int width)
{
	std::vector<std::size_t> shown;
	for (std::size_t i = 0; i < table.columns.size(); ++i)
		shown.push_back(i);
	const auto used = [&table, &shown] {
		int sum = kMargin - kGap;
		for (std::size_t i : shown)
			sum += table.columns[i].width + kGap;
		return sum;
	};
	while (shown.size() > 1 && used() > width)
		shown.erase(std::min_element(shown.begin(), shown.end(), [&table](std::size_t a, std::size_t b) {
			return table.columns[a].importance < table.columns[b].importance;
		}));
	int left = width - used();
	for (std::size_t i : shown)
	{
		Column &column = table.columns[i];
		int wanted = 0;
		for (const Row &row : table.rows)
			wanted = std::max(wanted, width_of(row.cells[i]));
		const int more = std::clamp(std::min(wanted, column.longest) - column.width, 0, std::max(left, 0));
		column.width += more;
		left -= more;
	}
	return shown;
}

std::string row_text(const Table &table, const std::vector<std::size_t> &shown, const Row *row, std::string text)
{
	for (std::size_t i : shown)
	{
		const Column &column = table.columns[i];
		const std::string &cell = row ? row->cells[i] : column.title;
		text += fit(column.end ? last_columns(cell, column.width) : std::string_view(cell), column.width, column.right);
		text.append(kGap, ' ');
	}
	return text;
}

// A title and `height` - 1 rows. place: null for a panel without selection.
void draw_table(std::vector<Line> &lines, Table table, View::Place *place, bool focus, int width, int height)
{
	const std::vector<std::size_t> shown = choose_columns(table, width);
	const int rows = int(table.rows.size()), room = height - 1;
	if (place)
	{
		const auto found = std::find_if(table.rows.begin(), table.rows.end(),
										[place](const Row &row) { return row.key == place->selected; });
		place->at = found != table.rows.end() ? int(found - table.rows.begin())
											  : std::clamp(place->at, 0, std::max(rows - 1, 0));
		place->selected = rows > 0 ? table.rows[std::size_t(place->at)].key : "";
		place->top = std::clamp(place->top, place->at - room + 1, place->at);
		place->top = std::clamp(place->top, 0, std::max(rows - room, 0));
	}
	lines.push_back({fit(row_text(table, shown, nullptr, focus ? "* " : "  "), width), Style::kTitle});
	const int top = place ? place->top : 0;
	for (int i = top; i < std::min(rows, top + room); ++i)
	{
		const Row &row = table.rows[std::size_t(i)];
		const bool selected = place && focus && i == place->at;
		lines.push_back({fit(row_text(table, shown, &row, selected ? "> " : "  "), width), selected ? Style::kSelected
																						   : row.warning
																							   ? Style::kWarning
																							   : Style::kPlain});
	}
	if (rows == 0 && room > 0)
		lines.push_back({fit("  " + (table.error.empty() ? table.none : table.error), width),
						 table.error.empty() ? Style::kPlain : Style::kError});
}

std::string headline(const Reading &reading)
{
	return "tq top  " + reading.database + " as " + reading.role + "  " + reading.time + "  " +
		   std::to_string(reading.queues.size()) + " queues, " + std::to_string(reading.jobs.size()) + " running, " +
		   std::to_string(reading.workers.size()) + " workers";
}

Line last_line(const Reading &reading, const View &view, int width)
{
	if (!view.lost.empty())
		return {fit("connection lost, trying again: " + view.lost, width), Style::kError};
	if (!view.question.empty())
		return {fit(view.question, width), Style::kTitle};
	if (!view.message.empty())
		return {fit(view.message, width), view.failed ? Style::kError : Style::kPlain};
	if (!reading.error.empty())
		return {fit(reading.error, width), Style::kError};
	return {fit("Tab panel  Enter look  p pause  d drain  c cancel  ? help  q quit", width), Style::kTitle};
}

} // namespace

std::string fit(std::string_view text, int width, bool right)
{
	if (right && width_of(text) > width) // digits are not cut
		return std::string(std::size_t(std::max(width, 0)), '*');
	std::string line;
	int used = 0;
	while (!text.empty())
	{
		const auto [columns, bytes] = next_character(text);
		if (used + columns > width)
			break;
		line += bytes;
		used += columns;
	}
	line.insert(right ? 0 : line.size(), std::size_t(std::max(width - used, 0)), ' ');
	return line;
}

std::vector<Line> draw(const Reading &reading, View &view, int width, int height)
{
	std::array<Table, kPanels> tables = {queues_of(reading), jobs_of(reading), workers_of(reading)};
	const int room = std::max(height - 2, 0);
	std::array<int, kPanels> wanted{}, heights{};
	for (int i = 0; i < kPanels; ++i)
		wanted[std::size_t(i)] = 1 + std::max(1, int(tables[std::size_t(i)].rows.size()));
	int left = room;
	if (room >= 2 * kPanels)
	{
		// a third for each, and what one does not need goes to the others
		for (std::size_t i = 0; i < kPanels; ++i)
			left -= heights[i] = std::min(wanted[i], room / kPanels);
		for (std::size_t i = 0; i < kPanels; ++i)
		{
			const int more = std::min(wanted[i] - heights[i], left);
			heights[i] += more;
			left -= more;
		}
	}
	else
		heights[view.focus] = room;
	std::vector<Line> lines = {{fit(headline(reading), width), Style::kPlain}};
	for (std::size_t i = 0; i < kPanels; ++i)
		if (heights[i] > 0)
			draw_table(lines, std::move(tables[i]), &view.places[i], view.focus == Panel(i), width, heights[i]);
	lines.resize(std::size_t(std::max(height - 1, 0)));
	lines.push_back(last_line(reading, view, width));
	return lines;
}

std::vector<Line> draw_all(const Reading &reading, int width)
{
	std::vector<Line> lines = {{headline(reading), Style::kPlain}};
	for (Table table : {queues_of(reading), jobs_of(reading), workers_of(reading)})
	{
		lines.push_back({});
		const int height = 2 + int(table.rows.size());
		draw_table(lines, std::move(table), nullptr, false, width, height);
	}
	if (!reading.error.empty())
		lines.push_back({reading.error, Style::kError});
	return lines;
}

std::vector<Line> draw_text(const std::string &title, const std::vector<std::string> &text, int &top, int width,
							int height)
{
	std::vector<std::string> wrapped;
	for (const std::string &paragraph : text)
	{
		std::string line;
		int used = 0;
		for (std::string_view rest = paragraph; !rest.empty();)
		{
			const bool ends = rest.front() == '\n';
			const auto [columns, bytes] = next_character(rest);
			if (ends || used + columns > width)
			{
				wrapped.push_back(std::move(line));
				line.clear();
				used = 0;
			}
			if (!ends)
			{
				line += bytes;
				used += columns;
			}
		}
		wrapped.push_back(std::move(line));
	}
	const int room = std::max(height - 2, 0);
	top = std::clamp(top, 0, std::max(int(wrapped.size()) - room, 0));
	std::vector<Line> lines = {{fit(title, width), Style::kTitle}};
	for (int i = top; i < std::min(int(wrapped.size()), top + room); ++i)
		lines.push_back({fit(wrapped[std::size_t(i)], width)});
	lines.resize(std::size_t(std::max(height - 1, 0)));
	lines.push_back({fit("arrows scroll  q back", width), Style::kTitle});
	return lines;
}

} // namespace cli
