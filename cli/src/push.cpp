// tq push: delivers each job as a webhook.
#include "command.hpp"
#include "text.hpp"
#include "webhook.hpp"

#include <tq/utf8.hpp>
#include <tq/worker.hpp>

#include <CLI/CLI.hpp>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>

#include <ctime>
#include <fstream>
#include <iterator>

namespace cli
{

namespace
{

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::use_awaitable;
using boost::system::error_code;

constexpr std::size_t kMaxError = 1000;		   // bytes of a body that are part of an error
constexpr std::int64_t kMaxRetryAfter = 86400; // seconds

struct Push
{
	tq::WorkerOptions options;
	std::vector<std::string> kinds, allowed;
	std::string url, secret_file, ca_file, lease = "30s", timeout = "15s", shutdown_timeout = "25s";
	std::size_t max_result = 1 << 20;
	bool allow_private = false;
};

struct Target
{
	Url url;
	std::vector<std::string> keys;
	std::shared_ptr<asio::ssl::context> tls;
	bool allow_private = false;
	tq::Duration timeout{};
	std::size_t max_body = 0;
};

struct Answer
{
	unsigned status = 0;
	std::string retry_after, body;
	bool whole = false; // the body
};

using Request = http::request<http::string_body>;

std::string read_file(const std::string &path)
{
	std::ifstream file(path);
	if (!file)
		throw std::invalid_argument("cannot read " + path);
	return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Addresses of the host that may be reached. The connection is made to one of these, without another look-up.
tq::Task<std::vector<asio::ip::tcp::endpoint>> resolve(const Target &target)
{
	asio::ip::tcp::resolver resolver(co_await asio::this_coro::executor);
	const auto found = co_await resolver.async_resolve(target.url.host, target.url.port, use_awaitable);
	std::vector<asio::ip::tcp::endpoint> endpoints;
	for (const auto &entry : found)
		if (target.allow_private || is_public(entry.endpoint().address()))
			endpoints.push_back(entry.endpoint());
	if (endpoints.empty())
		throw tq::Plain("host " + target.url.host + " has no public address (--allow-private allows others)");
	co_return endpoints;
}

template <class Stream>
tq::Task<Answer> exchange(Stream &stream, const Request &request, std::size_t max_body)
{
	co_await http::async_write(stream, request, use_awaitable);
	http::response_parser<http::buffer_body> parser;
	parser.body_limit(boost::none); // the buffer is the limit
	beast::flat_buffer buffer;
	co_await http::async_read_header(stream, buffer, parser, use_awaitable);
	Answer answer;
	answer.status = parser.get().result_int();
	answer.retry_after = std::string(parser.get()[http::field::retry_after]);
	answer.body.resize(max_body);
	auto &body = parser.get().body();
	body.data = answer.body.data();
	body.size = max_body;
	// the status is the answer, whatever comes of the body
	error_code error;
	co_await http::async_read(stream, buffer, parser, asio::redirect_error(use_awaitable, error));
	answer.whole = parser.is_done();
	answer.body.resize(max_body - body.size);
	co_return answer;
}

// Closes the socket when the job should stop, which ends what waits for it.
class Closer
{
public:
	Closer(const std::stop_token &stop, std::shared_ptr<beast::tcp_stream> stream)
		: callback_(stop, [stream = std::move(stream)] {
			  asio::post(stream->get_executor(), [stream] { stream->cancel(); });
		  })
	{}

private:
	std::stop_callback<std::function<void()>> callback_;
};

tq::Task<Answer> post(const Target &target, const Request &request, std::stop_token stop)
{
	const std::vector<asio::ip::tcp::endpoint> endpoints = co_await resolve(target);
	const auto tcp = std::make_shared<beast::tcp_stream>(co_await asio::this_coro::executor);
	const Closer closer(stop, tcp);
	if (stop.stop_requested())
		throw boost::system::system_error(asio::error::operation_aborted);
	tcp->expires_after(target.timeout); // for all that follows
	co_await tcp->async_connect(endpoints, use_awaitable);
	if (!target.url.tls)
		co_return co_await exchange(*tcp, request, target.max_body);
	beast::ssl_stream<beast::tcp_stream &> stream(*tcp, *target.tls);
	stream.set_verify_callback(asio::ssl::host_name_verification(target.url.host));
	error_code literal;
	asio::ip::make_address(target.url.host, literal);
	if (literal) // names only
		SSL_set_tlsext_host_name(stream.native_handle(), target.url.host.c_str());
	co_await stream.async_handshake(asio::ssl::stream_base::client, use_awaitable);
	co_return co_await exchange(stream, request, target.max_body);
}

Request request_of(const Target &target, const tq::JobData &job)
{
	Request request(http::verb::post, target.url.target, 11);
	const std::string id = "tq-" + std::to_string(job.id);
	const std::int64_t now = std::time(nullptr);
	request.set(http::field::host, target.url.authority);
	request.set(http::field::user_agent, "tq/" TQ_VERSION);
	request.set(http::field::content_type, "application/json");
	request.set(http::field::connection, "close");
	request.set("webhook-id", id);
	request.set("webhook-timestamp", std::to_string(now));
	request.set("webhook-signature", webhook_signature(target.keys, id, now, job.payload));
	request.body() = job.payload;
	request.prepare_payload();
	return request;
}

// What the answer means for the job: returns its result, or raises how else it ends.
std::optional<std::string> result_of(const Answer &answer)
{
	if (answer.status / 100 == 2)
	{
		const bool json = answer.whole && !answer.body.empty() && is_json(answer.body);
		return json ? std::optional(answer.body) : std::nullopt;
	}
	std::string error = "HTTP status " + std::to_string(answer.status);
	if (answer.status / 100 == 3)
		error += " (redirects are not followed)";
	if (!answer.body.empty())
		error += ": " + tq::valid_utf8(answer.body.substr(0, kMaxError));
	if (answer.status == 410)
		throw tq::Fatal(error);
	if (answer.status == 429 || answer.status == 503)
	{
		if (const auto seconds = parse_retry_after(answer.retry_after, std::time(nullptr)))
			throw tq::Retry(std::chrono::seconds(std::min(*seconds, kMaxRetryAfter)), error);
	}
	throw tq::Plain(error);
}

tq::Task<std::optional<std::string>> deliver(const Target &target, tq::Job job)
{
	std::string failure;
	Answer answer;
	try
	{
		const Request request = request_of(target, *job.operator->());
		answer = co_await post(target, request, job.stop());
	}
	catch (const boost::system::system_error &error)
	{
		failure = error.code() == beast::error::timeout ? "no answer within the timeout" : error.code().message();
	}
	if (failure.empty())
		co_return result_of(answer);
	if (job.stop_reason() == tq::StopReason::kShutdown)
		throw tq::Release();
	throw tq::Plain(target.url.host + ": " + (job.stop_reason() == tq::StopReason::kCancel ? "cancelled" : failure));
}

Target target_of(const Push &push)
{
	Target target;
	target.url = parse_url(push.url);
	target.keys = parse_secrets(read_file(push.secret_file));
	target.allow_private = push.allow_private;
	target.timeout = parse_duration(push.timeout);
	target.max_body = push.max_result;
	if (!push.allowed.empty() && !host_allowed(target.url.host, push.allowed))
		throw std::invalid_argument("host " + target.url.host + " is none of --allow-host");
	error_code error;
	const auto address = asio::ip::make_address(target.url.host, error);
	if (!error && !target.allow_private && !is_public(address))
		throw std::invalid_argument("address " + target.url.host + " is not public: it needs --allow-private");
	target.tls = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_client);
	target.tls->set_verify_mode(asio::ssl::verify_peer);
	if (push.ca_file.empty())
		target.tls->set_default_verify_paths();
	else
		target.tls->load_verify_file(push.ca_file);
	if (SSL_CTX_set_min_proto_version(target.tls->native_handle(), TLS1_2_VERSION) != 1)
		throw std::runtime_error("OpenSSL has no TLS 1.2");
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
	worker.on_any([&target](tq::Job job) { return deliver(target, std::move(job)); });
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
