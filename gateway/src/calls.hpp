// What the calls of gRPC have in common.
#pragma once

#include "gateway.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

namespace gateway
{

// The client of a call, which may cancel it. Lives on the executor, except left().
class Caller : public Client
{
public:
	explicit Caller(boost::asio::any_io_executor executor);

	tq::Task<> gone() override;
	// The client has cancelled the call, or its connection is lost. Any thread may call it.
	static void left(const std::shared_ptr<Caller> &caller);
	bool has_left() const noexcept { return left_; }

private:
	boost::asio::any_io_executor executor_;
	boost::asio::steady_timer timer_;
	bool left_ = false;
};

// What the calls share.
struct Calls
{
	boost::asio::any_io_executor executor;
	Gateway &gateway;
	std::atomic<int> open = 0;
};

// What a caller says of itself.
struct Credentials
{
	std::string authorization;
	std::string certificate; // as Request::certificate
};
Credentials credentials_of(const grpc::ServerContextBase &context);

// Runs an operation with these credentials, and fills the reply. undo, if given, gets what is to be called if the client
// has gone before it got the reply.
tq::Task<grpc::Status> run_call(Calls &calls, std::string operation, const google::protobuf::Message &request,
								google::protobuf::Message &reply, const Credentials &credentials, Client &client,
								std::function<tq::Task<>()> *undo = nullptr);

} // namespace gateway
