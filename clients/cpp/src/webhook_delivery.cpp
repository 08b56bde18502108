#include <tq/utf8.hpp>
#include <tq/webhook.hpp>

#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <boost/json.hpp>

#include <ctime>
#include <functional>

namespace tq::webhook
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

struct Answer
{
	unsigned status = 0;
	std::string retry_after, body;
	bool whole = false; // the body
};

using Request = http::request<http::string_body>;

// There is no address that may be reached.
struct NotPublic : std::runtime_error
{
	using std::runtime_error::runtime_error;
};

// Addresses of the host that may be reached. The connection is made to one of these, without another look-up.
Task<std::vector<asio::ip::tcp::endpoint>> resolve(const Target &target)
{
	// shared: the timer may have ended when the answer comes, and then calls its function later
	const auto resolver = std::make_shared<asio::ip::tcp::resolver>(co_await asio::this_coro::executor);
	asio::steady_timer timer(resolver->get_executor(), target.timeout);
	timer.async_wait([resolver](const error_code &error) {
		if (!error)
			resolver->cancel();
	});
	const auto found = co_await resolver->async_resolve(target.url.host, target.url.port, use_awaitable);
	std::vector<asio::ip::tcp::endpoint> endpoints;
	for (const auto &entry : found)
		if (target.allow_private || is_public(entry.endpoint().address()))
			endpoints.push_back(entry.endpoint());
	if (endpoints.empty())
		throw NotPublic("host " + target.url.host + " has no public address");
	co_return endpoints;
}

template <class Stream>
Task<Answer> exchange(Stream &stream, const Request &request, std::size_t max_body)
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

Task<Answer> post(const Target &target, const Request &request, std::stop_token stop)
{
	const std::vector<asio::ip::tcp::endpoint> endpoints = co_await resolve(target);
	const auto tcp = std::make_shared<beast::tcp_stream>(co_await asio::this_coro::executor);
	const Closer closer(stop, tcp);
	if (stop.stop_requested())
		throw boost::system::system_error(asio::error::operation_aborted);
	tcp->expires_after(target.timeout); // for all that follows
	co_await tcp->async_connect(endpoints, use_awaitable);
	if (!target.url.tls)
		co_return co_await exchange(*tcp, request, target.max_result);
	beast::ssl_stream<beast::tcp_stream &> stream(*tcp, *target.tls);
	stream.set_verify_callback(asio::ssl::host_name_verification(target.url.host));
	error_code literal;
	asio::ip::make_address(target.url.host, literal);
	if (literal) // names only
		SSL_set_tlsext_host_name(stream.native_handle(), target.url.host.c_str());
	co_await stream.async_handshake(asio::ssl::stream_base::client, use_awaitable);
	co_return co_await exchange(stream, request, target.max_result);
}

Request request_of(const Target &target, const std::string &id, std::string payload)
{
	Request request(http::verb::post, target.url.target, 11);
	const std::int64_t now = std::time(nullptr);
	request.set(http::field::host, target.url.authority);
	request.set(http::field::user_agent, "tq");
	request.set(http::field::content_type, "application/json");
	request.set(http::field::connection, "close");
	request.set("webhook-id", id);
	request.set("webhook-timestamp", std::to_string(now));
	request.set("webhook-signature", webhook_signature(target.keys, id, now, payload));
	request.body() = std::move(payload);
	request.prepare_payload();
	return request;
}

bool is_json(const std::string &text)
{
	error_code error;
	boost::json::parse(text, error);
	return !error;
}

Outcome outcome_of(const Answer &answer)
{
	Outcome outcome;
	if (answer.status / 100 == 2)
	{
		outcome.delivered = true;
		if (answer.whole && !answer.body.empty() && is_json(answer.body))
			outcome.result = answer.body;
		return outcome;
	}
	outcome.error = "HTTP status " + std::to_string(answer.status);
	if (answer.status / 100 == 3)
		outcome.error += " (redirects are not followed)";
	if (!answer.body.empty())
		outcome.error += ": " + valid_utf8(answer.body.substr(0, kMaxError));
	outcome.fatal = answer.status == 410;
	if (answer.status == 429 || answer.status == 503)
	{
		if (const auto seconds = parse_retry_after(answer.retry_after, std::time(nullptr)))
			outcome.retry_in = std::chrono::seconds(std::min(*seconds, kMaxRetryAfter));
	}
	return outcome;
}

} // namespace

std::shared_ptr<asio::ssl::context> tls_context(const std::string &ca_file)
{
	const auto tls = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_client);
	tls->set_verify_mode(asio::ssl::verify_peer);
	if (ca_file.empty())
		tls->set_default_verify_paths();
	else
		tls->load_verify_file(ca_file);
	if (SSL_CTX_set_min_proto_version(tls->native_handle(), TLS1_2_VERSION) != 1)
		throw std::runtime_error("OpenSSL has no TLS 1.2");
	return tls;
}

Task<Outcome> deliver(const Target &target, std::string id, std::string payload, std::stop_token stop)
{
	Outcome outcome;
	Answer answer;
	try
	{
		const Request request = request_of(target, id, std::move(payload));
		answer = co_await post(target, request, stop);
	}
	catch (const boost::system::system_error &error)
	{
		const bool late = error.code() == beast::error::timeout || error.code() == asio::error::operation_aborted;
		outcome.error = target.url.host + ": " + (late ? "no answer within the timeout" : error.code().message());
	}
	catch (const NotPublic &error)
	{
		outcome.error = error.what();
	}
	outcome.stopped = !outcome.error.empty() && stop.stop_requested();
	co_return outcome.error.empty() ? outcome_of(answer) : outcome;
}

} // namespace tq::webhook
