// Wait points and clock offsets for tests; compiled in with -DTQ_TEST only. The functions below are not part of the
// extension: a test declares those it needs, CREATE FUNCTION ... LANGUAGE C AS '$libdir/tq'.
// Regime: PG; wait_point() raises its armed error or its command's error; wait_point_nofail() polls and never raises.
#ifdef TQ_TEST

#include "guc.hpp"
#include "shmem/shared.hpp"
#include "shmem/test_support.hpp"
#include "pg/function.hpp"

#include <signal.h>
#include <unistd.h>

namespace tq
{

namespace
{

enum class Action : uint32
{
	none,
	wait,  // wait until released
	error, // raise an error, where that is allowed
	exit,  // exit as on SIGTERM, where an error is allowed
	kill,  // SIGKILL itself: the server goes through crash recovery
};

struct Point
{
	char name[64];
	std::atomic<uint32> action;
	std::atomic<int32> skip;	// number of passes without effect before the first one
	std::atomic<int32> waiting; // number of backends that wait here
	std::atomic<int32> passed;	// number of times it was reached while armed
	std::atomic<int32> pid;		// only this process; 0: any
};
constexpr int kPoints = 256;
Point *points = nullptr;

constexpr const char *kActions[] = {"none", "wait", "error", "exit", "kill"};

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

namespace
{

bool is(const Point &p, Action a) noexcept { return p.action.load() == static_cast<uint32>(a); }

// Waits or dies here if the point is armed for that; otherwise returns what the caller must raise.
Action pass(const char *name, bool may_fail) noexcept
{
	Point *p = points != nullptr ? find_point(name, false) : nullptr;
	if (p == nullptr || is(*p, Action::none) || (!may_fail && (is(*p, Action::error) || is(*p, Action::exit))))
		return Action::none;
	if (p->pid.load() != 0 && p->pid.load() != MyProcPid)
		return Action::none;
	if (p->skip.fetch_sub(1) > 0)
		return Action::none;
	p->passed.fetch_add(1);
	if (is(*p, Action::wait))
	{
		p->waiting.fetch_add(1);
		while (is(*p, Action::wait) && getppid() == PostmasterPid)
			pg_usleep(1000);
		p->waiting.fetch_sub(1);
	}
	// The action armed, at first or while this process waited.
	const auto action = static_cast<Action>(p->action.exchange(static_cast<uint32>(Action::none)));
	if (action == Action::kill)
	{
		char line[80];
		const int length = snprintf(line, sizeof(line), "killed at \"%s\"\n", name);
		static_cast<void>(!write(STDERR_FILENO, line, static_cast<size_t>(length))); // unbuffered
		kill(MyProcPid, SIGKILL);
		pg_usleep(10000000);
	}
	return action;
}

// Runs the command in the setting tq_test.NAME (dashes as underscores) in the transaction of this process.
void run_command(const char *name)
{
	char setting[80];
	snprintf(setting, sizeof(setting), "tq_test.%s", name);
	std::replace(setting, setting + strlen(setting), '-', '_');
	const char *command = GetConfigOption(setting, true, false);
	if (command == nullptr || *command == '\0')
		return;
	PushActiveSnapshot(GetLatestSnapshot());
	SPI_connect();
	if (SPI_execute(command, false, 0) < 0)
		elog(ERROR, "the command of \"%s\" failed", name);
	SPI_finish();
	PopActiveSnapshot();
}

} // namespace

void wait_point(const char *name)
{
	const Action action = pass(name, true);
	if (action == Action::error)
		ereport(ERROR, (errcode(ERRCODE_QUERY_CANCELED), errmsg("error injected at \"%s\"", name)));
	if (action == Action::exit)
		ereport(FATAL, (errcode(ERRCODE_ADMIN_SHUTDOWN), errmsg("told to leave at \"%s\"", name)));
	run_command(name);
}

void wait_point_nofail(const char *name) noexcept { static_cast<void>(pass(name, false)); }

// tq_test_arm(name text, action text, skip int, pid int): sets the action of a wait point, also for processes that wait
// there. Action 'none' releases them.
TQ_BARE_FUNCTION(tq_test_arm)
{
	Point *p = find_point(text_to_cstring(PG_GETARG_TEXT_PP(0)), true);
	const char *action = text_to_cstring(PG_GETARG_TEXT_PP(1));
	if (p == nullptr)
		elog(ERROR, "too many wait points");
	p->skip.store(PG_GETARG_INT32(2));
	p->pid.store(PG_GETARG_INT32(3));
	p->passed.store(0);
	for (uint32 i = 0; i < lengthof(kActions); ++i)
		if (strcmp(action, kActions[i]) == 0)
			p->action.store(i);
	PG_RETURN_VOID();
}

// tq_test_waiting(name text) -> int: the number of processes that wait at a wait point.
TQ_BARE_FUNCTION(tq_test_waiting)
{
	const Point *p = find_point(text_to_cstring(PG_GETARG_TEXT_PP(0)), false);
	PG_RETURN_INT32(p != nullptr ? p->waiting.load() : 0);
}

// tq_test_passed(name text) -> int: the number of times the place was reached since it was armed.
TQ_BARE_FUNCTION(tq_test_passed)
{
	const Point *p = find_point(text_to_cstring(PG_GETARG_TEXT_PP(0)), false);
	PG_RETURN_INT32(p != nullptr ? p->passed.load() : 0);
}

// tq_test_unpublished() -> bigint: the number of jobs that committing transactions have changed, but not yet published;
// 0 while a process waits at a wait point, because it may be one of them.
TQ_BARE_FUNCTION(tq_test_unpublished)
{
	int64 jobs = 0;
	for (int i = 0; preloaded() && i < guc::max_databases; ++i)
		jobs += db_at(i).committing.load();
	for (int i = 0; points != nullptr && i < kPoints; ++i)
		if (points[i].waiting.load() > 0)
			jobs = 0;
	PG_RETURN_INT64(jobs);
}

// tq_test_clock(wall bigint, mono bigint): microseconds that every process adds to its clocks.
TQ_BARE_FUNCTION(tq_test_clock)
{
	set_clock_offsets(PG_GETARG_INT64(0), PG_GETARG_INT64(1));
	PG_RETURN_VOID();
}

} // namespace tq

#endif
