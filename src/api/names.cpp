#include "api/names.hpp"

#include "journal/terminal_states.hpp"

namespace tq
{

using journal::EventType;
using journal::FoldState;

const char *name_of(State state) noexcept
{
	switch (state)
	{
		case State::delayed:
			return "delayed";
		case State::running:
			return "running";
		case State::blocked:
			return "blocked";
		case State::terminal:
			return "ended";
		default:
			return "ready";
	}
}

const char *name_of(FoldState state) noexcept
{
	for (const journal::TerminalState &e : journal::kTerminalStates)
		if (e.state == state)
			return e.name;
	return state == FoldState::running ? "running" : "ready";
}

const char *ended_as(EventType event) noexcept
{
	for (const journal::TerminalState &e : journal::kTerminalStates)
		if (e.event == event)
			return e.name;
	return "ended";
}

const char *name_of(EventType event) noexcept
{
	switch (event)
	{
		case EventType::claimed:
			return "claimed";
		case EventType::failed:
			return "failed";
		case EventType::lost:
			return "lost";
		case EventType::released:
			return "released";
		case EventType::retried:
			return "retried";
		case EventType::override_:
			return "rescheduled";
		case EventType::checkpoint:
			return "checkpoint";
		case EventType::asked_cancel:
			return "cancel_asked";
		case EventType::freed:
			return "freed";
		case EventType::blocked:
			return "blocked";
		case EventType::superseded:
			return "superseded";
		default:
			return ended_as(event);
	}
}

bool parse_ended(const char *name, FoldState *state) noexcept
{
	for (const journal::TerminalState &e : journal::kTerminalStates)
		if (strcmp(e.name, name) == 0)
		{
			*state = e.state;
			return true;
		}
	return false;
}

} // namespace tq
