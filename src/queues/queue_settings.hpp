// Parses and checks the settings jsonb.
// Regime: PG.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// Parses and checks a queue's settings. Raises 22023 for a wrong shape, an unknown key (listing the known ones) or a
// value out of range. A null key leaves the server's default.
core::QueueSettings parse_settings(Jsonb *settings);

// The job to enqueue when another job has ended, from a queue's setting or a job's option.
struct FollowUp
{
	const char *queue = nullptr;
	const char *kind = nullptr; // null: none
	int32 priority = core::kUnset;
	uint8 on = 7; // ends that it follows, as end_bit(); default: succeeded, dead, buried
	bool outcome = true; // it gets the result or error, and the detail
	bool payload = false; // it has the job's payload and kind, and a header instead of its own payload
	const char *by = nullptr; // the role that requested it (queues/requester.hpp)
};
FollowUp parse_follow_up(const JsonbValue &v, const char *word);

// The bit of an end's event type; 0 for other events.
uint8 end_bit(journal::EventType type) noexcept;

// The notification channel of a queue with these settings; null for none.
const char *channel_of(Jsonb *settings);

// Parses a retry policy from JSON over `base`; raises 22023 if it is malformed. `word` names it in errors.
core::RetryPolicy parse_retry(Jsonb *json, const core::RetryPolicy &base, const char *word = "setting");

// Limits of a weight: of queues in tq_claim_any, and of jobs.
constexpr double kMinWeight = 0.01;
constexpr double kMaxWeight = 100;

} // namespace tq
