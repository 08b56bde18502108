// What the Standard Webhooks specification asks of a sender, and which addresses it may reach.
#pragma once

#include <boost/asio/ip/address.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cli
{

struct Url
{
	bool tls = false;
	std::string host; // without the brackets of an IPv6 address
	std::string port;
	std::string authority; // for the header Host
	std::string target;	   // path and query
};

// Of "http://..." or "https://...". Raises std::invalid_argument.
Url parse_url(const std::string &text);

// Whether the host is one of these. ".example.org" stands for all hosts of the domain.
bool host_allowed(std::string host, const std::vector<std::string> &allowed);

// Whether the address is of the public internet: not private, loopback, link-local, multicast or reserved.
bool is_public(const boost::asio::ip::address &address);

// The keys in a text with a line "whsec_<base64>" for each, without the prefix, decoded. Raises std::invalid_argument.
std::vector<std::string> parse_secrets(const std::string &text);

// The header webhook-signature: a signature for each key. timestamp: seconds since 1970.
std::string webhook_signature(const std::vector<std::string> &keys, const std::string &id, std::int64_t timestamp,
							  const std::string &body);

// The header Retry-After as seconds from now: a number, or a date of HTTP.
std::optional<std::int64_t> parse_retry_after(std::string_view text, std::int64_t now);

} // namespace cli
