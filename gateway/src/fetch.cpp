#include "fetch.hpp"

#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <boost/url.hpp>

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::use_awaitable;

namespace gateway
{

namespace
{

constexpr std::size_t kMost = 1 << 20;
constexpr auto kTime = std::chrono::seconds(10);

template <class Stream>
tq::Task<std::string> get(Stream &stream, const boost::urls::url &url)
{
	http::request<http::empty_body> request(http::verb::get, std::string(url.encoded_target()), 11);
	if (request.target().empty())
		request.target("/");
	request.set(http::field::host, std::string(url.encoded_host_and_port()));
	request.set(http::field::accept, "application/json");
	request.set(http::field::user_agent, "tq-gateway");
	co_await http::async_write(stream, request, use_awaitable);
	beast::flat_buffer buffer;
	http::response_parser<http::string_body> parser;
	parser.body_limit(kMost);
	co_await http::async_read(stream, buffer, parser, use_awaitable);
	if (parser.get().result() != http::status::ok)
		throw std::runtime_error("the answer is " + std::to_string(parser.get().result_int()));
	co_return parser.get().body();
}

} // namespace

bool is_url(const std::string &text) { return text.starts_with("https://") || text.starts_with("http://"); }

void check_url(const std::string &url)
{
	const auto parsed = boost::urls::parse_uri(url);
	if (!parsed || parsed->encoded_host().empty())
		throw std::invalid_argument("not a URL: " + url);
	const std::string host = parsed->host();
	if (parsed->scheme() != "https" && host != "localhost" && host != "127.0.0.1" && host != "[::1]")
		throw std::invalid_argument("keys come by https, or by http from loopback: " + url);
}

tq::Task<std::string> fetch(std::string text)
{
	check_url(text);
	const boost::urls::url url = boost::urls::parse_uri(text).value();
	const bool tls = url.scheme() == "https";
	const std::string host = url.host_address();
	const auto executor = co_await asio::this_coro::executor;
	asio::ip::tcp::resolver resolver(executor);
	const std::string port = !url.port().empty() ? std::string(url.port()) : tls ? "443" : "80";
	const auto places = co_await resolver.async_resolve(host, port, use_awaitable);
	beast::tcp_stream socket(executor);
	socket.expires_after(kTime);
	co_await socket.async_connect(places, use_awaitable);
	if (!tls)
		co_return co_await get(socket, url);
	asio::ssl::context context(asio::ssl::context::tls_client);
	context.set_default_verify_paths();
	context.set_verify_mode(asio::ssl::verify_peer);
	beast::ssl_stream<beast::tcp_stream> stream(std::move(socket), context);
	stream.set_verify_callback(asio::ssl::host_name_verification(host));
	SSL_set_tlsext_host_name(stream.native_handle(), host.c_str());
	co_await stream.async_handshake(asio::ssl::stream_base::client, use_awaitable);
	co_return co_await get(stream, url);
}

} // namespace gateway
