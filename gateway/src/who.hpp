// Who calls: from the credentials of a request to the role that the call runs as.
#pragma once

#include "exchange.hpp"
#include "jwt.hpp"
#include "options.hpp"

#include <boost/asio/steady_timer.hpp>

#include <map>
#include <optional>
#include <set>
#include <string>

namespace gateway
{

class Who
{
public:
	// Raises std::runtime_error.
	explicit Who(const Options &options);

	// Reads the files again. Raises std::runtime_error, and keeps what it had. Keys that have a URL are fetched again.
	void reload();
	// Fetches keys that have a URL, again and again, for ever.
	tq::Task<> run();
	// Whether it can tell who calls.
	bool ready() const noexcept { return !jwt_ || jwt_->has_keys(); }

	// The role of a request. Raises Refusal (401; 403 without authentication if the Host is not one of ours; 503 if there
	// are no keys yet).
	std::string role_of(const Request &request) const;

private:
	using Roles = std::map<std::string, std::string>;

	void fetch_soon() const;
	std::string role_of_token(std::string_view token) const;

	const Options options_;
	std::set<std::string> hosts_;
	Roles tokens_;		 // by the hash of the token
	Roles certificates_; // by the name in the certificate
	std::optional<Jwt> jwt_;
	boost::asio::steady_timer *fetching_ = nullptr; // until the next fetch
};

} // namespace gateway
