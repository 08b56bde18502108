// Webhooks: what the Standard Webhooks specification asks of a sender, which addresses it may reach, and the delivery.
#pragma once

#include <tq/connection.hpp>

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ssl/context.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace tq::webhook
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

// Trusts the certificates in a PEM file, or those of the system if the name is empty. Raises
// boost::system::system_error.
std::shared_ptr<boost::asio::ssl::context> tls_context(const std::string &ca_file);

// Where deliveries go, and what they may do.
struct Target
{
	Url url;
	std::vector<std::string> keys; // of parse_secrets()
	std::shared_ptr<boost::asio::ssl::context> tls;
	bool allow_private = false;			// also addresses that are not public
	std::chrono::milliseconds timeout{15'000}; // of a delivery
	std::size_t max_result = 1 << 20;	// bytes of an answer that are read
};

// What came of a delivery.
struct Outcome
{
	bool delivered = false;
	std::optional<std::string> result;			   // JSON, of a delivery
	std::string error;							   // else: why not
	bool fatal = false;							   // the receiver does not want it again
	std::optional<std::chrono::seconds> retry_in; // when the receiver wants it again
	bool stopped = false;						   // by the stop token
};

// Sends a payload by POST, signed. The name of the host is looked up for each delivery, and the connection is made to
// an address that was found allowed. Redirections are not followed. id: the header webhook-id.
Task<Outcome> deliver(const Target &target, std::string id, std::string payload, std::stop_token stop = {});

} // namespace tq::webhook
