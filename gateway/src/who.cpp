#include "who.hpp"

#include "fetch.hpp"
#include "problem.hpp"
#include "text.hpp"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <spdlog/spdlog.h>

#include <sstream>

namespace asio = boost::asio;
using namespace std::chrono_literals;

namespace gateway
{

namespace
{

constexpr std::chrono::seconds kFetchAgain = 10min, kFetchFailed = 5s;

// A Host header without its port.
std::string host_of(const std::string &header)
{
	const std::size_t colon = header.rfind(':');
	const bool port = colon != header.npos && header.find_first_not_of("0123456789", colon + 1) == header.npos;
	return lower(port ? header.substr(0, colon) : header);
}

// Lines of a name and a role. is_name tells whether a name can be one.
std::map<std::string, std::string> read_roles(const std::string &path, const char *expected,
											  bool (*is_name)(const std::string &))
{
	std::map<std::string, std::string> roles;
	std::istringstream file(contents(path));
	std::string line;
	for (int number = 1; std::getline(file, line); ++number)
	{
		std::istringstream words(line);
		std::string name, role, more;
		if (!(words >> name) || name.front() == '#')
			continue;
		if (!(words >> role) || (words >> more) || !is_name(name))
			throw std::runtime_error("line " + std::to_string(number) + " of " + path + " is not " + expected +
									 ", and a role");
		roles[name] = role;
	}
	return roles;
}

bool is_hash(const std::string &name)
{
	return name.size() == 64 && name.find_first_not_of("0123456789abcdefABCDEF") == name.npos;
}

// Pages of other sites can let a browser send requests, with its certificate or, where nobody has to say who he is,
// without. Raises Refusal for those.
void refuse_other_sites(const Request &request, bool behind_proxy)
{
	const std::string site = request.header("sec-fetch-site"), origin = request.header("origin");
	const std::string host = request.header("host");
	const bool foreign = site.empty() ? !origin.empty() && !behind_proxy && origin != "http://" + host &&
											origin != "https://" + host
									  : site != "same-origin" && site != "none";
	if (foreign)
		throw Refusal(403, "pages of other sites must not use the gateway", "The console is at its own address.");
}

} // namespace

Who::Who(const Options &options) : options_(options), hosts_{"localhost", "127.0.0.1", "[::1]"}
{
	for (const std::string &host : options.hosts)
		hosts_.insert(lower(host));
	if (!options.jwt_keys.empty())
		jwt_.emplace(options);
	if (is_url(options.jwt_keys))
		check_url(options.jwt_keys);
	reload();
}

void Who::reload()
{
	Roles tokens, certificates;
	if (options_.auth != "none")
		for (auto &[hash, role] : read_roles(options_.auth, "the SHA-256 of a token in hexadecimal", is_hash))
			tokens[lower(hash)] = role;
	if (!options_.client_roles.empty())
		certificates = read_roles(options_.client_roles, "the name in a certificate",
								  [](const std::string &) { return true; });
	if (is_url(options_.jwt_keys))
		fetch_soon();
	else if (jwt_)
		jwt_->set_keys(contents(options_.jwt_keys), false);
	tokens_ = std::move(tokens);
	certificates_ = std::move(certificates);
}

void Who::fetch_soon() const
{
	if (fetching_)
		fetching_->cancel();
}

tq::Task<> Who::run()
{
	if (!is_url(options_.jwt_keys))
		co_return;
	asio::steady_timer timer(co_await asio::this_coro::executor);
	for (;;)
	{
		auto pause = std::chrono::steady_clock::duration(kFetchAgain);
		try
		{
			jwt_->set_keys(co_await fetch(options_.jwt_keys), true);
		}
		catch (const std::exception &error)
		{
			spdlog::error("the keys cannot be fetched from {}: {}", options_.jwt_keys, error.what());
			pause = kFetchFailed;
		}
		// a token with an unknown key must not make it ask at once
		boost::system::error_code error;
		timer.expires_after(kFetchFailed);
		co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, error));
		fetching_ = &timer;
		timer.expires_after(pause - kFetchFailed);
		co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, error));
		fetching_ = nullptr;
	}
}

std::string Who::role_of_token(std::string_view token) const
{
	if (const auto found = tokens_.find(sha256(token)); found != tokens_.end())
		return found->second;
	if (!jwt_ || !looks_like_jwt(token))
		return "";
	if (!jwt_->has_keys())
		throw Refusal(503, "the keys of tokens are not known yet", "Try again in a moment.");
	if (fetching_ && !jwt_->knows_key_of(token))
		fetch_soon();
	return jwt_->role_of(token, std::chrono::system_clock::now());
}

std::string Who::role_of(const Request &request) const
{
	refuse_other_sites(request, options_.behind_proxy);
	if (!has_authentication(options_))
	{
		// a page of another site that resolves to this machine
		if (!hosts_.contains(host_of(request.header("host"))))
			throw Refusal(403, "the gateway is not known as " + request.header("host"),
						  "Without authentication it answers to names of loopback, and to those of --host.");
		return "";
	}
	if (const auto found = certificates_.find(request.certificate); found != certificates_.end())
		return found->second;
	const std::string header = request.header("authorization");
	if (lower(header.substr(0, 7)) == "bearer ")
		if (std::string role = role_of_token(std::string_view(header).substr(7)); !role.empty())
			return role;
	if (options_.auth == "none" && !jwt_)
		throw Refusal(401, "a certificate with a known name is missing", "Connect with a certificate of a client.");
	Refusal refusal(401, "a valid token is missing", "Send it as Authorization: Bearer TOKEN.");
	refusal.headers.emplace_back("WWW-Authenticate", "Bearer");
	throw refusal;
}

} // namespace gateway
