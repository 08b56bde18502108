#include "workers/held_up.hpp"

namespace tq::workers
{

namespace
{

using core::JobId;
using core::Micros;

constexpr int kFailures = 10; // in one pass
constexpr Micros kShutFor = 1000000;
constexpr Micros kPauseLeast = 100000; // doubled while some of it is still late
constexpr Micros kPauseMost = 5000000;
constexpr Micros kLogPause = 60000000;

struct Late
{
	JobId note;
	bool failed; // the last time
};
Late late[kLate];
int nlate = 0;
Micros late_at = 0;
Micros late_pause = 0;
JobId failures[kFailures];
int nfailures = 0;

struct Until
{
	int what;
	Micros at; // monotonic
};
Until shut_until[16];
Until told_until[8];

template <int N>
bool has(const Until (&list)[N], int what) noexcept
{
	const Micros now = live::mono_now();
	return std::any_of(list, list + N, [what, now](const Until &u) { return u.what == what && u.at > now; });
}

template <int N>
void add(Until (&list)[N], int what, Micros length) noexcept
{
	Until *oldest = std::min_element(list, list + N, [](const Until &a, const Until &b) { return a.at < b.at; });
	*oldest = Until{what, live::mono_now() + length};
}

bool add_late(JobId note, bool failed) noexcept
{
	if (nlate == 0)
		late_at = live::mono_now() + std::max(late_pause, kPauseLeast);
	if (Late *l = std::find_if(late, late + nlate, [note](const Late &x) { return x.note == note; }); l != late + nlate)
	{
		l->failed = l->failed || failed;
		return true;
	}
	if (nlate == kLate)
		return false;
	late[nlate++] = Late{note, failed};
	return true;
}

} // namespace

void begin_pass() noexcept { nfailures = 0; }

bool gave_up() noexcept { return nfailures == kFailures; }

bool end_pass() noexcept
{
	bool room = true;
	for (int i = 0; i < nfailures; ++i)
		room = add_late(failures[i], true) && room;
	return room;
}

void shut(int slot) noexcept { add(shut_until, slot, kShutFor); }

bool is_shut(int slot) noexcept { return has(shut_until, slot); }

bool put_off(JobId note) noexcept { return add_late(note, false); }

void note_failed(JobId note) noexcept { failures[nfailures++] = note; }

int take_late(JobId *out) noexcept
{
	const int n = nlate;
	if (n == 0)
		late_pause = 0;
	if (n == 0 || late_at > live::mono_now())
		return 0;
	// who fails again shuts a segment, which those that need only read it should not find shut each time
	int done = 0;
	for (const bool failed : {false, true})
		for (int i = 0; i < n; ++i)
			if (late[i].failed == failed)
				out[done++] = late[i].note;
	nlate = 0;
	late_pause = std::clamp(late_pause * 2, kPauseLeast, kPauseMost);
	return n;
}

Micros next_late() noexcept { return nlate > 0 ? late_at : core::kNever; }

bool is_news(int code) noexcept
{
	if (has(told_until, code))
		return false;
	add(told_until, code, kLogPause);
	return true;
}

} // namespace tq::workers
