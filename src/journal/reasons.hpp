// The reasons that tq itself writes into events. All other reasons come from workers or users.
#pragma once

#include <cstring>

namespace tq::journal
{

constexpr const char *kReasonLeaseLost = "lease lost";
constexpr const char *kReasonTimeout = "timeout";
constexpr const char *kReasonSessionEnded = "its session has ended";
constexpr const char *kReasonWorkerEnded = "its worker has ended";
constexpr const char *kReasonNotStopped = "asked to cancel, and did not stop in time";
constexpr const char *kReasonNotStarted = "not started in time";
constexpr const char *kReasonRolledBack = "the transaction of its claim was rolled back too often";
constexpr const char *kReasonUndone = "the transaction of its claim was rolled back";
constexpr const char *kReasonSuperseded = "superseded by a newer job with its unique key";
constexpr const char *kReasonStopped = "asked to cancel while it ran; the claim was rolled back or lost in a crash";

inline bool is_own_reason(const char *reason) noexcept
{
	for (const char *own :
		 {kReasonLeaseLost, kReasonTimeout, kReasonSessionEnded, kReasonWorkerEnded, kReasonNotStopped,
		  kReasonNotStarted, kReasonRolledBack, kReasonUndone, kReasonSuperseded, kReasonStopped})
		if (reason != nullptr && std::strcmp(reason, own) == 0)
			return true;
	return false;
}

} // namespace tq::journal
