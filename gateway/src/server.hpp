// HTTP/1.1, plain or with TLS.
#pragma once

#include "gateway.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>

#include <map>
#include <memory>
#include <set>

namespace gateway
{

class Server
{
public:
	// Listens. Raises boost::system::system_error.
	Server(boost::asio::any_io_executor executor, Gateway &gateway);

	// Accepts clients until stop().
	tq::Task<> run();
	// Accepts no more clients, and closes connections as soon as they have their answer.
	void stop();
	// Whether all clients have gone.
	bool idle() const noexcept { return gateway_.clients == 0; }
	// Reads certificate and key again.
	void reload();

	std::string address() const;

private:
	tq::Task<> serve(boost::asio::ip::tcp::socket socket);
	template <class Stream>
	tq::Task<> converse(Stream &stream, boost::asio::ip::tcp::socket &socket, std::string certificate);

	Gateway &gateway_;
	boost::asio::ip::tcp::acceptor acceptor_;
	std::shared_ptr<boost::asio::ssl::context> tls_;
	std::map<std::string, int> peers_;				   // open connections by address
	std::set<boost::asio::ip::tcp::socket *> resting_; // that wait for a request
	bool stopping_ = false;
};

} // namespace gateway
