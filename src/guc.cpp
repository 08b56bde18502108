#include "guc.hpp"

#include "core/layout.hpp"
#include "queues/queue_settings.hpp"
#include "pg/data_error.hpp"
#include "pg/timestamp_text.hpp"

namespace tq::guc
{

int max_live_jobs = 100000;
int max_queues = 256;
int max_lanes = 1024;
int max_databases = 8;
int max_executors = 4;
int max_segments = 512;
int max_workers = 512;
int max_groups = 2000;
int max_progress = 64;
int series_memory = 8192;
int audit_interval = 3600;
int audit_retention = 90 * 86400;
bool auto_create_queues = true;
int cancel_grace = 30000;
int claim_batch_limit = 10000;
int claim_log_delay = 100;
bool claim_own = false;
int dead_retention = 604800;
int executor_idle = 10000;
int executors = 4;
int expires_in = 0;
core::Micros fake_now = 0;
int lease = 300000;
int lease_grace = 0;
int load_timeout = 10000;
int max_array_elements = 1000000;
int max_array_size = 262144;
int max_attempts = 20;
int max_depth = 0;
int max_error = 32;
int max_handlers_per_role = 1000;
int max_headers = 64;
int max_options = 16;
int max_payload = 1024;
int max_pinned_wait = 60000;
int max_result = 16384;
int max_schedules_per_queue = 1000;
int max_schedules_per_role = 10000;
int naptime = 1000;
int notify_interval = 100;
int on_lost = static_cast<int>(core::OnLost::retry);
int priority = 100;
int publish_limit = 10000;
int retention = 21600;
core::RetryPolicy retry; // its defaults are those in the text of tq.retry below
int segment_interval = 3600;
int segment_rows = 1000000;
bool strict_timeout = false;
bool testing = false;
#ifdef TQ_TEST
char *test_version = nullptr;
#endif
int timeout = 0;
int timer_horizon = 600;
int unique_for = 0;
int worker_grace = 30000;
bool workers = true;

void (*fake_now_assigned)() = nullptr;

namespace
{

constexpr int kTenYears = 3652 * 86400; // seconds

char *fake_now_text = nullptr;
char *retry_text = nullptr;

constexpr config_enum_entry kOnLost[] = {
	{"retry", static_cast<int>(core::OnLost::retry), false},
	{"bury", static_cast<int>(core::OnLost::bury), false},
	{"dead", static_cast<int>(core::OnLost::dead), false},
	{nullptr, 0, false},
};

// The checks also run in the postmaster, where an error would stop the server. So they raise none for a wrong value.
bool check_fake_now(char **value, void **extra, GucSource)
{
	core::Micros time = 0;
	if (**value != '\0')
	{
		if (!pg::parse_timestamp(*value, &time))
		{
			GUC_check_errdetail("It must be a date and time such as \"2026-03-29 01:59:30+01\", or empty.");
			return false;
		}
		if (time < kFirstFakeTime || time >= kFakeTimeEnd)
		{
			GUC_check_errdetail("It must lie in the years 2001 to 9998.");
			return false;
		}
	}
	*extra = pg::alloc_guc_extra(sizeof(time));
	if (*extra == nullptr)
		return false;
	memcpy(*extra, &time, sizeof(time));
	return true;
}

void assign_fake_now(const char *, void *extra)
{
	if (extra == nullptr)
		return;
	memcpy(&fake_now, extra, sizeof(fake_now));
	if (fake_now_assigned != nullptr)
		fake_now_assigned();
}

// Uses its own memory context, because the postmaster's is never reset.
bool parse_retry(const char *text, core::RetryPolicy *policy)
{
	volatile bool good = false;
	const MemoryContext own = AllocSetContextCreate(CurrentMemoryContext, "retry policy", ALLOCSET_SMALL_SIZES);
	const MemoryContext outside = MemoryContextSwitchTo(own);
	PG_TRY();
	{
		*policy =
			tq::parse_retry(DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(text))), core::RetryPolicy{});
		good = true;
	}
	PG_CATCH();
	{
		const ErrorData *e = pg::take_data_error(own);
		if (e->sqlerrcode == ERRCODE_INVALID_PARAMETER_VALUE)
			GUC_check_errdetail("%c%s.%s%s", pg_ascii_toupper(static_cast<unsigned char>(*e->message)), e->message + 1,
								e->detail != nullptr ? " " : "", e->detail != nullptr ? e->detail : "");
		else
			GUC_check_errdetail("It must be a JSON object such as {\"policy\": \"exponential\", \"delay\": \"10 s\", "
								"\"max\": \"1 h\"}.");
		if (e->hint != nullptr)
			GUC_check_errhint("%s", e->hint);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(outside);
	MemoryContextDelete(own);
	return good;
}

bool check_retry(char **value, void **extra, GucSource)
{
	core::RetryPolicy policy;
	if (!parse_retry(*value, &policy))
		return false;
	*extra = pg::alloc_guc_extra(sizeof(policy));
	if (*extra == nullptr)
		return false;
	memcpy(*extra, &policy, sizeof(policy));
	return true;
}

void assign_retry(const char *, void *extra)
{
	if (extra != nullptr)
		memcpy(static_cast<void *>(&retry), extra, sizeof(retry));
}

struct Description
{
	const char *what;
	const char *more = nullptr;
};

struct Range
{
	int low;
	int high;
};

void integer(const char *name, const Description &d, int *variable, Range range, GucContext context, int unit = 0)
{
	DefineCustomIntVariable(name, d.what, d.more, variable, *variable, range.low, range.high, context, unit, nullptr,
							nullptr, nullptr);
}

void boolean(const char *name, const Description &d, bool *variable, GucContext context)
{
	DefineCustomBoolVariable(name, d.what, d.more, variable, *variable, context, 0, nullptr, nullptr, nullptr);
}

} // namespace

// In alphabetical order. Numbers of queues, lanes, segments, workers and slots for progress have 16 bits, which bounds
// their settings.
void define()
{
	integer("tq.audit_interval", {"Time between two recounts of the journal by the janitor.", "0 turns them off."},
			&audit_interval, {0, INT_MAX / 1000}, PGC_SIGHUP, GUC_UNIT_S);
	integer("tq.audit_retention", {"How long tq_audit shows what administrators have done.", "0: it is not recorded."},
			&audit_retention, {0, kTenYears}, PGC_SIGHUP, GUC_UNIT_S);
	boolean("tq.auto_create_queues", {"Makes a queue when a job is first enqueued to it."}, &auto_create_queues,
			PGC_SUSET);
	integer("tq.cancel_grace",
			{"How long a running job that was asked to stop keeps its lease.", "A queue may say otherwise."},
			&cancel_grace, {0, INT_MAX}, PGC_USERSET, GUC_UNIT_MS);
	integer("tq.claim_batch_limit", {"Most jobs that one call of tq_claim can take."}, &claim_batch_limit, {1, 1000000},
			PGC_USERSET);
	integer("tq.claim_log_delay",
			{"How long a claim stays in memory only before it is journalled.",
			 "Jobs that finish sooner cost no journal entry for their claim."},
			&claim_log_delay, {0, 60000}, PGC_SIGHUP, GUC_UNIT_MS);
	boolean("tq.claim_own",
			{"Lets tq_claim take jobs that its own transaction has enqueued.",
			 "For tests that roll back. A commit works as well."},
			&claim_own, PGC_USERSET);
	integer("tq.dead_retention", {"How long dead and buried jobs are kept."}, &dead_retention, {0, kTenYears},
			PGC_SIGHUP, GUC_UNIT_S);
	integer("tq.executor_idle", {"How long an executor without jobs stays."}, &executor_idle, {0, 86400000}, PGC_SIGHUP,
			GUC_UNIT_MS);
	integer("tq.executors",
			{"Most processes of one database that run jobs by handlers.",
			 "0: none. There are never more than tq.max_executors."},
			&executors, {0, 1000}, PGC_SIGHUP);
	integer(
		"tq.expires_in",
		{"How long a job waits to be started before it expires.", "0: for ever. A queue or a job may say otherwise."},
		&expires_in, {0, kTenYears}, PGC_USERSET, GUC_UNIT_S);
	DefineCustomStringVariable("tq.fake_now", "Sets tq's clock to a time, from which it goes on.",
							   "For tests of schedules, leases and retention. Empty: the server's clock.",
							   &fake_now_text, "", PGC_SIGHUP, GUC_NOT_IN_SAMPLE, check_fake_now, assign_fake_now,
							   nullptr);
	integer("tq.lease",
			{"How long a claimed job may go without a heartbeat.", "A queue, a job or tq_claim may say otherwise."},
			&lease, {1, INT_MAX}, PGC_USERSET, GUC_UNIT_MS);
	integer("tq.lease_grace", {"Time added to a lease before it is taken away.", "A margin for clocks and networks."},
			&lease_grace, {0, 3600000}, PGC_SIGHUP, GUC_UNIT_MS);
	integer("tq.load_timeout", {"How long a call waits for the live state to be loaded.", "After it: TQ009."},
			&load_timeout, {0, 3600000}, PGC_USERSET, GUC_UNIT_MS);
	integer("tq.max_array_elements", {"Most elements of an array that a function is given."}, &max_array_elements,
			{1000, 2000000}, PGC_SUSET);
	integer("tq.max_array_size", {"Largest array that a function is given."}, &max_array_size, {64, 1048575}, PGC_SUSET,
			GUC_UNIT_KB);
	integer("tq.max_attempts", {"How often a job is tried.", "A queue or a job may say otherwise."}, &max_attempts,
			{1, 65535}, PGC_USERSET);
	integer("tq.max_databases", {"Databases of this server that can use tq."}, &max_databases, {1, kMaxDatabases},
			PGC_POSTMASTER);
	integer("tq.max_depth", {"Most live jobs of a queue.", "0: no limit. A queue may say otherwise."}, &max_depth,
			{0, INT_MAX}, PGC_SUSET);
	integer("tq.max_error",
			{"Longest error, and largest error detail, that is kept of an attempt.", "What is larger is cut."},
			&max_error, {1, 1024}, PGC_SUSET, GUC_UNIT_KB);
	integer("tq.max_executors", {"Places for executors, of each database.", "About 100 bytes each."}, &max_executors,
			{0, 1000}, PGC_POSTMASTER);
	integer("tq.max_groups",
			{"Groups of jobs, over all queues, that have a place in shared memory.", "324 bytes each."},
			&max_groups, {4, 10000000}, PGC_POSTMASTER);
	integer("tq.max_handlers_per_role", {"Most handlers of a role.", "0: no limit."}, &max_handlers_per_role,
			{0, INT_MAX}, PGC_SUSET);
	integer("tq.max_headers", {"Largest headers of a job."}, &max_headers, {1, 32768}, PGC_SUSET, GUC_UNIT_KB);
	integer("tq.max_lanes",
			{"Kinds of jobs, over all queues, that have a place in shared memory.", "About 400 bytes each."},
			&max_lanes, {4, kMaxLanes}, PGC_POSTMASTER);
	integer("tq.max_live_jobs", {"Jobs kept in shared memory; more wait on disk.", "About 160 bytes each."},
			&max_live_jobs, {16, 100000000}, PGC_POSTMASTER);
	integer("tq.max_options", {"Largest options, retry policy and settings of a queue."}, &max_options, {1, 1024},
			PGC_SUSET, GUC_UNIT_KB);
	integer("tq.max_payload", {"Largest payload, and largest checkpoint, of a job."}, &max_payload, {1, 1048575},
			PGC_SUSET, GUC_UNIT_KB);
	integer("tq.max_pinned_wait",
			{"Longest wait of a call while the session holds a snapshot.",
			 "Bounds the waits of tq_claim and tq_changes, and of tq_wait and tq_wait_jobs that need one."},
			&max_pinned_wait, {1, INT_MAX}, PGC_USERSET, GUC_UNIT_MS);
	integer("tq.max_progress", {"Running jobs that can show their progress at the same time.", "About 1 kB each."},
			&max_progress, {0, 60000}, PGC_POSTMASTER);
	integer("tq.max_queues", {"Queues of all databases that have a place in shared memory."}, &max_queues, {1, 32000},
			PGC_POSTMASTER);
	integer("tq.max_result", {"Largest result of a job."}, &max_result, {1, 32768}, PGC_SUSET, GUC_UNIT_KB);
	integer("tq.max_schedules_per_queue", {"Most schedules of a queue.", "0: no limit."}, &max_schedules_per_queue,
			{0, INT_MAX}, PGC_SUSET);
	integer("tq.max_schedules_per_role", {"Most schedules of a role.", "0: no limit."}, &max_schedules_per_role,
			{0, INT_MAX}, PGC_SUSET);
	integer("tq.max_segments", {"Segments of one database that can exist at the same time."}, &max_segments, {4, 60000},
			PGC_POSTMASTER);
	integer("tq.max_workers", {"Names of workers that are remembered."}, &max_workers, {4, 65000}, PGC_POSTMASTER);
	integer("tq.naptime", {"Longest sleep of the launcher and of a scheduler with nothing to do."}, &naptime,
			{10, 3600000}, PGC_SIGHUP, GUC_UNIT_MS);
	integer("tq.notify_interval",
			{"Shortest time between two notifications of a queue.",
			 "For queues with the setting notify. What happens meanwhile is told together."},
			&notify_interval, {1, 3600000}, PGC_SIGHUP, GUC_UNIT_MS);
	DefineCustomEnumVariable("tq.on_lost", "What becomes of a job whose lease was lost.", "A queue may say otherwise.",
							 &on_lost, on_lost, kOnLost, PGC_SIGHUP, 0, nullptr, nullptr, nullptr);
	integer("tq.priority", {"Priority of a job that is enqueued without one.", "A queue or a job may say otherwise."},
			&priority, {PG_INT16_MIN, PG_INT16_MAX}, PGC_USERSET);
	integer("tq.publish_limit",
			{"Jobs enqueued by one transaction that are published one by one.",
			 "Further jobs of the transaction are read back from disk."},
			&publish_limit, {0, 100000}, PGC_USERSET);
	integer("tq.retention", {"How long finished jobs are kept."}, &retention, {0, kTenYears}, PGC_SIGHUP, GUC_UNIT_S);
	DefineCustomStringVariable(
		"tq.retry", "When a failed job is tried again.", "A queue or a job may say otherwise.", &retry_text,
		R"({"policy": "exponential", "delay": "10 s", "max": "1 h", "factor": 2, "jitter": 0.1})", PGC_SIGHUP, 0,
		check_retry, assign_retry, nullptr);
	integer("tq.segment_interval", {"Greatest age of a segment before the next is opened."}, &segment_interval,
			{1, INT_MAX / 1000}, PGC_SIGHUP, GUC_UNIT_S);
	integer("tq.segment_rows", {"Jobs in a segment before the next is opened."}, &segment_rows, {1, 100000000},
			PGC_SIGHUP);
	integer("tq.series_memory",
			{"Shared memory for the counts of tq_series.",
			 "About 7 kB for each queue and hour; where that is too little, older counts get coarser."},
			&series_memory, {0, 1048576}, PGC_POSTMASTER, GUC_UNIT_KB);
	boolean("tq.strict_timeout", {"Heartbeats do not extend a lease.", "A queue may say otherwise."}, &strict_timeout,
			PGC_SIGHUP);
#ifdef TQ_TEST
	DefineCustomStringVariable("tq.test_version", "Makes the library say that it is of another version.", nullptr,
							   &test_version, "", PGC_SIGHUP, GUC_NOT_IN_SAMPLE, nullptr, nullptr, nullptr);
#endif
	boolean("tq.testing",
			{"Allows tq_set_now and tq_reset, which are for tests only.",
			 "Set it with ALTER DATABASE for databases that exist for tests."},
			&testing, PGC_SUSET);
	integer("tq.timeout",
			{"How long one attempt may take, whatever its heartbeats say.",
			 "0: no limit. A queue or a job may say otherwise."},
			&timeout, {0, INT_MAX}, PGC_USERSET, GUC_UNIT_MS);
	integer("tq.timer_horizon", {"Delayed jobs due within this time are kept in memory."}, &timer_horizon,
			{1, INT_MAX / 1000}, PGC_SIGHUP, GUC_UNIT_S);
	integer("tq.unique_for",
			{"How long after its enqueue a job's unique key stays taken.",
			 "0: while the job is live. A queue or a job may say otherwise."},
			&unique_for, {0, kTenYears}, PGC_USERSET, GUC_UNIT_S);
	integer("tq.worker_grace",
			{"How long the own leases of a worker last after the end of its connection.",
			 "A heartbeat or a claim of the worker keeps them."},
			&worker_grace, {0, 3600000}, PGC_SIGHUP, GUC_UNIT_MS);
	boolean("tq.workers", {"Runs the schedulers and janitors of the databases that have the extension."}, &workers,
			PGC_SIGHUP);
	MarkGUCPrefixReserved("tq");
}

} // namespace tq::guc
