// The public face of the runtime.
#include "answer.hpp"
#include "runtime.hpp"

#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <cxxabi.h>
#include <future>

namespace asio = boost::asio;

namespace tq
{

namespace detail
{

namespace
{

constexpr std::size_t kMaxDescription = 8192;

// Without what std::throw_with_nested adds.
std::string class_name(const std::type_info &type)
{
	static constexpr std::string_view kNested = "std::_Nested_exception<", kAnonymous = "(anonymous namespace)::";
	int status = 0;
	const std::unique_ptr<char, void (*)(void *)> demangled(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status),
															std::free);
	std::string name = status == 0 ? demangled.get() : type.name();
	if (name.starts_with(kNested))
		name = name.substr(kNested.size(), name.size() - kNested.size() - 1);
	const std::size_t anonymous = name.find(kAnonymous);
	return anonymous == std::string::npos ? name : name.erase(anonymous, kAnonymous.size());
}

void describe(std::string &text, const std::exception &error)
{
	text += class_name(typeid(error)) + ": " + error.what();
	try
	{
		std::rethrow_if_nested(error);
	}
	catch (const std::exception &inner)
	{
		text += "\nbecause of ";
		describe(text, inner);
	}
	catch (...)
	{}
}

void encode_checkpoint(const Handle &handle, HeartbeatOptions &options)
{
	if (options.checkpoint && handle.runtime->options.codec)
		options.checkpoint =
			handle.runtime->options.codec->encode(Codec::checkpoint_context(handle.held->data.id), *options.checkpoint);
}

Task<bool> finish_and_wait(std::shared_ptr<Handle> handle, Finish how)
{
	if (how.verb == Verb::kComplete)
		how.text = handle->runtime->stored_result(*handle->held, std::move(how.text));
	Answer<bool> answer(co_await asio::this_coro::executor);
	handle->finished = true;
	handle->runtime->finish(handle->held, std::move(how), [sender = answer.sender()](bool ok) { sender.send(ok); });
	co_return co_await answer.get();
}

} // namespace

std::string describe_current_exception()
{
	std::string text;
	try
	{
		throw;
	}
	catch (const std::exception &error)
	{
		describe(text, error);
	}
	catch (...)
	{
		text = "an exception that is no std::exception";
	}
	if (text.size() > kMaxDescription)
		text.resize(kMaxDescription);
	return text;
}

Handle::~Handle()
{
	if (finished)
		return;
	if (held->completed_by_caller)
		runtime->forget(held);
	else
		runtime->finish(held, {Verb::kFail, "the worker dropped the job without finishing it", {}, false});
}

} // namespace detail

using detail::Finish;
using detail::Verb;

const JobData *Job::operator->() const noexcept { return &handle_->held->data; }
std::stop_token Job::stop() const noexcept { return handle_->held->stop.get_token(); }
StopReason Job::stop_reason() const noexcept { return handle_->held->reason; }
void Job::progress(std::string json) const { handle_->runtime->set_progress(handle_->held, std::move(json)); }

void Job::checkpoint(std::string json) const
{
	HeartbeatOptions options;
	options.checkpoint = std::move(json);
	detail::encode_checkpoint(*handle_, options);
	handle_->runtime->send_beat(
		{handle_->held, std::move(options), [handle = handle_](std::exception_ptr error, Action) {
			 try
			 {
				 if (error)
					 std::rethrow_exception(error);
			 }
			 catch (const std::exception &refusal)
			 {
				 handle->runtime->log(LogLevel::kWarning, "a checkpoint of job " +
															  std::to_string(handle->held->data.id) +
															  " was refused: " + refusal.what());
			 }
		 }});
}

Task<Action> Job::heartbeat(HeartbeatOptions options) const
{
	const auto handle = handle_;
	detail::encode_checkpoint(*handle, options);
	using Outcome = std::pair<std::exception_ptr, Action>;
	detail::Answer<Outcome> answer(co_await asio::this_coro::executor);
	handle->runtime->send_beat(
		{handle->held, std::move(options), [sender = answer.sender()](std::exception_ptr error, Action action) {
			 sender.send({error, action});
		 }});
	const Outcome outcome = co_await answer.get();
	if (outcome.first)
		std::rethrow_exception(outcome.first);
	co_return outcome.second;
}

Action Job::heartbeat_and_wait(HeartbeatOptions options) const
{
	detail::encode_checkpoint(*handle_, options);
	auto promise = std::make_shared<std::promise<Action>>();
	auto answer = promise->get_future();
	handle_->runtime->send_beat({handle_->held, std::move(options), [promise](std::exception_ptr error, Action action) {
									 if (error)
										 promise->set_exception(error);
									 else
										 promise->set_value(action);
								 }});
	return answer.get();
}

Task<bool> Job::complete(std::optional<std::string> result) const
{
	return detail::finish_and_wait(handle_, {Verb::kComplete, std::move(result), {}, false});
}

Task<bool> Job::fail(std::string error, std::optional<Duration> retry_in, bool fatal) const
{
	return detail::finish_and_wait(handle_, {Verb::kFail, std::move(error), retry_in, fatal});
}

Task<bool> Job::release(std::optional<Duration> delay) const
{
	return detail::finish_and_wait(handle_, {Verb::kRelease, {}, delay, false});
}

Task<bool> Job::bury(std::string reason) const
{
	return detail::finish_and_wait(handle_, {Verb::kBury, std::move(reason), {}, false});
}

Task<> Job::complete_in(Connection &connection, std::optional<std::string> result) const
{
	const auto handle = handle_;
	const JobData &data = handle->held->data;
	result = handle->runtime->stored_result(*handle->held, std::move(result));
	co_await tq::complete(connection, data.id, data.lease, std::move(result));
	handle->held->completed_by_caller = true;
}

Worker::Worker(WorkerOptions options) : runtime_(std::make_shared<detail::Runtime>(std::move(options))) {}

Worker::~Worker()
{
	if (!runtime_->thread.joinable())
		return;
	stop();
	stop();
	try
	{
		runtime_->join();
	}
	catch (...)
	{}
}

Worker &Worker::set_handler(std::optional<std::string> kind, Handler handler)
{
	if (kind)
		runtime_->handlers[*kind] = std::move(handler);
	else
		runtime_->other_handler = std::move(handler);
	return *this;
}

Worker &Worker::use(Middleware middleware)
{
	runtime_->middleware.push_back(std::move(middleware));
	return *this;
}

void Worker::start() { runtime_->start(); }

int Worker::run()
{
	if (runtime_->handlers.empty() && !runtime_->other_handler)
		throw std::invalid_argument("the worker has no handler");
	runtime_->start();
	return runtime_->join();
}

Task<std::optional<Job>> Worker::next()
{
	const auto runtime = runtime_;
	const auto handle = co_await runtime->next();
	if (!handle)
		co_return std::nullopt;
	co_return Job(handle);
}

int Worker::join() { return runtime_->join(); }

void Worker::stop() { runtime_->stop(); }

} // namespace tq
