// tq work: runs a program for each job.
#include "command.hpp"
#include "guard.hpp"
#include "process.hpp"
#include "text.hpp"

#include <tq/utf8.hpp>
#include <tq/worker.hpp>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>

#include <cstdlib>
#include <fstream>
#include <sysexits.h>

namespace cli
{

namespace
{

constexpr std::size_t kMaxVariable = 100000; // bytes; Linux passes at most 128 kB in one variable

// What environment_of() may set. A worker that is itself run for a job has them, and must not pass them on.
constexpr const char *kVariables[] = {
	"TQ_JOB_ID",	 "TQ_LEASE",	 "TQ_QUEUE",	  "TQ_KIND",		"TQ_ATTEMPT",  "TQ_MAX_ATTEMPTS",
	"TQ_PRIORITY",	 "TQ_GROUP_KEY", "TQ_UNIQUE_KEY", "TQ_ENQUEUED_AT", "TQ_DEADLINE", "TQ_HEADERS",
	"TQ_CHECKPOINT", "TQ_PARENTS",	 "TQ_TAGS",		  "TRACEPARENT",	"TRACESTATE"};

struct Work
{
	tq::WorkerOptions options;
	std::vector<std::string> kinds;
	std::string lease = "30s", timeout, grace = "5s", shutdown_timeout = "25s", keys;
	std::size_t max_output = 1 << 20;
	bool once = false, quiet = false;
};

std::string time_text(tq::Time time) { return *tq::value(time); }

std::vector<std::string> environment_of(const tq::JobData &job)
{
	std::vector<std::string> environment;
	const auto add = [&environment](const char *name, const std::optional<std::string> &text) {
		if (text && text->size() <= kMaxVariable)
			environment.push_back(std::string(name) + "=" + *text);
	};
	add("TQ_JOB_ID", std::to_string(job.id));
	add("TQ_LEASE", std::to_string(job.lease));
	add("TQ_QUEUE", job.queue);
	add("TQ_KIND", job.kind);
	add("TQ_ATTEMPT", std::to_string(job.attempt));
	add("TQ_MAX_ATTEMPTS", std::to_string(job.max_attempts));
	add("TQ_PRIORITY", std::to_string(job.priority));
	add("TQ_GROUP_KEY", job.group_key);
	add("TQ_UNIQUE_KEY", job.unique_key);
	add("TQ_ENQUEUED_AT", time_text(job.enqueued_at));
	if (job.deadline)
		add("TQ_DEADLINE", time_text(*job.deadline));
	add("TQ_HEADERS", job.headers);
	add("TQ_CHECKPOINT", job.checkpoint);
	add("TQ_PARENTS", job.parents);
	if (!job.tags.empty())
	{
		boost::json::array tags;
		for (const std::string &tag : job.tags)
			tags.emplace_back(tag);
		add("TQ_TAGS", boost::json::serialize(tags));
	}
	// W3C trace context, as programs with OpenTelemetry expect it
	boost::system::error_code error;
	const boost::json::value headers = boost::json::parse(job.headers.value_or("{}"), error);
	for (auto [key, name] : {std::pair{"traceparent", "TRACEPARENT"}, std::pair{"tracestate", "TRACESTATE"}})
	{
		const auto *object = headers.if_object();
		const auto *found = object ? object->if_contains(key) : nullptr;
		if (found && found->is_string())
			add(name, std::string(found->get_string()));
	}
	return environment;
}

// A line on file descriptor 3: "TQ:progress JSON...", "TQ:checkpoint JSON" or "TQ:retry LENGTH".
class Lines
{
public:
	Lines(const tq::Job &job, std::function<void(const std::string &)> complain)
		: job_(job), complain_(std::move(complain))
	{}

	void take(const std::string &line)
	{
		const std::size_t blank = std::min(line.find(' '), line.size());
		const std::string word = line.substr(0, blank), rest = line.substr(std::min(blank + 1, line.size()));
		if (word == "TQ:progress")
			progress(rest);
		else if (word == "TQ:checkpoint" && is_json(rest))
			job_.checkpoint(rest);
		else if (word == "TQ:retry")
		{
			try
			{
				retry_in = parse_duration(rest);
			}
			catch (const std::invalid_argument &error)
			{
				complain_(error.what());
			}
		}
		else
			complain_("not understood on file descriptor 3: " + line.substr(0, 200));
	}

	std::optional<tq::Duration> retry_in;

private:
	// JSON as it is; a number, alone or with a text behind it, becomes {"percent": 40, "text": "reading"}
	void progress(const std::string &text)
	{
		const std::size_t blank = text.find(' ');
		const std::string number = text.substr(0, blank);
		const std::string rest = blank == std::string::npos ? "" : text.substr(blank + 1);
		const bool percent =
			!number.empty() && number.find_first_not_of("0123456789.") == std::string::npos && is_json(number);
		if (percent)
		{
			const std::string shown =
				rest.empty() ? "" : ", \"text\": " + (rest.front() == '"' && is_json(rest) ? rest : json_string(rest));
			job_.progress("{\"percent\": " + number + shown + "}");
		}
		else if (is_json(text))
			job_.progress(text);
		else
			complain_("progress is neither a number nor JSON: " + text.substr(0, 200));
	}

	const tq::Job &job_;
	std::function<void(const std::string &)> complain_;
};

std::string without_trailing_blanks(std::string text)
{
	text.erase(text.find_last_not_of(" \t\r\n") + 1);
	return text;
}

// What the end of the program means for the job: returns its result, or raises how else it ends.
std::optional<std::string> result_of(const tq::Job &job, Outcome outcome, const Lines &lines, const std::string &name)
{
	const std::string output = without_trailing_blanks(std::move(outcome.output));
	const bool done = outcome.signal == 0 && outcome.status == 0;
	if (done && !outcome.timed_out)
	{
		if (output.empty())
			return std::nullopt;
		return !outcome.output_cut && is_json(output) ? output : json_string(output);
	}
	if (job.stop_reason() == tq::StopReason::kShutdown)
		throw tq::Release();
	std::string how = name + (outcome.signal ? " was killed by signal " + std::to_string(outcome.signal)
											 : " exited with status " + std::to_string(outcome.status));
	if (outcome.timed_out)
		how = name + " ran into the timeout";
	else if (job.stop_reason() == tq::StopReason::kCancel)
		how = name + " was cancelled";
	const std::string errors = without_trailing_blanks(tq::valid_utf8(outcome.errors));
	const std::string error = errors.empty() ? how : outcome.timed_out ? how + ": " + errors : errors;
	if (outcome.signal == 0 && !outcome.timed_out && outcome.status == EX_DATAERR)
		throw tq::Fatal(error);
	if (lines.retry_in)
		throw tq::Retry(*lines.retry_in, error);
	throw tq::Plain(error);
}

std::shared_ptr<const tq::Codec> read_codec(const std::string &path)
{
	std::ifstream file(path);
	if (!file)
		throw std::invalid_argument("cannot read " + path);
	const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
	boost::system::error_code error;
	const boost::json::value value = boost::json::parse(text, error);
	const auto *object = error ? nullptr : value.if_object();
	const auto *keys = object ? object->if_contains("keys") : nullptr;
	const auto *current = object ? object->if_contains("encode_with") : nullptr;
	const auto *algorithm = object ? object->if_contains("alg") : nullptr;
	if (!keys || !keys->is_object() || !current || !current->is_string())
		throw std::invalid_argument(
			path + " must be like {\"keys\": {\"ID\": \"BASE64\"}, \"encode_with\": \"ID\", \"alg\": \"A256GCM\"}");
	std::map<std::string, std::string> decoded;
	for (const auto &[id, key] : keys->get_object())
		decoded[std::string(id)] = tq::base64_decode(key.is_string() ? std::string_view(key.get_string()) : "");
	std::string_view alg = "A256GCM";
	if (algorithm)
		alg = algorithm->is_string() ? std::string_view(algorithm->get_string()) : std::string_view();
	if (alg != "A256GCM" && alg != "HS256")
		throw std::invalid_argument(path + " has an unknown alg: use A256GCM or HS256");
	return std::make_shared<tq::Codec>(decoded, std::string(current->get_string()),
									   alg == "HS256" ? tq::Algorithm::kSign : tq::Algorithm::kEncrypt);
}

int run(Work work, const Global &global)
{
	if (global.command.empty())
		throw std::invalid_argument("no program is given: tq work QUEUE... -- PROGRAM ARGUMENT...");
	tq::WorkerOptions &options = work.options;
	options.dsn = global.dsn;
	options.lease = parse_duration(work.lease);
	options.shutdown_timeout = parse_duration(work.shutdown_timeout);
	options.kinds = work.kinds;
	options.max_jobs = work.once ? 1 : 0;
	if (work.once)
		options.concurrency = 1;
	if (!work.keys.empty())
		options.codec = read_codec(work.keys);
	Program program;
	program.command = global.command;
	program.max_output = work.max_output;
	program.grace = parse_duration(work.grace);
	if (!work.timeout.empty())
		program.timeout = parse_duration(work.timeout);
	// a program that ignores SIGTERM is killed first
	options.cancel_timeout = tq::Duration(program.grace) + std::chrono::seconds(1);
	for (const char *name : kVariables)
		unsetenv(name);
	const Guard guard;
	tq::Worker worker(options);
	worker.on_any([&program](tq::Job job) -> std::optional<std::string> {
		const std::string name = program.command.front();
		Lines lines(job, [id = job->id](const std::string &text) {
			std::fprintf(stderr, "tq: job %lld: %s\n", static_cast<long long>(id), text.c_str());
		});
		Program one = program;
		one.environment = environment_of(*job.operator->());
		one.input = job->payload;
		one.line = [&lines](const std::string &line) { lines.take(line); };
		return result_of(job, run_program(one, job.stop()), lines, name);
	});
	return worker.run();
}

} // namespace

void add_work(CLI::App &app, const Global &global, Action &action)
{
	auto work = std::make_shared<Work>();
	CLI::App *sub = add_path(app, "work", "Run a program for each job of the queues",
							 "mail --concurrency 4 -- ./send-mail --verbose");
	tq::WorkerOptions &options = work->options;
	sub->add_option("QUEUE", options.queues, "the queues, 1 to 8")->required()->expected(1, 8);
	sub->add_option("--concurrency", options.concurrency, "programs that run at once")
		->check(CLI::Range(1, 1000))
		->capture_default_str();
	sub->add_option("--buffer", options.buffer, "jobs held at most, running ones included; else as concurrency")
		->check(CLI::Range(1, 10000));
	sub->add_option("--kind", work->kinds, "claim only this kind; may be repeated")->allow_extra_args(false);
	sub->add_option("--name", options.name, "the worker's name; else host and process id");
	sub->add_option("--lease", work->lease, "length of a lease")->type_name("LENGTH")->capture_default_str();
	sub->add_option("--timeout", work->timeout, "stop a program after this time")->type_name("LENGTH");
	sub->add_option("--grace", work->grace, "from SIGTERM to SIGKILL")->type_name("LENGTH")->capture_default_str();
	sub->add_option("--shutdown-timeout", work->shutdown_timeout, "how long programs may go on after SIGTERM")
		->type_name("LENGTH")
		->capture_default_str();
	sub->add_option("--max-output", work->max_output, "bytes of standard output that are kept as the result")
		->capture_default_str();
	sub->add_option("--keys", work->keys, "file with keys: payloads, results and checkpoints are encoded")
		->type_name("FILE");
	sub->add_flag("--accept-plain", options.accept_plain, "with --keys: also run jobs with plain payloads");
	CLI::Option *once = sub->add_flag("--once", work->once, "end after one job");
	sub->add_flag("--drain", options.drain, "end when no job is ready")->excludes(once);
	sub->callback([work, &global, &action] { action = [work, &global] { return run(*work, global); }; });
}

} // namespace cli
