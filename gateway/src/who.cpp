#include "who.hpp"

#include "problem.hpp"
#include "text.hpp"

#include <fstream>
#include <sstream>

namespace gateway
{

namespace
{

// A Host header without its port.
std::string host_of(const std::string &header)
{
	const std::size_t colon = header.rfind(':');
	const bool port = colon != header.npos && header.find_first_not_of("0123456789", colon + 1) == header.npos;
	return lower(port ? header.substr(0, colon) : header);
}

} // namespace

Who::Who(std::string auth, std::vector<std::string> hosts)
	: auth_(std::move(auth)), hosts_{"localhost", "127.0.0.1", "[::1]"}
{
	for (const std::string &host : hosts)
		hosts_.insert(lower(host));
	reload();
}

void Who::reload()
{
	if (auth_ == "none")
		return;
	std::ifstream file(auth_);
	if (!file)
		throw std::runtime_error("cannot read the file of tokens: " + auth_);
	std::map<std::string, std::string> roles;
	std::string line;
	for (int number = 1; std::getline(file, line); ++number)
	{
		std::istringstream words(line);
		std::string hash, role, more;
		if (!(words >> hash) || hash.front() == '#')
			continue;
		hash = lower(hash);
		if (!(words >> role) || (words >> more) || hash.size() != 64 ||
			hash.find_first_not_of("0123456789abcdef") != hash.npos)
			throw std::runtime_error("line " + std::to_string(number) + " of " + auth_ +
									 " is not the SHA-256 of a token in hexadecimal, and a role");
		roles[hash] = role;
	}
	roles_ = std::move(roles);
}

std::string Who::role_of(const Request &request) const
{
	if (auth_ == "none")
	{
		// a page of another site that resolves to this machine
		if (!hosts_.contains(host_of(request.header("host"))))
			throw Refusal(403, "the gateway is not known as " + request.header("host"),
						  "Without authentication it answers to names of loopback, and to those of --host.");
		return "";
	}
	Refusal refusal(401, "a valid token is missing", "Send it as Authorization: Bearer TOKEN.");
	refusal.headers.emplace_back("WWW-Authenticate", "Bearer");
	const std::string header = request.header("authorization");
	if (lower(header.substr(0, 7)) != "bearer ")
		throw refusal;
	const auto found = roles_.find(sha256(std::string_view(header).substr(7)));
	if (found == roles_.end())
		throw refusal;
	return found->second;
}

} // namespace gateway
