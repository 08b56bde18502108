// An answer that another thread gives to a coroutine. The coroutine may be destroyed meanwhile, and its executor with
// it: then the thread finds no channel, and drops the value.
#pragma once

#include <tq/connection.hpp>

#include <boost/asio/experimental/concurrent_channel.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <memory>
#include <mutex>

namespace tq::detail
{

// A variable of the coroutine that waits.
template <class T>
class Answer
{
	using Channel = boost::asio::experimental::concurrent_channel<void(boost::system::error_code, T)>;
	struct Link
	{
		std::mutex mutex;
		Channel *channel;
	};

public:
	// What the other thread has.
	class Sender
	{
	public:
		explicit Sender(std::shared_ptr<Link> link) : link_(std::move(link)) {}
		void send(T value) const
		{
			std::lock_guard lock(link_->mutex);
			if (link_->channel)
				link_->channel->try_send(boost::system::error_code(), std::move(value));
		}

	private:
		std::shared_ptr<Link> link_;
	};

	explicit Answer(boost::asio::any_io_executor executor) : channel_(executor, 1), link_(std::make_shared<Link>())
	{
		link_->channel = &channel_;
	}
	~Answer()
	{
		std::lock_guard lock(link_->mutex);
		link_->channel = nullptr;
	}
	Answer(const Answer &) = delete;
	Answer &operator=(const Answer &) = delete;

	Sender sender() const { return Sender(link_); }
	Task<T> get() { return channel_.async_receive(boost::asio::use_awaitable); }

private:
	Channel channel_;
	std::shared_ptr<Link> link_;
};

} // namespace tq::detail
