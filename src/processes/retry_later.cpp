#include "processes/retry_later.hpp"

namespace tq
{

namespace
{

using core::JobId;
using core::Micros;

constexpr int kFailures = 10; // the most in one pass of the resolver
constexpr Micros kBlockedFor = core::kSecond;
constexpr Micros kPauseLeast = 100000; // doubled while some notes are still late
constexpr Micros kPauseMost = 5000000;
constexpr Micros kLogPause = 60000000;

struct Late
{
	JobId note;
	bool failed; // at its last check
};

struct Deadline
{
	int code;  // of an error
	Micros at; // monotonic
};

struct RetryLater
{
	Late late[kLate];
	int nlate;
	Micros late_at;
	Micros late_pause;
	JobId failures[kFailures];
	int nfailures;
	Micros blocked_until[UINT16_MAX + 3]; // by blocked_until_of(): kFollowUp, kNoSegment, then the slots of segments
	Deadline logged_until[8];
};
RetryLater state;

Micros &blocked_until_of(int slot) noexcept { return state.blocked_until[slot - kFollowUp]; }

bool add_late(JobId note, bool failed) noexcept
{
	if (state.nlate == 0)
		state.late_at = mono_now() + std::max(state.late_pause, kPauseLeast);
	Late *const end = state.late + state.nlate;
	if (Late *l = std::find_if(state.late, end, [note](const Late &x) { return x.note == note; }); l != end)
	{
		l->failed = l->failed || failed;
		return true;
	}
	if (state.nlate == kLate)
		return false;
	state.late[state.nlate++] = Late{note, failed};
	return true;
}

} // namespace

void begin_pass() noexcept { state.nfailures = 0; }

bool gave_up() noexcept { return state.nfailures == kFailures; }

bool end_pass() noexcept
{
	bool all_fit = true;
	for (int i = 0; i < state.nfailures; ++i)
		all_fit = add_late(state.failures[i], true) && all_fit;
	return all_fit;
}

void block_segment(int slot) noexcept { blocked_until_of(slot) = mono_now() + kBlockedFor; }

const Micros *blocked_untils() noexcept { return &blocked_until_of(0); }

bool is_segment_blocked(int slot) noexcept
{
	const Micros until = blocked_until_of(slot);
	return until != 0 && until > mono_now();
}

bool delay_note(JobId note) noexcept { return add_late(note, false); }

void note_failed(JobId note) noexcept { state.failures[state.nfailures++] = note; }

int take_late(JobId *out) noexcept
{
	const int n = state.nlate;
	if (n == 0)
		state.late_pause = 0;
	if (n == 0 || state.late_at > mono_now())
		return 0;
	// Retry failed notes last. A repeated failure blocks its segment, and other notes that read it must come first.
	int done = 0;
	for (const bool failed : {false, true})
		for (int i = 0; i < n; ++i)
			if (state.late[i].failed == failed)
				out[done++] = state.late[i].note;
	state.nlate = 0;
	state.late_pause = std::clamp(state.late_pause * 2, kPauseLeast, kPauseMost);
	return n;
}

Micros next_late() noexcept { return state.nlate > 0 ? state.late_at : core::kNever; }

bool is_new_error(int code) noexcept
{
	const Micros now = mono_now();
	Deadline *const begin = std::begin(state.logged_until), *const end = std::end(state.logged_until);
	if (std::any_of(begin, end, [code, now](const Deadline &d) { return d.code == code && d.at > now; }))
		return false;
	Deadline *oldest = std::min_element(begin, end, [](const Deadline &a, const Deadline &b) { return a.at < b.at; });
	*oldest = Deadline{code, now + kLogPause};
	return true;
}

} // namespace tq
