// gRPC: the same calls as REST, and the stream of a worker.
#pragma once

#include "gateway.hpp"

#include <boost/asio/any_io_executor.hpp>

#include <memory>
#include <string>

namespace gateway
{

class GrpcServer
{
public:
	// Listens. Calls run on the executor. Raises std::runtime_error.
	GrpcServer(boost::asio::any_io_executor executor, Gateway &gateway);
	~GrpcServer();

	// Accepts no more calls, and ends streams.
	void stop();
	// Reads certificate and key again. Raises std::runtime_error, and keeps what it had.
	void reload();
	// The port that it listens on.
	int port() const noexcept;
	// Whether no call is open.
	bool idle() const noexcept;

private:
	struct Parts;
	std::unique_ptr<Parts> parts_;
};

} // namespace gateway
