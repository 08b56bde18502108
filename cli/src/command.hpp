// Commands as data: most of them call one SQL function, or read one view, and print its rows.
#pragma once

#include <tq/connection.hpp>

#include <functional>
#include <optional>
#include <map>
#include <string>
#include <vector>

namespace CLI
{
class App;
}

namespace cli
{

struct Global
{
	std::string dsn;
	bool json = false;
	bool any_server = false;		  // also a standby; else the primary of several hosts
	std::vector<std::string> command; // what follows --
};

enum class Shape
{
	kRequired, // positional
	kOptional, // positional
	kOption,
	kFlag,
	kList,	 // an option that may be repeated: an array
	kEach,	 // positional, repeated: an array; - reads its elements from the lines of standard input
	kSpread, // positional, repeated: NAME, NAME2, NAME3, ...
};

// An argument of the SQL function, or a column of the view that must be equal to it.
struct Field
{
	Shape shape;
	const char *name; // as the SQL function calls it
	const char *type;
	const char *help;
};

struct Command
{
	enum Kind
	{
		kRows,	  // a set
		kRow,	  // one row
		kNothing, // a function that returns void
		kView,	  // a view
	};

	const char *path; // words, such as "queue list". Of rows that have the same, the first that has all that is given.
	const char *help;
	const char *example; // its arguments in an example
	Kind kind;
	const char *source;	 // function or view
	const char *columns; // what to select
	std::vector<Field> fields;
	const char *order = ""; // of a view
};

extern const std::vector<Command> kCommands;

using Given = std::map<std::string, std::vector<std::string>>; // by the name of the field

// The statement of a command with these arguments.
tq::Statement statement_of(const Command &command, const Given &given);

// What a user listed; "-" stands for the lines of standard input.
std::vector<std::string> listed(const std::vector<std::string> &given);

// Prints rows as a table, or as JSON.
void print_table(const tq::Result &rows);

// Runs the statement and prints it.
tq::Task<> run_and_print(tq::Connection &connection, tq::Statement statement, Command::Kind kind, bool json);

// Connects with the command's settings.
tq::Task<tq::Connection> connect(const Global &global);

// What a command does, chosen by the command line; returns the exit code.
using Action = std::function<int()>;

// Each adds commands to the app. The one that is used sets `action`.
void add_table_commands(CLI::App &app, const Global &global, Action &action);
void add_work(CLI::App &app, const Global &global, Action &action);
void add_push(CLI::App &app, const Global &global, Action &action);
void add_following(CLI::App &app, const Global &global, Action &action);
void add_monitoring(CLI::App &app, const Global &global, Action &action);
void add_import(CLI::App &app, const Global &global, Action &action);
void add_top(CLI::App &app, const Global &global, Action &action);
void add_documents(CLI::App &app, Action &action);

// The subcommand for the last word of a path; makes those in between.
CLI::App *add_path(CLI::App &app, const std::string &path, const std::string &help, const std::string &example);

} // namespace cli
