// The arguments of functions that find jobs (find.hpp).
#include "jobs/find.hpp"

#include "api/args.hpp"
#include "api/names.hpp"
#include "jobs/error_groups.hpp"
#include "jobs/job_options.hpp"
#include "queues/queue_names.hpp"
#include "pg/json_values.hpp"

namespace tq
{

using journal::FoldState;

bool parse_state(const char *name, States *state) noexcept
{
	*state = States{};
	for (const State live : {State::ready, State::delayed, State::blocked, State::running})
		if (strcmp(name, name_of(live)) == 0)
		{
			state->live = bit_of(live);
			return true;
		}
	FoldState ended{};
	if (!parse_ended(name, &ended) || (kAllStates.ended & bit_of(ended)) == 0)
		return false;
	state->ended = bit_of(ended);
	return true;
}

void unknown_state(const char *message, const char *word, States states, bool may_be_all)
{
	const char *words[16] = {};
	int n = 0;
	for (const State live : {State::ready, State::delayed, State::blocked, State::running})
		if ((states.live & bit_of(live)) != 0)
			words[n++] = name_of(live);
	for (const FoldState ended :
		 {FoldState::succeeded, FoldState::dead, FoldState::buried, FoldState::cancelled, FoldState::expired})
		if ((states.ended & bit_of(ended)) != 0)
			words[n++] = name_of(ended);
	if (may_be_all)
		words[n] = "all";
	pg::unknown_word(message, word, "The state can be", words);
}

JobFilter filter_arguments(FunctionCallInfo fcinfo)
{
	JobFilter f;
	f.queue = text_or_null(fcinfo, 0, "queue");
	f.kind = text_or_null(fcinfo, 2, "kind");
	f.worker = text_or_null(fcinfo, 3, "worker");
	f.tag = text_or_null(fcinfo, 4, "tag", kTagLimit);
	f.group_key = text_or_null(fcinfo, 5, "group_key", kGroupKeyLimit);
	f.unique_key = text_or_null(fcinfo, 6, "unique_key", kUniqueKeyLimit);
	f.created_from = time_or(fcinfo, 7, "created_from", journal::kNoTime);
	f.created_to = time_or(fcinfo, 8, "created_to", journal::kNoTime);
	f.search = jsonb_value(fcinfo, 9, "search", options_limit());
	if (f.kind != nullptr && *f.kind != '\0')
		check_name("kind", f.kind);
	if (f.worker != nullptr)
		check_name("worker", f.worker);
	return f;
}

const char *error_argument(FunctionCallInfo fcinfo, int i)
{
	const char *error = text_or_null(fcinfo, i, "error", pg::SizeLimit{kErrorRead, nullptr});
	return error != nullptr ? group_of_error(error) : nullptr;
}

core::JobId cursor_argument(FunctionCallInfo fcinfo, int i)
{
	const int64 after = given(fcinfo, i) ? PG_GETARG_INT64(i) : 0;
	if (after < 0 || after > journal::kLastId)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("after is out of range: %lld", static_cast<long long>(after)),
						errdetail("It must be between 0 and %lld.", static_cast<long long>(journal::kLastId))));
	return after;
}

} // namespace tq
