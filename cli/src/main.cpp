// The command tq. Exit codes: 0 done, 1 refused or found wrong, 2 wrong usage.
#include "command.hpp"

#include <CLI/CLI.hpp>
#include <boost/json.hpp>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <poll.h>

namespace
{

constexpr int kRefused = 1, kUsage = 2;

// CLI11 takes a positional in brackets for a list, and splits it at its commas: this byte behind it prevents that.
constexpr char kWhole = '\x01';

void keep_whole(std::vector<std::string> &words)
{
	for (std::string &word : words)
		if (word.starts_with('[') && word.ends_with(']'))
			word += kWhole;
}

// Lets each option take off what keep_whole() has added.
void take_whole(CLI::App &app)
{
	for (CLI::Option *option : app.get_options())
		option->transform([](std::string text) {
			if (text.ends_with(std::string{']', kWhole}))
				text.pop_back();
			return text;
		});
	for (CLI::App *sub : app.get_subcommands([](CLI::App *) { return true; }))
		take_whole(*sub);
}

// Whether standard output has taken everything. A reader that has gone, as of "tq list | head", is no error.
bool output_taken()
{
	std::cout.flush();
	pollfd out{1, 0, 0};
	return std::cout || (poll(&out, 1, 0) == 1 && (out.revents & POLLERR));
}

void print_error(const tq::Error &error, bool json)
{
	if (json)
	{
		const boost::json::object object{
			{"code", error.sqlstate()}, {"message", error.what()}, {"detail", error.detail()}, {"hint", error.hint()}};
		std::cerr << boost::json::serialize(object) << "\n";
		return;
	}
	std::cerr << "tq: " << error.what() << "\n";
	if (!error.detail().empty())
		std::cerr << "DETAIL:  " << error.detail() << "\n";
	if (!error.hint().empty())
		std::cerr << "HINT:  " << error.hint() << "\n";
}

} // namespace

int main(int count, char **arguments)
{
	std::signal(SIGPIPE, SIG_IGN);
	std::signal(SIGCHLD, SIG_DFL); // else the status of a program would be unknown
	cli::Global global;
	cli::Action action;
	CLI::App app("The command of tq, the task queue inside PostgreSQL", "tq");
	app.require_subcommand(1);
	app.fallthrough();
	app.set_version_flag("--version", "tq " TQ_VERSION);
	app.add_option("--dsn", global.dsn, "connection string or URI; else the PG* variables")->type_name("DSN");
	app.add_flag("--json", global.json, "print JSON");
	cli::add_work(app, global, action);
	cli::add_push(app, global, action);
	cli::add_table_commands(app, global, action);
	cli::add_following(app, global, action);
	cli::add_monitoring(app, global, action);
	cli::add_import(app, global, action);
	cli::add_top(app, global, action);
	cli::add_documents(app, action);

	// all words behind -- belong to the program
	std::vector<std::string> words(arguments + 1, arguments + count);
	const auto dashes = std::find(words.begin(), words.end(), "--");
	if (dashes != words.end())
		global.command.assign(dashes + 1, words.end());
	words.erase(dashes, words.end());
	keep_whole(words);
	take_whole(app);
	std::reverse(words.begin(), words.end()); // as CLI11 wants them
	try
	{
		app.parse(words);
	}
	catch (const CLI::ParseError &error)
	{
		return app.exit(error) == 0 ? 0 : kUsage;
	}
	try
	{
		if (!global.command.empty() && !app.got_subcommand("work"))
			throw std::invalid_argument("only tq work takes a program behind --");
		int code = action();
		if (!output_taken())
		{
			std::cerr << "tq: cannot write to standard output\n";
			code = std::max(code, kRefused);
		}
		std::_Exit(code); // threads of programs that were given up may still run
	}
	catch (const std::invalid_argument &error)
	{
		std::cerr << "tq: " << error.what() << "\n";
		return kUsage;
	}
	catch (const tq::Error &error)
	{
		print_error(error, global.json);
	}
	catch (const std::exception &error)
	{
		std::cerr << "tq: " << error.what() << "\n";
	}
	return kRefused;
}
