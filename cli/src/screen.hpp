// The terminal of tq top, by ncurses.
#pragma once

#include "top_view.hpp"

namespace cli
{

enum Key
{
	kNoKey = -1,
	kUp = 1000,
	kDown,
	kPageUp,
	kPageDown,
	kFirst,
	kLast,
	kNextPanel,
	kPreviousPanel,
	kEnter,
	kBack,
	kOtherKey,
};

// Takes the terminal until it is destroyed. Only one may exist.
class Screen
{
public:
	// Raises std::runtime_error if the terminal type is not known.
	Screen();
	~Screen();
	Screen(const Screen &) = delete;
	Screen &operator=(const Screen &) = delete;

	int width() const noexcept;
	int height() const noexcept;
	// After SIGWINCH: takes the size that the terminal has now.
	void resize();
	void show(const std::vector<Line> &lines);
	// A Key or a character; kNoKey if none was typed. Does not wait.
	int key();
};

} // namespace cli
