// Rows of tq.queue: reading them into their slots, writing the first row of a queue, what the settings jsonb means.
// Regime: PG.
#pragma once

#include "live/attach.hpp"

namespace tq::live
{

// Parses and checks a queue's settings: 22023 for a wrong shape, an unknown key (the known ones are listed) or a value out of range;
// 0A000 for a key that this version does not serve. A key that is null is left at the server's default.
core::QueueSettings parse_settings(Jsonb *settings);

// What follows a job when it has ended: another one, as a queue's setting or a job's option has it.
struct FollowUp
{
	const char *queue = nullptr;
	const char *kind = nullptr; // none
	int32 priority = core::kUnset;
	uint8 on = 7; // ends, by bit: succeeded, dead, buried
};
FollowUp parse_follow_up(const JsonbValue &v, const char *word);

// The bit of an end, by the event that says it; 0 for other events.
uint8 end_bit(journal::EventType type) noexcept;

// The channel that a queue with these settings notifies, null if it does not.
const char *channel_of(Jsonb *settings);

// A retry policy as JSON, over `base`; 22023 if it is malformed. `word` says in errors what it is.
core::RetryPolicy parse_retry(Jsonb *json, const core::RetryPolicy &base, const char *word = "setting");

// Of queues in tq_claim_any, and of jobs.
constexpr double kMinWeight = 0.01;
constexpr double kMaxWeight = 100;

// Makes sure that the queue's row is committed: asks the scheduler and waits for it, or inserts the row in this transaction if no
// scheduler runs.
void write_queue_row(Db &db, uint16_t queue);

// The same, if it is not there yet; of a queue that this transaction creates, it is. From here on its number does not change.
void ensure_queue_row(Db &db, uint16_t queue);

// Inserts a queue's row as the extension's owner, and its creator's rights on it; null settings: none. False if there is one of that name: then the slot has not its
// number yet (read_queues). If another queue has taken the slot's number, the slot gets a new one.
bool insert_queue_row(const Db &db, uint16_t queue, Jsonb *settings);

// The scheduler's side: writes the rows of queues in state creating, each in the current transaction; returns how many. After the
// commit the caller calls rows_written().
int write_new_rows(Db &db, uint16_t *queues, int max);
void rows_written(Db &db, const uint16_t *queues, int n) noexcept;

} // namespace tq::live
