// Errors of libtq.
#pragma once

#include <stdexcept>
#include <string>

namespace tq
{

// An error of the server, or of libpq. what() is the message.
class Error : public std::runtime_error
{
public:
	Error(std::string sqlstate, const std::string &message, std::string detail = {}, std::string hint = {})
		: std::runtime_error(message), sqlstate_(std::move(sqlstate)), detail_(std::move(detail)),
		  hint_(std::move(hint))
	{}

	// Five characters, such as TQ001; empty if the error is not the server's.
	const std::string &sqlstate() const noexcept { return sqlstate_; }
	// Empty if there is none.
	const std::string &detail() const noexcept { return detail_; }
	const std::string &hint() const noexcept { return hint_; }

	// TQ001: the lease is lost. Drop the work.
	bool lost() const noexcept { return sqlstate_ == "TQ001"; }
	// Whether the same call may succeed later: the queue is full, a lock, a limit of the server, a serialization failure,
	// queues that are not loaded yet.
	bool temporary() const noexcept;

private:
	std::string sqlstate_, detail_, hint_;
};

// The connection is lost or cannot be made. It is unknown whether an open call took effect.
class ConnectionError : public Error
{
public:
	explicit ConnectionError(const std::string &message, std::string sqlstate = {})
		: Error(std::move(sqlstate), message)
	{}
};

} // namespace tq
