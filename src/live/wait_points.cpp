// Wait points and clock offsets for tests; compiled in with -DTQ_TEST only. The functions below are not part of the extension: a test
// declares those it needs, CREATE FUNCTION ... LANGUAGE C AS '$libdir/tq'.
// Regime: PG; wait_point() raises nothing unless it was armed to, and polls, so it may sit in commit callbacks.
#ifdef TQ_TEST

#include "live/shared.hpp"
#include "live/test_support.hpp"
#include "pg/function.hpp"

#include <signal.h>

namespace tq::live
{

namespace
{

enum class Action : uint32
{
	none,
	wait,  // until released
	error, // raise (only where an error is allowed)
	kill,  // SIGKILL itself: the server goes through crash recovery
};

struct Point
{
	char name[64];
	std::atomic<uint32> action;
	std::atomic<int32> skip;	// passes that do nothing first
	std::atomic<int32> waiting; // backends that stand here
	std::atomic<int32> passed;	// times the place was reached while armed
	std::atomic<int32> pid;		// only this process, 0: any
};
constexpr int kPoints = 32;
Point *points = nullptr;

Point *find_point(const char *name, bool make)
{
	for (int i = 0; i < kPoints; ++i)
	{
		if (points[i].name[0] == '\0')
		{
			if (!make)
				return nullptr;
			strlcpy(points[i].name, name, sizeof(points[i].name));
			return &points[i];
		}
		if (strcmp(points[i].name, name) == 0)
			return &points[i];
	}
	return nullptr;
}

} // namespace

Size test_shmem_size() { return sizeof(Point) * kPoints; }

void init_test_shmem()
{
	bool found = false;
	points = static_cast<Point *>(ShmemInitStruct("tq wait points", test_shmem_size(), &found));
	if (!found)
		memset(static_cast<void *>(points), 0, test_shmem_size());
}

void wait_point(const char *name) noexcept
{
	Point *p = points != nullptr ? find_point(name, false) : nullptr;
	if (p == nullptr || p->action.load() == static_cast<uint32>(Action::none))
		return;
	if (p->pid.load() != 0 && p->pid.load() != MyProcPid)
		return;
	if (p->skip.fetch_sub(1) > 0)
		return;
	p->passed.fetch_add(1);
	if (p->action.load() == static_cast<uint32>(Action::wait))
	{
		p->waiting.fetch_add(1);
		while (p->action.load() == static_cast<uint32>(Action::wait))
			pg_usleep(1000);
		p->waiting.fetch_sub(1);
	}
	// what the point was armed with, at once or while we stood here
	switch (static_cast<Action>(p->action.load()))
	{
		case Action::error:
			p->action.store(static_cast<uint32>(Action::none));
			ereport(ERROR, (errmsg("error injected at \"%s\"", name)));
		case Action::kill:
			p->action.store(static_cast<uint32>(Action::none));
			kill(MyProcPid, SIGKILL);
			pg_usleep(10000000);
			break;
		default:
			break;
	}
}

} // namespace tq::live

using namespace tq;
using namespace tq::live;

// tq_test_arm(name text, action text, skip int, pid int): what happens at a wait point from now on, also to who stands there: action
// 'none' lets them go on.
TQ_FUNCTION(tq_test_arm)
{
	Point *p = find_point(text_to_cstring(PG_GETARG_TEXT_PP(0)), true);
	const char *action = text_to_cstring(PG_GETARG_TEXT_PP(1));
	if (p == nullptr)
		elog(ERROR, "too many wait points");
	p->skip.store(PG_GETARG_INT32(2));
	p->pid.store(PG_GETARG_INT32(3));
	p->passed.store(0);
	p->action.store(static_cast<uint32>(strcmp(action, "wait") == 0	   ? Action::wait
										: strcmp(action, "error") == 0 ? Action::error
										: strcmp(action, "kill") == 0  ? Action::kill
																	   : Action::none));
	PG_RETURN_VOID();
}

// tq_test_waiting(name text) -> int: how many stand at a wait point.
TQ_FUNCTION(tq_test_waiting)
{
	const Point *p = find_point(text_to_cstring(PG_GETARG_TEXT_PP(0)), false);
	PG_RETURN_INT32(p != nullptr ? p->waiting.load() : 0);
}

// tq_test_passed(name text) -> int: how often the place was reached since it was armed.
TQ_FUNCTION(tq_test_passed)
{
	const Point *p = find_point(text_to_cstring(PG_GETARG_TEXT_PP(0)), false);
	PG_RETURN_INT32(p != nullptr ? p->passed.load() : 0);
}

// tq_test_clock(wall bigint, mono bigint): microseconds added to what every process takes for the time.
TQ_FUNCTION(tq_test_clock)
{
	set_clock_offsets(PG_GETARG_INT64(0), PG_GETARG_INT64(1));
	PG_RETURN_VOID();
}

#endif
