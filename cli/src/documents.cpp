// tq man and tq completion, made from the definitions of the commands.
#include "command.hpp"

#include <CLI/CLI.hpp>

#include <iostream>

namespace cli
{

namespace
{

// Text for troff: backslashes and dashes as they are, and no line that begins with a control character.
std::string troff(const std::string &text)
{
	std::string escaped;
	for (char c : text)
		escaped += c == '\\' ? std::string("\\e") : c == '-' ? std::string("\\-") : std::string(1, c);
	return escaped.empty() || (escaped.front() != '.' && escaped.front() != '\'') ? escaped : "\\&" + escaped;
}

std::vector<CLI::App *> commands_of(const CLI::App &app)
{
	std::vector<CLI::App *> list;
	for (const CLI::App *sub : app.get_subcommands([](const CLI::App *) { return true; }))
		list.push_back(const_cast<CLI::App *>(sub));
	return list;
}

std::string usage_of(const CLI::Option &option)
{
	if (option.get_positional())
		return option.get_single_name();
	std::string text = option.get_name();
	if (option.get_expected_max() > 0 && option.get_items_expected_max() > 0)
		text += " " + (option.get_type_name().empty() ? "VALUE" : option.get_type_name());
	return text;
}

void print_options(const CLI::App &app)
{
	for (const CLI::Option *option : app.get_options())
	{
		std::cout << ".TP\n.B " << troff(usage_of(*option)) << "\n" << troff(option->get_description());
		if (!option->get_default_str().empty())
			std::cout << troff(" (default " + option->get_default_str() + ")");
		std::cout << "\n";
	}
}

void print_commands(const CLI::App &app, const std::string &path)
{
	for (const CLI::App *sub : commands_of(app))
	{
		const std::string words = path + " " + sub->get_name();
		if (!commands_of(*sub).empty())
		{
			print_commands(*sub, words);
			continue;
		}
		std::cout << ".SS " << troff(words) << "\n" << troff(sub->get_description()) << ".\n";
		print_options(*sub);
		const std::string footer = sub->get_footer();
		std::cout << ".PP\nExample:\n.PP\n.EX\n" << troff(footer.substr(footer.find('\n') + 3)) << "\n.EE\n";
	}
}

void print_man(const CLI::App &app)
{
	std::cout << ".TH TQ 1 \"\" \"tq " TQ_VERSION "\"\n.SH NAME\ntq \\- " << troff(app.get_description())
			  << "\n.SH SYNOPSIS\n.B tq\n[\\fIOPTION\\fR...] \\fICOMMAND\\fR [\\fIARGUMENT\\fR...]\n.SH OPTIONS\n";
	print_options(app);
	std::cout << ".SH COMMANDS\n";
	print_commands(app, "tq");
	std::cout << ".SH \"EXIT STATUS\"\n0: done. 1: refused, or found wrong. 2: wrong usage.\n"
				 "tq health: 0 ok, 1 a warning, 2 an error.\n"
				 ".SH ENVIRONMENT\nThe variables of libpq, as PGHOST and PGDATABASE, name the server if \\-\\-dsn does "
				 "not.\n";
}

// For each path the words that may follow it.
void print_words(const CLI::App &app, const std::string &path)
{
	std::string words;
	for (const CLI::App *sub : commands_of(app))
		words += (words.empty() ? "" : " ") + sub->get_name();
	for (const CLI::Option *option : app.get_options())
	{
		for (const std::string &name : option->get_lnames())
			words += (words.empty() ? "--" : " --") + name;
	}
	std::cout << "    \"" << path << "\") words=\"" << words << "\" ;;\n";
	for (const CLI::App *sub : commands_of(app))
		print_words(*sub, path + (path.empty() ? "" : " ") + sub->get_name());
}

void print_completion(const CLI::App &app, const std::string &shell)
{
	if (shell == "zsh")
		std::cout << "#compdef tq\nautoload -U +X bashcompinit && bashcompinit\n";
	std::cout << "_tq() {\n  local word path= next words= at=1\n"
				 "  while [ \"$at\" -lt \"$COMP_CWORD\" ]; do\n"
				 "    word=${COMP_WORDS[$at]}\n"
				 "    next=\"$path${path:+ }$word\"\n"
				 "    _tq_words \"$next\" && path=$next\n"
				 "    at=$((at + 1))\n"
				 "  done\n"
				 "  _tq_words \"$path\"\n"
				 "  COMPREPLY=($(compgen -W \"$words\" -- \"${COMP_WORDS[$COMP_CWORD]}\"))\n"
				 "}\n"
				 "_tq_words() {\n  case $1 in\n";
	print_words(app, "");
	std::cout << "    *) return 1 ;;\n  esac\n}\ncomplete -o default -F _tq tq\n";
}

} // namespace

void add_documents(CLI::App &app, Action &action)
{
	CLI::App *sub = add_path(app, "man", "Print the manual page", "> tq.1");
	sub->callback([&app, &action] {
		action = [&app] {
			print_man(app);
			return 0;
		};
	});
	sub = add_path(app, "completion", "Print the completions of a shell", "bash > /etc/bash_completion.d/tq");
	auto shell = std::make_shared<std::string>();
	sub->add_option("SHELL", *shell, "bash or zsh")->required()->check(CLI::IsMember({"bash", "zsh"}));
	sub->callback([&app, &action, shell] {
		action = [&app, shell] {
			print_completion(app, *shell);
			return 0;
		};
	});
}

} // namespace cli
