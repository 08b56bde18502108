// The settings of the gateway: command line, TQ_GATEWAY_* and file.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace gateway
{

struct Options
{
	std::string dsn;
	std::string http = "127.0.0.1:8750", grpc = "127.0.0.1:8751"; // or "off"
	std::string auth = "none";		// or a file of tokens
	std::vector<std::string> hosts; // further names under which it is reached without authentication
	bool behind_proxy = false;
	std::string tls_cert, tls_key; // PEM files
	std::string client_ca;		   // PEM file: what signs the certificates of clients
	std::string client_roles;	   // file: the name in a certificate, and the role
	std::string jwt_keys;		   // file or URL of a JWKS
	std::string jwt_audience, jwt_issuer;
	bool push = false;					 // deliver subscriptions
	std::vector<std::string> push_hosts; // the only hosts that may be reached; none: all
	bool push_private = false;			 // also addresses that are not public
	std::string push_ca;				 // PEM file: what signs the certificates of receivers; else those of the system
	int connections = 6;
	std::uint64_t max_body = 8 << 20;	 // bytes
	std::uint32_t max_header = 16 << 10; // bytes
	int max_clients = 10000;			 // open connections in all
	int max_clients_per_address = 8192;
	std::chrono::milliseconds max_wait{60'000};
	std::chrono::milliseconds request_timeout{30'000}; // to send a request, to take an answer
	std::chrono::milliseconds idle_timeout{75'000};
	std::chrono::milliseconds shutdown_timeout{25'000};
	std::chrono::milliseconds pool_timeout{10'000}; // for a call to get a connection to the database
	std::chrono::milliseconds ping_timeout{2'000};	// for a client of gRPC to answer
};

// Whether callers must say who they are.
bool has_authentication(const Options &options) noexcept;

// Raises std::invalid_argument if the options do not go together.
void check(const Options &options);

// An address and a port, as in 127.0.0.1:8750 or [::1]:8750. Raises std::invalid_argument.
struct Endpoint
{
	std::string address;
	std::uint16_t port;
	bool loopback;
};
Endpoint endpoint_of(const std::string &text);

} // namespace gateway
