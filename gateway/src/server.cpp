#include "server.hpp"

#include "problem.hpp"
#include "reading.hpp"
#include "text.hpp"
#include "waits.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <spdlog/spdlog.h>

#include <cstring>
#include <memory>

#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::use_awaitable;
using asio::ip::tcp;
using namespace std::chrono_literals;

namespace gateway
{

namespace
{

// An answer with jobs must have arrived by then, or the jobs are given back.
constexpr auto kDeliveryTime = 4s;
constexpr auto kLook = 20ms;	// until it is asked again whether they have
constexpr auto kLookAgain = 1s; // for the end of a connection on which something has come
constexpr auto kFarewell = 1s;	// for the client's part of the end of TLS
constexpr std::size_t kFirstBytes = 4096;

// The client at the other end of a socket.
class Peer : public Client
{
public:
	explicit Peer(tcp::socket &socket) : socket_(socket) {}

	tq::Task<> gone() override
	{
		for (;;)
		{
			boost::system::error_code error;
			co_await socket_.async_wait(tcp::socket::wait_read, asio::redirect_error(use_awaitable, error));
			char byte;
			const ssize_t got = recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
			if (error == asio::error::operation_aborted)
				throw boost::system::system_error(error);
			if (error || got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
				co_return;
			// it has sent its next request, or the end of TLS: then only the end of the connection tells
			pollfd end{socket_.native_handle(), POLLRDHUP, 0};
			if (got > 0 && poll(&end, 1, 0) != 0)
				co_return;
			if (got > 0)
				co_await sleep(kLookAgain);
		}
	}

	// Whether what was written has arrived in time. Most clients acknowledge it with their next request.
	tq::Task<bool> delivered()
	{
		for (auto waited = 0ms; waited < kDeliveryTime; waited += kLook)
		{
			int left = 0;
			if (!socket_.is_open() || ioctl(socket_.native_handle(), SIOCOUTQ, &left) != 0)
				co_return false;
			if (left == 0)
				co_return true;
			if (waited == 0ms)
				co_await readable(kLook);
			else
				co_await sleep(kLook);
		}
		co_return false;
	}

private:
	// Waits until there is something to read, or so long.
	tq::Task<> readable(std::chrono::milliseconds most)
	{
		const auto waits = std::make_shared<bool>(true); // the timer's handler may come after the wait
		asio::steady_timer timer(socket_.get_executor(), most);
		timer.async_wait([this, waits](const boost::system::error_code &error) {
			if (!error && *waits)
				socket_.cancel();
		});
		boost::system::error_code error;
		co_await socket_.async_wait(tcp::socket::wait_read, asio::redirect_error(use_awaitable, error));
		*waits = false;
	}

	tcp::socket &socket_;
};

http::response<http::string_body> response_of(Answer answer, const http::request_header<> &request, bool keep)
{
	http::response<http::string_body> response{http::status(answer.status), 11};
	response.set(http::field::server, "tq-gateway");
	response.set(http::field::cache_control, "no-store");
	response.set("X-Content-Type-Options", "nosniff");
	if (answer.stream || !answer.body.empty())
		response.set(http::field::content_type, answer.type);
	for (const auto &[name, value] : answer.headers)
		response.set(name, value);
	response.keep_alive(keep);
	response.body() = std::move(answer.body);
	if (answer.status != 204)
		response.prepare_payload();
	if (request.method() == http::verb::head)
		response.body().clear();
	return response;
}

// Writes an answer in chunks.
template <class Stream>
class Chunks : public Sink
{
public:
	Chunks(Stream &stream, std::chrono::milliseconds timeout) : stream_(stream), timeout_(timeout) {}

	tq::Task<> write(std::string part) override
	{
		beast::get_lowest_layer(stream_).expires_after(timeout_);
		co_await asio::async_write(stream_, http::make_chunk(asio::buffer(part)), use_awaitable);
		beast::get_lowest_layer(stream_).expires_never();
	}

private:
	Stream &stream_;
	const std::chrono::milliseconds timeout_;
};

// The common name in the certificate of a client; empty if it has none. The handshake has verified the certificate.
std::string certificate_name(SSL *connection)
{
	const std::unique_ptr<X509, decltype(&X509_free)> certificate(SSL_get1_peer_certificate(connection), X509_free);
	char name[256];
	const int length = certificate ? X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()), NID_commonName,
															   name, sizeof name)
								   : -1;
	return length > 0 && std::strlen(name) == std::size_t(length) ? name : "";
}

} // namespace

Server::Server(asio::any_io_executor executor, Gateway &gateway) : gateway_(gateway), acceptor_(executor)
{
	reload();
	const Endpoint endpoint = endpoint_of(gateway_.options().http);
	const tcp::endpoint at(asio::ip::make_address(endpoint.address), endpoint.port);
	acceptor_.open(at.protocol());
	acceptor_.set_option(tcp::acceptor::reuse_address(true));
	acceptor_.bind(at);
	acceptor_.listen(4096);
}

void Server::reload()
{
	const Options &options = gateway_.options();
	if (options.tls_cert.empty())
		return;
	auto tls = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
	tls->set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
	tls->use_certificate_chain_file(options.tls_cert);
	tls->use_private_key_file(options.tls_key, asio::ssl::context::pem);
	if (!options.client_ca.empty())
	{
		tls->load_verify_file(options.client_ca);
		tls->set_verify_mode(asio::ssl::verify_peer); // a token will do, too
		static constexpr unsigned char kContext[] = "tq-gateway";
		SSL_CTX_set_session_id_context(tls->native_handle(), kContext, sizeof kContext - 1);
	}
	tls_ = std::move(tls);
}

std::string Server::address() const
{
	const tcp::endpoint at = acceptor_.local_endpoint();
	const std::string host = at.address().to_string();
	return std::string(tls_ ? "https" : "http") + "://" + (at.address().is_v6() ? "[" + host + "]" : host) + ":" +
		   std::to_string(at.port());
}

tq::Task<> Server::run()
{
	for (;;)
	{
		boost::system::error_code error;
		tcp::socket socket = co_await acceptor_.async_accept(asio::redirect_error(use_awaitable, error));
		if (stopping_ || error == asio::error::operation_aborted)
			co_return;
		if (error)
		{
			// no descriptors are left
			co_await sleep(100ms);
			continue;
		}
		asio::co_spawn(acceptor_.get_executor(), serve(std::move(socket)), asio::detached);
	}
}

void Server::stop()
{
	stopping_ = true;
	boost::system::error_code error;
	acceptor_.close(error);
	for (tcp::socket *socket : resting_)
		socket->cancel(error);
}

tq::Task<> Server::serve(tcp::socket socket)
{
	boost::system::error_code error;
	const tcp::endpoint from = socket.remote_endpoint(error);
	if (error)
		co_return;
	const std::string peer = from.address().to_string();
	struct Counted
	{
		Counted(std::int64_t &of_all, std::map<std::string, int> &of_each, const std::string &who)
			: all(of_all), each(of_each), peer(who)
		{
			++all;
			++each[peer];
		}
		~Counted()
		{
			--all;
			if (--each[peer] == 0)
				each.erase(peer);
		}
		std::int64_t &all;
		std::map<std::string, int> &each;
		const std::string peer;
	};
	const Counted counted(gateway_.clients, peers_, peer);
	if (gateway_.clients > gateway_.options().max_clients || peers_[peer] > gateway_.options().max_clients_per_address)
		co_return;
	socket.set_option(tcp::no_delay(true), error);
	const int on = 1, user_timeout = 20000;
	setsockopt(socket.native_handle(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout, sizeof user_timeout);
	try
	{
		if (!tls_)
		{
			beast::tcp_stream stream(std::move(socket));
			co_await converse(stream, stream.socket(), "");
			co_return;
		}
		const auto context = tls_;
		beast::ssl_stream<beast::tcp_stream> stream(beast::tcp_stream(std::move(socket)), *context);
		tcp::socket &below = beast::get_lowest_layer(stream).socket();
		beast::get_lowest_layer(stream).expires_after(gateway_.options().request_timeout);
		co_await stream.async_handshake(asio::ssl::stream_base::server, use_awaitable);
		co_await converse(stream, below, certificate_name(stream.native_handle()));
		// a client that does not look at its connection does not answer
		beast::get_lowest_layer(stream).expires_after(kFarewell);
		co_await stream.async_shutdown(asio::redirect_error(use_awaitable, error));
	}
	catch (const boost::system::system_error &)
	{
		// the client has gone
	}
	catch (const std::exception &failure)
	{
		spdlog::error("a connection failed: {}", failure.what());
	}
}

template <class Stream>
tq::Task<> Server::converse(Stream &stream, tcp::socket &socket, std::string certificate)
{
	const Options &options = gateway_.options();
	beast::tcp_stream &timed = beast::get_lowest_layer(stream);
	beast::flat_buffer buffer;
	for (;;)
	{
		Parser parser(options);
		boost::system::error_code error;
		Answer answer;
		bool keep = false;
		if (buffer.size() == 0)
		{
			// a connection may rest between requests; once a request has begun, it must not take long
			timed.expires_after(options.idle_timeout);
			resting_.insert(&socket);
			std::size_t got = 0;
			if (!stopping_)
				got = co_await stream.async_read_some(buffer.prepare(kFirstBytes),
													  asio::redirect_error(use_awaitable, error));
			resting_.erase(&socket);
			if (got == 0)
				co_return;
			buffer.commit(got);
		}
		timed.expires_after(options.request_timeout);
		co_await http::async_read_header(stream, buffer, parser, asio::redirect_error(use_awaitable, error));
		if (!error && lower(std::string(parser.get()[http::field::expect])) == "100-continue")
		{
			http::response<http::empty_body> go_on{http::status::continue_, 11};
			co_await http::async_write(stream, go_on, asio::redirect_error(use_awaitable, error));
		}
		if (!error)
			co_await http::async_read(stream, buffer, parser, asio::redirect_error(use_awaitable, error));
		Peer client(socket);
		if (error)
		{
			const unsigned status = status_of(error);
			if (status == 0)
				co_return;
			answer = problem(Refusal(status, "the request cannot be read: " + error.message()));
		}
		else
		{
			timed.expires_never();
			keep = parser.get().keep_alive();
			std::exception_ptr refused;
			Request request;
			try
			{
				request = request_of(parser.get());
				request.certificate = certificate;
			}
			catch (...)
			{
				refused = std::current_exception();
			}
			if (refused)
				answer = problem(refused);
			else
				answer = co_await gateway_.answer(std::move(request), client);
			keep = keep && !stopping_;
		}
		if (answer.stream && parser.get().method() != http::verb::head)
		{
			const auto body = answer.stream;
			auto head = response_of(std::move(answer), parser.get(), false);
			http::response<http::empty_body> begin(std::move(head.base()));
			begin.erase(http::field::content_length);
			begin.chunked(true);
			http::response_serializer<http::empty_body> serializer(begin);
			timed.expires_after(options.request_timeout);
			co_await http::async_write_header(stream, serializer, use_awaitable);
			Chunks<Stream> chunks(stream, options.request_timeout);
			co_await body(chunks);
			timed.expires_after(options.request_timeout);
			co_await asio::async_write(stream, http::make_chunk_last(), use_awaitable);
			co_return;
		}
		const auto undo = std::move(answer.undo);
		auto response = response_of(std::move(answer), parser.get(), keep);
		timed.expires_after(options.request_timeout);
		boost::system::error_code failed;
		co_await http::async_write(stream, response, asio::redirect_error(use_awaitable, failed));
		if (undo)
		{
			const bool arrived = !failed && co_await client.delivered();
			if (!arrived)
				co_await undo();
		}
		if (failed || !keep)
		{
			// what a refused client still sends must not reset the connection before it has read why
			socket.shutdown(tcp::socket::shutdown_send, failed);
			for (int rest = 0; error && rest < 1000 && !failed; ++rest)
			{
				char bytes[4096];
				timed.expires_after(1s);
				co_await timed.async_read_some(asio::buffer(bytes), asio::redirect_error(use_awaitable, failed));
			}
			co_return;
		}
	}
}

} // namespace gateway
