#include "screen.hpp"

#define NCURSES_NOMACROS 1
#include <curses.h>

#include <cstdlib>
#include <stdexcept>
#include <sys/ioctl.h>
#include <unistd.h>

namespace cli
{

namespace
{

// Pairs of colours; 0 is the terminal's own.
constexpr short kYellow = 1, kRed = 2;
constexpr int kEscape = 27;

attr_t attributes(Style style, bool colours)
{
	switch (style)
	{
		case Style::kPlain:
			return A_NORMAL;
		case Style::kTitle:
			return A_REVERSE;
		case Style::kSelected:
			return A_REVERSE | A_BOLD;
		case Style::kWarning:
			return colours ? attr_t(COLOR_PAIR(kYellow)) : A_BOLD;
		case Style::kError:
			return colours ? attr_t(COLOR_PAIR(kRed)) | A_BOLD : A_BOLD;
	}
	return A_NORMAL;
}

bool with_colours()
{
	const char *without = std::getenv("NO_COLOR");
	return has_colors() && (!without || !*without);
}

SCREEN *screen = nullptr;
bool colours = false;

} // namespace

Screen::Screen()
{
	screen = newterm(nullptr, stdout, stdin);
	if (!screen)
		throw std::runtime_error("the terminal type is not known: set TERM, or use --once");
	cbreak();
	noecho();
	curs_set(0);
	nodelay(stdscr, true);
	keypad(stdscr, true);
	set_escdelay(50);
	colours = with_colours();
	if (colours)
	{
		start_color();
		use_default_colors();
		init_pair(kYellow, COLOR_YELLOW, -1);
		init_pair(kRed, COLOR_RED, -1);
	}
}

Screen::~Screen()
{
	endwin();
	delscreen(screen);
}

int Screen::width() const noexcept { return getmaxx(stdscr); }
int Screen::height() const noexcept { return getmaxy(stdscr); }

void Screen::resize()
{
	winsize size{};
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0)
		resizeterm(size.ws_row, size.ws_col);
	clearok(stdscr, true);
}

void Screen::show(const std::vector<Line> &lines)
{
	werase(stdscr);
	for (std::size_t i = 0; i < lines.size(); ++i)
	{
		wattrset(stdscr, int(attributes(lines[i].style, colours)));
		mvwaddstr(stdscr, int(i), 0, lines[i].text.c_str());
	}
	wattrset(stdscr, A_NORMAL);
	wrefresh(stdscr);
}

int Screen::key()
{
	const int typed = wgetch(stdscr);
	switch (typed)
	{
		case ERR:
			return kNoKey;
		case KEY_UP:
		case 'k':
			return kUp;
		case KEY_DOWN:
		case 'j':
			return kDown;
		case KEY_PPAGE:
			return kPageUp;
		case KEY_NPAGE:
			return kPageDown;
		case KEY_HOME:
			return kFirst;
		case KEY_END:
			return kLast;
		case '\t':
		case KEY_RIGHT:
			return kNextPanel;
		case KEY_BTAB:
		case KEY_LEFT:
			return kPreviousPanel;
		case '\n':
		case '\r':
		case KEY_ENTER:
			return kEnter;
		case kEscape:
		case KEY_BACKSPACE:
			return kBack;
		default:
			return typed < 128 ? typed : kOtherKey;
	}
}

} // namespace cli
