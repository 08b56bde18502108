// The terminal states: in a fold, as an event type, and by name.
#pragma once

#include "journal/journal.hpp"

namespace tq::journal
{

struct TerminalState
{
	FoldState state;
	EventType event;
	const char *name;
};
constexpr TerminalState kTerminalStates[] = {
	{FoldState::succeeded, EventType::succeeded, "succeeded"},
	{FoldState::dead, EventType::dead, "dead"},
	{FoldState::buried, EventType::buried, "buried"},
	{FoldState::cancelled, EventType::cancelled, "cancelled"},
	{FoldState::expired, EventType::expired, "expired"},
	{FoldState::purged, EventType::purged, "purged"},
	{FoldState::moved, EventType::moved, "moved"},
};

} // namespace tq::journal
