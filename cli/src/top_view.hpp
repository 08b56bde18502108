// The lines of tq top's screen, made from a reading. No terminal is needed.
#pragma once

#include "top_data.hpp"

#include <array>

namespace cli
{

enum class Style
{
	kPlain,
	kTitle,
	kSelected,
	kWarning,
	kError,
};

struct Line
{
	std::string text;
	Style style = Style::kPlain;
};

enum Panel
{
	kQueuePanel,
	kJobPanel,
	kWorkerPanel,
	kPanels,
};

// What the keys have chosen.
struct View
{
	struct Place
	{
		std::string selected; // name or id; stays with its line when lines move
		int at = 0;			  // the selected line
		int top = 0;		  // the first line shown
	};
	Panel focus = kQueuePanel;
	std::array<Place, kPanels> places;
	std::string message; // what the last key did
	bool failed = false; // the message is an error
	std::string lost;	 // why there is no connection
	std::string question;
};

// Lines of exactly this many rows; moves the selection to lines that exist. width: columns.
std::vector<Line> draw(const Reading &reading, View &view, int width, int height);

// All lines of all panels, for output that is no terminal.
std::vector<Line> draw_all(const Reading &reading, int width);

// A text without a reading, such as a job or the help: a title, and lines wrapped to the width from the line `top` on.
std::vector<Line> draw_text(const std::string &title, const std::vector<std::string> &text, int &top, int width,
							int height);

// Cuts or fills to this many columns. Control characters and bytes that are no text become "?".
std::string fit(std::string_view text, int width, bool right = false);

} // namespace cli
