// A claimed job, as the type tq_job has it.
#pragma once

#include <tq/result.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tq
{

// What a heartbeat tells the worker.
enum class Action
{
	kRun,
	kCancel,
	kQuiet,
	kLost,
};

// Of the text of a heartbeat.
Action parse_action(std::string_view text);

struct JobData
{
	std::int64_t id = 0, lease = 0;
	std::string queue;
	std::optional<std::string> kind;
	std::string payload; // JSON
	int attempt = 0, max_attempts = 0, priority = 0;
	std::optional<std::string> checkpoint, headers, parents; // JSON
	std::optional<std::string> group_key, unique_key;
	std::vector<std::string> tags;
	Time enqueued_at;
	std::optional<Time> lease_expires_at, deadline;
};

} // namespace tq
