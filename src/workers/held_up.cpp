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

JobId late[kLate];
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

} // namespace

void begin_pass() noexcept { nfailures = 0; }

bool gave_up() noexcept { return nfailures == kFailures; }

bool end_pass() noexcept
{
	bool room = true;
	for (int i = 0; i < nfailures; ++i)
		room = put_off(failures[i]) && room;
	return room;
}

void shut(int slot) noexcept { add(shut_until, slot, kShutFor); }

bool is_shut(int slot) noexcept { return has(shut_until, slot); }

bool put_off(JobId note) noexcept
{
	if (nlate == 0)
		late_at = live::mono_now() + std::max(late_pause, kPauseLeast);
	if (std::find(late, late + nlate, note) != late + nlate)
		return true;
	if (nlate == kLate)
		return false;
	late[nlate++] = note;
	return true;
}

void note_failed(JobId note) noexcept { failures[nfailures++] = note; }

int take_late(JobId *out) noexcept
{
	const int n = nlate;
	if (n == 0)
		late_pause = 0;
	if (n == 0 || late_at > live::mono_now())
		return 0;
	std::copy(late, late + n, out);
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
