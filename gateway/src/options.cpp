#include "options.hpp"

#include <boost/asio/ip/address.hpp>

#include <charconv>
#include <stdexcept>

namespace gateway
{

Endpoint endpoint_of(const std::string &text)
{
	const std::size_t colon = text.rfind(':');
	std::string host = text.substr(0, colon);
	if (host.size() > 2 && host.front() == '[' && host.back() == ']')
		host = host.substr(1, host.size() - 2);
	Endpoint endpoint{host, 0, false};
	boost::system::error_code error;
	const auto address = boost::asio::ip::make_address(host, error);
	const char *begin = colon == text.npos ? nullptr : text.data() + colon + 1, *end = text.data() + text.size();
	const auto [last, wrong] = begin ? std::from_chars(begin, end, endpoint.port) : std::from_chars_result{};
	if (error || !begin || wrong != std::errc() || last != end)
		throw std::invalid_argument("not an address with a port: " + text + " (as in 127.0.0.1:8750 or [::]:8750)");
	endpoint.loopback = address.is_loopback();
	return endpoint;
}

bool has_authentication(const Options &options) noexcept
{
	return options.auth != "none" || !options.jwt_keys.empty() || !options.client_roles.empty();
}

void check(const Options &options)
{
	const bool loopback =
		endpoint_of(options.http).loopback && (options.grpc == "off" || endpoint_of(options.grpc).loopback);
	if (options.tls_cert.empty() != options.tls_key.empty())
		throw std::invalid_argument("--tls-cert and --tls-key go together");
	if (options.client_ca.empty() != options.client_roles.empty() ||
		(!options.client_ca.empty() && options.tls_cert.empty()))
		throw std::invalid_argument("--client-ca, --client-roles, --tls-cert and --tls-key go together");
	if (options.jwt_keys.empty() && !(options.jwt_audience + options.jwt_issuer).empty())
		throw std::invalid_argument("--jwt-audience and --jwt-issuer go with --jwt-keys");
	if (loopback)
		return;
	if (!has_authentication(options))
		throw std::invalid_argument("without authentication the gateway listens on loopback only; give --auth FILE, "
									"--jwt-keys or --client-ca");
	if (options.tls_cert.empty() && !options.behind_proxy)
		throw std::invalid_argument(
			"without TLS the gateway listens on loopback only; give --tls-cert and --tls-key, or --behind-proxy if a "
			"proxy in front of it has them");
}

} // namespace gateway
