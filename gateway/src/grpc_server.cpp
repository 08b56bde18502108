#include "grpc_server.hpp"

#include "calls.hpp"
#include "grpc_tls.hpp"
#include "work_stream.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <climits>
#include <thread>

namespace asio = boost::asio;

namespace gateway
{

namespace
{

// A call with one request and one reply.
class Unary : public grpc::ServerUnaryReactor
{
public:
	Unary(Calls &calls, grpc::CallbackServerContext &context, const char *operation,
		  const google::protobuf::Message &request, google::protobuf::Message &reply)
		: calls_(calls), caller_(std::make_shared<Caller>(calls.executor))
	{
		++calls_.open;
		asio::co_spawn(calls_.executor, run(operation, request, reply, credentials_of(context)), asio::detached);
	}

	void OnCancel() override { Caller::left(caller_); }
	// After OnCancel(), which gRPC also calls if it could not send the reply.
	void OnDone() override { asio::co_spawn(calls_.executor, end(), asio::detached); }

private:
	tq::Task<> run(std::string operation, const google::protobuf::Message &request, google::protobuf::Message &reply,
				   Credentials credentials)
	{
		grpc::Status status(grpc::StatusCode::INTERNAL, "the gateway failed");
		try
		{
			status = co_await run_call(calls_, std::move(operation), request, reply, credentials, *caller_, &undo_);
		}
		catch (const std::exception &error)
		{
			spdlog::error("a call failed: {}", error.what());
		}
		Finish(status);
	}

	tq::Task<> end()
	{
		if (undo_ && caller_->has_left())
			co_await undo_();
		--calls_.open;
		delete this;
	}

	Calls &calls_;
	const std::shared_ptr<Caller> caller_;
	std::function<tq::Task<>()> undo_; // if the reply has not arrived
};

class Service : public tq::v1::Queue::CallbackService
{
public:
	explicit Service(Calls &calls) : calls_(calls) {}

#define CALL(name, operation, takes, returns)                                                                          \
	grpc::ServerUnaryReactor *name(grpc::CallbackServerContext *context, const tq::v1::takes *request,                 \
								   tq::v1::returns *reply) override                                                    \
	{                                                                                                                  \
		return new Unary(calls_, *context, operation, *request, *reply);                                               \
	}

	CALL(Enqueue, "enqueue", EnqueueRequest, Enqueued)
	CALL(EnqueueMany, "enqueue_many", EnqueueManyRequest, EnqueuedMany)
	CALL(GetJob, "get_job", GetJobRequest, Job)
	CALL(JobOutcomes, "job_outcomes", OutcomesRequest, Outcomes)
	CALL(ListJobs, "list_jobs", ListJobsRequest, Jobs)
	CALL(JobHistory, "job_history", JobRequest, History)
	CALL(ExplainJob, "explain_job", JobRequest, Explanation)
	CALL(CancelJob, "cancel_job", CancelJobRequest, State)
	CALL(RetryJob, "retry_job", RetryJobRequest, State)
	CALL(RescheduleJob, "reschedule_job", RescheduleJobRequest, State)
	CALL(ClaimAny, "claim_any", ClaimRequest, Jobs)
	CALL(Heartbeat, "heartbeat", HeartbeatRequest, Beat)
	CALL(Complete, "complete", CompleteRequest, State)
	CALL(Fail, "fail", FailRequest, State)
	CALL(Release, "release", ReleaseRequest, State)
	CALL(Bury, "bury", BuryRequest, State)
	CALL(CompleteMany, "complete_many", CompleteManyRequest, Statuses)
	CALL(FailMany, "fail_many", FailManyRequest, Statuses)
	CALL(PauseQueue, "pause_queue", PauseQueueRequest, Nothing)
	CALL(ResumeQueue, "resume_queue", ResumeQueueRequest, Nothing)
	CALL(DrainWorker, "drain_worker", WorkerRequest, Count)
	CALL(UndrainWorker, "undrain_worker", WorkerRequest, Undrained)
#undef CALL

	grpc::ServerBidiReactor<tq::v1::WorkerMessage, tq::v1::ServerMessage> *
	Work(grpc::CallbackServerContext *context) override
	{
		return work_stream(calls_, *context);
	}

private:
	Calls &calls_;
};

} // namespace

struct GrpcServer::Parts
{
	Parts(asio::any_io_executor executor, Gateway &gateway) : calls{executor, gateway}, service(calls) {}

	Calls calls;
	Service service;
	std::shared_ptr<GrpcTls> tls; // or null
	int port = 0;
	std::unique_ptr<grpc::Server> server;
};

GrpcServer::GrpcServer(asio::any_io_executor executor, Gateway &gateway)
	: parts_(std::make_unique<Parts>(executor, gateway))
{
	grpc::EnableDefaultHealthCheckService(true);
	grpc::reflection::InitProtoReflectionServerBuilderPlugin();
	const Options &options = gateway.options();
	grpc::ServerBuilder builder;
	builder.SetMaxReceiveMessageSize(int(std::min<std::uint64_t>(options.max_body, INT_MAX)));
	builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
	builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 3000);
	builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, int(options.ping_timeout.count()));
	builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
	if (!options.tls_cert.empty())
		parts_->tls = std::make_shared<GrpcTls>(options);
	builder.AddListeningPort(options.grpc, parts_->tls ? parts_->tls : grpc::InsecureServerCredentials(), &parts_->port);
	builder.RegisterService(&parts_->service);
	parts_->server = builder.BuildAndStart();
	if (!parts_->server || parts_->port == 0)
		throw std::runtime_error("cannot listen on " + options.grpc);
}

GrpcServer::~GrpcServer() = default;

void GrpcServer::stop()
{
	parts_->server->GetHealthCheckService()->SetServingStatus(false);
	// It waits for the end of the calls that are open, and so has a thread of its own.
	const auto end = std::chrono::system_clock::now() + parts_->calls.gateway.options().shutdown_timeout;
	std::thread([server = parts_->server.get(), end] { server->Shutdown(end); }).detach();
	end_work_streams();
}

void GrpcServer::reload()
{
	if (parts_->tls)
		parts_->tls->reload();
}

int GrpcServer::port() const noexcept { return parts_->port; }

bool GrpcServer::idle() const noexcept { return parts_->calls.open == 0; }

} // namespace gateway
