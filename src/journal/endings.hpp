// The ways in which a job ends: as a fold has them, as the event that says so, and their names.
#pragma once

#include "journal/journal.hpp"

namespace tq::journal
{

struct Ending
{
	FoldState state;
	EventType event;
	const char *name;
};
constexpr Ending kEndings[] = {
	{FoldState::succeeded, EventType::succeeded, "succeeded"},
	{FoldState::dead, EventType::dead, "dead"},
	{FoldState::buried, EventType::buried, "buried"},
	{FoldState::cancelled, EventType::cancelled, "cancelled"},
	{FoldState::expired, EventType::expired, "expired"},
	{FoldState::purged, EventType::purged, "purged"},
	{FoldState::moved, EventType::moved, "moved"},
};

} // namespace tq::journal
