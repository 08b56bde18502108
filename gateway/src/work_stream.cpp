#include "work_stream.hpp"

#include "messages.hpp"
#include "raw_json.hpp"
#include "waits.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <climits>
#include <deque>
#include <set>

namespace asio = boost::asio;
namespace v1 = tq::v1;

namespace gateway
{

namespace
{

constexpr const char *kWait = "50 s"; // of one claim; the next follows
constexpr int kMostJobs = 10000;	  // of one claim

class Stream;
std::set<Stream *> &streams()
{
	static std::set<Stream *> all;
	return all;
}
bool stopping = false; // since end_work_streams()

// Members are those of the executor, except where gRPC's threads hand something over.
class Stream : public WorkReactor
{
public:
	Stream(Calls &calls, const grpc::CallbackServerContext &context)
		: calls_(calls), credentials_(credentials_of(context)), caller_(std::make_shared<Caller>(calls.executor)),
		  wish_(calls.executor)
	{
		++calls_.open;
		asio::post(calls_.executor, [this] {
			streams().insert(this);
			if (stopping)
				quiet();
			asio::co_spawn(calls_.executor, run(), asio::detached);
			StartRead(&incoming_);
		});
	}

	// From gRPC's threads.
	void OnReadDone(bool ok) override
	{
		asio::post(calls_.executor, [this, ok] {
			if (!ok)
			{
				read_end_ = true;
				Caller::left(caller_); // it has nothing more to say, so it can finish no job
				wish_.cancel();
				return;
			}
			if (finished_)
				return;
			asio::co_spawn(calls_.executor, take(incoming_), asio::detached);
			StartRead(&incoming_);
		});
	}
	void OnWriteDone(bool) override
	{
		asio::post(calls_.executor, [this] {
			outgoing_.pop_front();
			if (!outgoing_.empty())
				StartWrite(&outgoing_.front());
			else
				wish_.cancel();
		});
	}
	void OnCancel() override { Caller::left(caller_); }
	void OnDone() override
	{
		asio::post(calls_.executor, [this] {
			--calls_.open;
			delete this;
		});
	}

	void quiet()
	{
		quiet_ = true;
		Caller::left(caller_); // ends its claim
		wish_.cancel();
	}

private:
	void send(v1::ServerMessage message)
	{
		if (finished_)
			return;
		outgoing_.push_back(std::move(message));
		if (outgoing_.size() == 1)
			StartWrite(&outgoing_.front());
	}

	void send_action(const std::string &lease, const std::string &action)
	{
		v1::ServerMessage message;
		if (!lease.empty())
			message.mutable_action()->set_lease(lease);
		message.mutable_action()->set_action(action);
		send(std::move(message));
	}

	// A message of the worker. Calls of one stream run beside each other.
	tq::Task<> take(v1::WorkerMessage message)
	{
		++busy_;
		try
		{
			switch (message.message_case())
			{
				case v1::WorkerMessage::kHello:
					hello_ = message.hello();
					greeted_ = true;
					break;
				case v1::WorkerMessage::kCredits:
					credits_ += std::clamp(message.credits(), 0, INT_MAX - credits_);
					break;
				case v1::WorkerMessage::kStarted:
					unstarted_.erase(message.started());
					break;
				case v1::WorkerMessage::kHeartbeat:
					co_await beat(message.heartbeat());
					break;
				case v1::WorkerMessage::kComplete:
					co_await finish("complete", message.complete().lease(), message.complete());
					break;
				case v1::WorkerMessage::kFail:
					co_await finish("fail", message.fail().lease(), message.fail());
					break;
				case v1::WorkerMessage::kRelease:
					co_await finish("release", message.release().lease(), message.release());
					break;
				case v1::WorkerMessage::kBury:
					co_await finish("bury", message.bury().lease(), message.bury());
					break;
				case v1::WorkerMessage::MESSAGE_NOT_SET:
					break;
			}
		}
		catch (const std::exception &error)
		{
			spdlog::error("a message of a worker failed: {}", error.what());
		}
		--busy_;
		wish_.cancel();
	}

	tq::Task<> beat(const v1::HeartbeatRequest &request)
	{
		unstarted_.erase(request.lease());
		v1::Beat reply;
		const grpc::Status status = co_await run_call(calls_, "heartbeat", request, reply, credentials_, *caller_);
		if (!status.ok())
			co_return; // the job may still be the worker's: a lost lease is an action, not an error
		if (reply.action() == "lost")
			held_.erase(request.lease());
		send_action(request.lease(), reply.action());
	}

	tq::Task<> finish(std::string operation, std::string lease, const google::protobuf::Message &request)
	{
		unstarted_.erase(lease); // a release at the end of the stream must not overtake it
		v1::State reply;
		const grpc::Status status = co_await run_call(calls_, operation, request, reply, credentials_, *caller_);
		v1::ServerMessage message;
		v1::Finished &finished = *message.mutable_finished();
		finished.set_lease(lease);
		if (status.ok())
			finished.set_state(reply.state());
		else
		{
			finished.set_error(status.error_message());
			for (const auto &[name, value] : members_of(status.error_details()))
			{
				if (name == "code")
					finished.set_code(value.string);
			}
		}
		// a finish that can be tried again leaves the job with the worker
		if (status.ok() || finished.code() == "TQ001" || finished.code() == "TQ004")
			held_.erase(lease);
		send(std::move(message));
	}

	// Claims while there are credits, until the worker has gone or the gateway stops.
	tq::Task<> claim_jobs()
	{
		while (!read_end_ && !quiet_ && !caller_->has_left())
		{
			if (!greeted_ || credits_ == 0)
			{
				co_await rest();
				continue;
			}
			v1::ClaimRequest request;
			*request.mutable_queues() = hello_.queues();
			*request.mutable_kinds() = hello_.kinds();
			request.set_max_jobs(std::min(credits_, kMostJobs));
			request.set_wait(kWait);
			if (!hello_.worker().empty())
				request.set_worker(hello_.worker());
			if (hello_.has_lease_for())
				request.set_lease_for(hello_.lease_for());
			v1::Jobs reply;
			const grpc::Status status = co_await run_call(calls_, "claim_any", request, reply, credentials_, *caller_);
			if (!status.ok() && status.error_code() != grpc::StatusCode::UNAVAILABLE)
			{
				end_ = status;
				co_return;
			}
			if (!status.ok())
				co_await sleep(std::chrono::seconds(1));
			for (v1::Job &job : *reply.mutable_jobs())
			{
				unstarted_.insert(job.lease());
				held_.insert(job.lease());
				--credits_;
				v1::ServerMessage message;
				message.mutable_job()->Swap(&job);
				send(std::move(message));
			}
		}
	}

	// Until something has come, or has been written.
	tq::Task<> rest()
	{
		wish_.expires_at(asio::steady_timer::time_point::max());
		boost::system::error_code error;
		co_await wish_.async_wait(asio::redirect_error(asio::use_awaitable, error));
	}

	tq::Task<> run()
	{
		try
		{
			co_await claim_jobs();
			if (quiet_ && end_.ok())
				send_action("", "quiet");
			while (!read_end_ && end_.ok() && !held_.empty())
				co_await rest();
			for (const std::string &lease : std::exchange(unstarted_, {}))
			{
				v1::ReleaseRequest request;
				request.set_lease(lease);
				v1::State reply;
				co_await run_call(calls_, "release", request, reply, credentials_, *caller_);
			}
			while (busy_ > 0 || !outgoing_.empty())
				co_await rest();
		}
		catch (const std::exception &error)
		{
			spdlog::error("the stream of a worker failed: {}", error.what());
			end_ = grpc::Status(grpc::StatusCode::INTERNAL, "the gateway failed");
		}
		streams().erase(this);
		finished_ = true;
		Finish(end_);
	}

	Calls &calls_;
	const Credentials credentials_;
	const std::shared_ptr<Caller> caller_;
	asio::steady_timer wish_; // wakes rest()
	v1::WorkerMessage incoming_;
	std::deque<v1::ServerMessage> outgoing_; // the first is being written
	v1::Hello hello_;
	int credits_ = 0, busy_ = 0;
	bool greeted_ = false, read_end_ = false, quiet_ = false, finished_ = false;
	std::set<std::string> held_, unstarted_; // leases
	grpc::Status end_;
};

} // namespace

WorkReactor *work_stream(Calls &calls, const grpc::CallbackServerContext &context)
{
	return new Stream(calls, context);
}

void end_work_streams()
{
	stopping = true;
	for (Stream *stream : streams())
		stream->quiet();
}

} // namespace gateway
