#include "api/names.hpp"

namespace tq::api
{

using journal::EventType;
using journal::FoldState;
using live::State;

namespace
{

struct Ended
{
	FoldState state;
	EventType event;
	const char *name;
};
constexpr Ended kEnded[] = {
	{FoldState::succeeded, EventType::succeeded, "succeeded"},
	{FoldState::dead, EventType::dead, "dead"},
	{FoldState::buried, EventType::buried, "buried"},
	{FoldState::cancelled, EventType::cancelled, "cancelled"},
	{FoldState::expired, EventType::expired, "expired"},
	{FoldState::purged, EventType::purged, "purged"},
	{FoldState::moved, EventType::moved, "moved"},
};

} // namespace

const char *name_of(State state) noexcept
{
	switch (state)
	{
		case State::delayed:
			return "delayed";
		case State::running:
			return "running";
		case State::terminal:
			return "ended";
		default:
			return "ready";
	}
}

const char *name_of(FoldState state) noexcept
{
	for (const Ended &e : kEnded)
		if (e.state == state)
			return e.name;
	return state == FoldState::running ? "running" : "ready";
}

const char *ended_as(EventType event) noexcept
{
	for (const Ended &e : kEnded)
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
		default:
			return ended_as(event);
	}
}

bool parse_ended(const char *name, FoldState *state) noexcept
{
	for (const Ended &e : kEnded)
		if (strcmp(e.name, name) == 0)
		{
			*state = e.state;
			return true;
		}
	return false;
}

} // namespace tq::api
