// Who calls: from the credentials of a request to the role that the call runs as.
#pragma once

#include "exchange.hpp"

#include <map>
#include <set>
#include <string>

namespace gateway
{

class Who
{
public:
	// auth: "none", or a file with a line for each token: its SHA-256 in hexadecimal, white space, the role. hosts:
	// names under which the gateway is reached, besides loopback. Raises std::runtime_error.
	Who(std::string auth, std::vector<std::string> hosts);

	// Reads the file again. Raises std::runtime_error, and keeps what it had.
	void reload();

	// The role of a request. Raises Refusal (401; 403 without authentication if the Host is not one of ours).
	std::string role_of(const Request &request) const;

private:
	const std::string auth_;
	std::set<std::string> hosts_;
	std::map<std::string, std::string> roles_; // by the hash of the token
};

} // namespace gateway
