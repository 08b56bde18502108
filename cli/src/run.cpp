// Runs the commands of the table.
#include "command.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string_view>

namespace cli
{

namespace
{

std::string dashed(std::string name)
{
	for (char &c : name)
		c = c == '_' ? '-' : c;
	return name;
}

std::string upper(std::string name)
{
	for (char &c : name)
		c = char(std::toupper(c));
	return name;
}

std::string standard_input() { return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()}; }

tq::Value value_of(const Field &field, const Given &given)
{
	const auto found = given.find(field.name);
	if (found == given.end() || found->second.empty())
		return std::nullopt;
	if (field.shape == Shape::kList)
		return tq::value(found->second);
	if (field.shape == Shape::kEach)
		return tq::value(listed(found->second));
	if (found->second.front() == "-" && field.name == std::string("payload"))
		return standard_input();
	return found->second.front();
}

// Of commands with one path.
using Forms = std::span<const Command>;

const Command &form_for(Forms forms, const Given &given)
{
	for (const Command &form : forms)
	{
		const auto has = [&form](const Given::value_type &one) {
			return one.second.empty() || std::any_of(form.fields.begin(), form.fields.end(),
													 [&one](const Field &field) { return one.first == field.name; });
		};
		if (std::all_of(given.begin(), given.end(), has))
			return form;
	}
	throw std::invalid_argument(std::string("these options of tq ") + forms[0].path + " cannot be used together");
}

void add_field(CLI::App &sub, const Field &field, std::vector<std::string> &into)
{
	const auto set = [&into](const std::string &text) { into = {text}; };
	const std::string option = "--" + dashed(field.name);
	switch (field.shape)
	{
		case Shape::kRequired:
		case Shape::kOptional:
			sub.add_option_function<std::string>(upper(field.name), set, field.help)
				->required(field.shape == Shape::kRequired);
			break;
		case Shape::kSpread:
			sub.add_option(upper(field.name), into, field.help)->expected(1, 8)->required();
			break;
		case Shape::kEach:
			sub.add_option(upper(field.name), into, field.help)->required();
			break;
		case Shape::kList:
			sub.add_option(option, into, field.help)->allow_extra_args(false)->type_name(upper(field.type));
			break;
		case Shape::kOption:
			sub.add_option_function<std::string>(option, set, field.help)->type_name(upper(field.type));
			break;
		case Shape::kFlag:
			sub.add_flag_callback(
				option, [&into] { into = {"t"}; }, field.help);
			break;
	}
}

void add_command(CLI::App &app, const Global &global, Action &action, Forms forms)
{
	CLI::App *sub = add_path(app, forms[0].path, forms[0].help, forms[0].example);
	auto given = std::make_shared<Given>();
	for (const Command &form : forms)
	{
		for (const Field &field : form.fields)
		{
			const auto [place, is_new] = given->try_emplace(field.name);
			if (is_new)
				add_field(*sub, field, place->second);
		}
	}
	sub->callback([forms, &global, &action, given] {
		action = [forms, &global, given] {
			return tq::run([](const Command &what, const Global &how, Given arguments) -> tq::Task<int> {
				tq::Connection connection = co_await connect(how);
				co_await run_and_print(connection, statement_of(what, arguments), what.kind, how.json);
				co_return 0;
			}(form_for(forms, *given), global, *given));
		};
	});
}

} // namespace

std::vector<std::string> listed(const std::vector<std::string> &given)
{
	if (given.front() != "-")
		return given;
	std::vector<std::string> lines;
	for (std::string line; std::getline(std::cin, line);)
		lines.push_back(line);
	return lines;
}

tq::Statement statement_of(const Command &command, const Given &given)
{
	tq::Statement statement;
	std::string arguments;
	const bool view = command.kind == Command::kView;
	const auto add = [&](const std::string &name, const Field &field, tq::Value value) {
		if (!value)
			return;
		statement.values.push_back(std::move(value));
		arguments += arguments.empty() ? "" : view ? " AND " : ", ";
		arguments += name + (view ? " = $" : " => $") + std::to_string(statement.values.size()) + "::" + field.type;
	};
	for (const Field &field : command.fields)
	{
		if (field.shape != Shape::kSpread)
		{
			add(field.name, field, value_of(field, given));
			continue;
		}
		int number = 0;
		for (const std::string &one : given.at(field.name))
			add(field.name + (++number > 1 ? std::to_string(number) : ""), field, one);
	}
	statement.sql = std::string("SELECT ") + command.columns + " FROM " + command.source;
	if (!view)
		statement.sql += "(" + arguments + ")";
	else if (!arguments.empty())
		statement.sql += " WHERE " + arguments;
	statement.sql += std::string(" ") + command.order;
	return statement;
}

tq::Task<tq::Connection> connect(const Global &global)
{
	// the copy keeps initializer lists out of the coroutine's expression
	std::vector<std::pair<std::string, std::string>> defaults;
	if (!global.any_server)
		defaults.emplace_back("target_session_attrs", "primary");
	tq::Connection connection = co_await tq::Connection::open(global.dsn, std::move(defaults));
	connection.on_notice([](const std::string &text) { std::cerr << "tq: " << text << "\n"; });
	co_return connection;
}

tq::Task<> run_and_print(tq::Connection &connection, tq::Statement statement, Command::Kind kind, bool json)
{
	const bool one = kind == Command::kRow || kind == Command::kNothing;
	if (json)
		statement.sql = std::string("SELECT ") + (one ? "row_to_json(t)" : "coalesce(json_agg(t), '[]')") + " FROM (" +
						statement.sql + ") t";
	const tq::Result rows = co_await connection.query(statement.sql, statement.values);
	if (json && kind == Command::kNothing)
		std::cout << "{}\n";
	else if (json)
		std::cout << rows.text(0, 0) << "\n";
	else if (kind != Command::kNothing && rows.rows() == 1 && rows.columns() == 1 && one)
		std::cout << rows.text(0, 0) << "\n";
	else if (kind != Command::kNothing)
		print_table(rows);
}

CLI::App *add_path(CLI::App &app, const std::string &path, const std::string &help, const std::string &example)
{
	CLI::App *at = &app;
	std::string done;
	for (std::size_t begin = 0; begin < path.size();)
	{
		const std::size_t end = std::min(path.find(' ', begin), path.size());
		const std::string word = path.substr(begin, end - begin);
		begin = end + 1;
		done += " " + word;
		const auto found = at->get_subcommands([&word](const CLI::App *sub) { return sub->get_name() == word; });
		CLI::App *next = found.empty() ? nullptr : found.front();
		if (!next)
		{
			next = at->add_subcommand(word);
			next->fallthrough();
			next->description(begin > path.size() ? help : "Commands of tq " + word);
			if (begin <= path.size())
				next->require_subcommand(1);
		}
		at = next;
	}
	at->footer("Example:\n  tq" + done + (example.empty() ? "" : " " + example));
	return at;
}

void add_table_commands(CLI::App &app, const Global &global, Action &action)
{
	for (std::size_t first = 0, last = 0; first < kCommands.size(); first = last)
	{
		const std::string_view path = kCommands[first].path;
		while (last < kCommands.size() && path == kCommands[last].path)
			++last;
		add_command(app, global, action, Forms(kCommands).subspan(first, last - first));
	}
}

} // namespace cli
