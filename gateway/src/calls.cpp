#include "calls.hpp"

#include "messages.hpp"
#include "problem.hpp"
#include "raw_json.hpp"

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <grpc/grpc_security_constants.h>

namespace asio = boost::asio;

namespace gateway
{

namespace
{

grpc::StatusCode code_of(unsigned status)
{
	switch (status)
	{
		case 400: return grpc::StatusCode::INVALID_ARGUMENT;
		case 401: return grpc::StatusCode::UNAUTHENTICATED;
		case 403: return grpc::StatusCode::PERMISSION_DENIED;
		case 404: return grpc::StatusCode::NOT_FOUND;
		case 409: return grpc::StatusCode::FAILED_PRECONDITION;
		case 410: return grpc::StatusCode::OUT_OF_RANGE;
		case 413:
		case 429: return grpc::StatusCode::RESOURCE_EXHAUSTED;
		case 501: return grpc::StatusCode::UNIMPLEMENTED;
		case 503: return grpc::StatusCode::UNAVAILABLE;
		default: return grpc::StatusCode::INTERNAL;
	}
}

// The message of a status is the problem's detail, its details are the whole problem as JSON.
grpc::Status status_of(const Answer &answer)
{
	if (answer.status < 400)
		return grpc::Status::OK;
	std::string detail;
	for (const auto &[name, value] : members_of(answer.body))
		detail = name == "detail" ? value.string : detail;
	return {code_of(answer.status), detail, answer.body};
}

} // namespace

Caller::Caller(asio::any_io_executor executor)
	: executor_(executor), timer_(executor, asio::steady_timer::time_point::max())
{}

tq::Task<> Caller::gone()
{
	boost::system::error_code error;
	while (!left_)
	{
		co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, error));
		const auto state = co_await asio::this_coro::cancellation_state;
		if (!left_ && state.cancelled() != asio::cancellation_type::none)
			throw boost::system::system_error(asio::error::operation_aborted);
	}
}

void Caller::left(const std::shared_ptr<Caller> &caller)
{
	asio::post(caller->executor_, [caller] {
		caller->left_ = true;
		caller->timer_.cancel();
	});
}

Credentials credentials_of(const grpc::ServerContextBase &context)
{
	Credentials credentials;
	const auto found = context.client_metadata().find("authorization");
	if (found != context.client_metadata().end())
		credentials.authorization = std::string(found->second.data(), found->second.size());
	const auto auth = context.auth_context();
	if (auth && auth->IsPeerAuthenticated())
		for (const grpc::string_ref &name : auth->FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME))
			credentials.certificate = std::string(name.data(), name.size());
	return credentials;
}

tq::Task<grpc::Status> run_call(Calls &calls, std::string operation, const google::protobuf::Message &request,
								google::protobuf::Message &reply, const Credentials &credentials, Client &client,
								std::function<tq::Task<>()> *undo)
{
	Route route;
	route.operation = &operation_named(operation);
	const Operation &of = *route.operation;
	Request call;
	call.method = of.method;
	call.headers["host"] = "localhost"; // web pages cannot make such calls
	call.headers["authorization"] = credentials.authorization;
	call.certificate = credentials.certificate;
	write_request(request, route, call);
	Answer answer = co_await calls.gateway.answer(std::move(route), std::move(call), client);
	const grpc::Status status = status_of(answer);
	if (status.ok())
		read_answer(of, answer.body, reply);
	if (undo)
		*undo = std::move(answer.undo);
	co_return status;
}

} // namespace gateway
