// tq push: delivers each job as a webhook.
#include "command.hpp"
#include "text.hpp"

#include <tq/webhook.hpp>
#include <tq/worker.hpp>

#include <CLI/CLI.hpp>

#include <fstream>
#include <iterator>

namespace cli
{

namespace
{

using namespace tq::webhook;

struct Push
{
	tq::WorkerOptions options;
	std::vector<std::string> kinds, allowed;
	std::string url, secret_file, ca_file, lease = "30s", timeout = "15s", shutdown_timeout = "25s";
	std::size_t max_result = 1 << 20;
	bool allow_private = false;
};

std::string read_file(const std::string &path)
{
	std::ifstream file(path);
	if (!file)
		throw std::invalid_argument("cannot read " + path);
	return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

tq::Task<std::optional<std::string>> deliver_job(const Target &target, tq::Job job)
{
	const Outcome outcome = co_await deliver(target, "tq-" + std::to_string(job->id), job->payload, job.stop());
	if (outcome.delivered)
		co_return outcome.result;
	if (outcome.stopped && job.stop_reason() == tq::StopReason::kShutdown)
		throw tq::Release();
	if (outcome.stopped && job.stop_reason() == tq::StopReason::kCancel)
		throw tq::Plain(target.url.host + ": cancelled");
	if (outcome.fatal)
		throw tq::Fatal(outcome.error);
	if (outcome.retry_in)
		throw tq::Retry(*outcome.retry_in, outcome.error);
	throw tq::Plain(outcome.error);
}

Target target_of(const Push &push)
{
	Target target;
	target.url = parse_url(push.url);
	target.keys = parse_secrets(read_file(push.secret_file));
	target.allow_private = push.allow_private;
	target.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(parse_duration(push.timeout));
	target.max_result = push.max_result;
	if (!push.allowed.empty() && !host_allowed(target.url.host, push.allowed))
		throw std::invalid_argument("host " + target.url.host + " is none of --allow-host");
	boost::system::error_code error;
	const auto address = boost::asio::ip::make_address(target.url.host, error);
	if (!error && !target.allow_private && !is_public(address))
		throw std::invalid_argument("address " + target.url.host + " is not public: it needs --allow-private");
	target.tls = tls_context(push.ca_file);
	return target;
}

int run(Push push, const Global &global)
{
	const Target target = target_of(push);
	tq::WorkerOptions &options = push.options;
	options.dsn = global.dsn;
	options.kinds = push.kinds;
	options.lease = parse_duration(push.lease);
	options.shutdown_timeout = parse_duration(push.shutdown_timeout);
	options.threads = 1; // deliveries are coroutines
	tq::Worker worker(options);
	worker.on_any([&target](tq::Job job) { return deliver_job(target, std::move(job)); });
	return worker.run();
}

} // namespace

void add_push(CLI::App &app, const Global &global, Action &action)
{
	auto push = std::make_shared<Push>();
	CLI::App *sub = add_path(app, "push", "Deliver each job of the queues by HTTP, as a webhook with a signature",
							 "events --url https://example.org/hook --secret-file secret");
	tq::WorkerOptions &options = push->options;
	sub->add_option("QUEUE", options.queues, "the queues, 1 to 8")->required()->expected(1, 8);
	sub->add_option("--url", push->url, "where the payload is sent by POST")->required();
	sub->add_option("--secret-file", push->secret_file, "file with a line whsec_BASE64 for each secret")
		->required()
		->type_name("FILE");
	sub->add_option("--allow-host", push->allowed, "refuse a URL with another host; may be repeated")
		->allow_extra_args(false);
	sub->add_flag("--allow-private", push->allow_private, "also send to addresses that are not public");
	sub->add_option("--ca-file", push->ca_file, "certificates to trust; else those of the system")->type_name("FILE");
	sub->add_option("--request-timeout", push->timeout, "the longest time of a request")
		->type_name("LENGTH")
		->capture_default_str();
	sub->add_option("--max-result", push->max_result, "bytes of an answer that are read")
		->check(CLI::Range(0, 1 << 26))
		->capture_default_str();
	sub->add_option("--concurrency", options.concurrency, "requests at once")
		->check(CLI::Range(1, 1000))
		->capture_default_str();
	sub->add_option("--kind", push->kinds, "claim only this kind; may be repeated")->allow_extra_args(false);
	sub->add_option("--name", options.name, "the worker's name; else host and process id");
	sub->add_option("--lease", push->lease, "length of a lease")->type_name("LENGTH")->capture_default_str();
	sub->add_option("--shutdown-timeout", push->shutdown_timeout, "how long requests may go on after SIGTERM")
		->type_name("LENGTH")
		->capture_default_str();
	sub->add_flag("--drain", options.drain, "end when no job is ready");
	sub->callback([push, &global, &action] { action = [push, &global] { return run(*push, global); }; });
}

} // namespace cli
