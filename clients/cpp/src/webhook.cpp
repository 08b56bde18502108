#include <tq/codec.hpp>
#include <tq/webhook.hpp>

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <sstream>
#include <stdexcept>

namespace tq::webhook
{

namespace
{

namespace ip = boost::asio::ip;

constexpr std::size_t kMinSecret = 24, kMaxSecret = 64; // bytes, as the specification says
constexpr std::string_view kSecretPrefix = "whsec_";

std::string lower(std::string text)
{
	for (char &c : text)
		c = char(std::tolower(static_cast<unsigned char>(c)));
	return text;
}

bool in_network(ip::address_v4 address, const char *network, int bits)
{
	return ((address.to_uint() ^ ip::make_address_v4(network).to_uint()) >> (32 - bits)) == 0;
}

// The registry of special addresses of IANA.
bool is_public_v4(ip::address_v4 address)
{
	constexpr std::pair<const char *, int> special[] = {
		{"0.0.0.0", 8},		{"10.0.0.0", 8},	  {"100.64.0.0", 10},  {"127.0.0.0", 8},	{"169.254.0.0", 16},
		{"172.16.0.0", 12}, {"192.0.0.0", 24},	  {"192.0.2.0", 24},   {"192.88.99.0", 24}, {"192.168.0.0", 16},
		{"198.18.0.0", 15}, {"198.51.100.0", 24}, {"203.0.113.0", 24}, {"224.0.0.0", 4},	{"240.0.0.0", 4}};
	return std::none_of(std::begin(special), std::end(special),
						[address](const auto &one) { return in_network(address, one.first, one.second); });
}

bool is_public_v6(const ip::address_v6 &address)
{
	if (address.is_v4_mapped())
		return is_public_v4(ip::make_address_v4(ip::v4_mapped, address));
	const auto bytes = address.to_bytes();
	const unsigned first = unsigned(bytes[0]) << 8 | bytes[1], second = unsigned(bytes[2]) << 8 | bytes[3];
	if (first >> 13 != 1) // 2000::/3 has all public ones
		return false;
	const bool special = first == 0x2001 && (second < 0x200 || second == 0xdb8); // Teredo and others; documentation
	const bool tunnel = first == 0x2002;										 // 6to4 hides an address of IPv4
	return !special && !tunnel && !(first == 0x3fff && second < 0x1000);
}

std::string sign(const std::string &key, const std::string &content)
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned int size = 0;
	if (!HMAC(EVP_sha256(), key.data(), int(key.size()), reinterpret_cast<const unsigned char *>(content.data()),
			  content.size(), digest, &size))
		throw std::runtime_error("OpenSSL cannot compute a HMAC");
	return base64_encode({reinterpret_cast<const char *>(digest), size});
}

} // namespace

Url parse_url(const std::string &text)
{
	const auto wrong = [&text](const char *why) { return std::invalid_argument("URL \"" + text + "\" " + why); };
	for (unsigned char c : text)
		if (c <= ' ' || c >= 0x7f)
			throw wrong("has characters that must be encoded");
	Url url;
	const std::size_t colon = text.find("://");
	const std::string scheme = lower(text.substr(0, colon == std::string::npos ? 0 : colon));
	if (scheme != "http" && scheme != "https")
		throw wrong("must begin with https:// or http://");
	url.tls = scheme == "https";
	const std::string rest = text.substr(colon + 3, text.find('#') - colon - 3);
	const std::size_t end = std::min(rest.find_first_of("/?"), rest.size());
	url.authority = rest.substr(0, end);
	url.target = (end == rest.size() || rest[end] == '?' ? "/" : "") + rest.substr(end);
	if (url.authority.find('@') != std::string::npos)
		throw wrong("must not have a user");
	const std::size_t bracket = url.authority.find(']');
	const std::size_t port = url.authority.find(':', bracket == std::string::npos ? 0 : bracket);
	url.host = lower(url.authority.substr(0, port));
	if (bracket != std::string::npos)
	{
		if (url.host.front() != '[' || url.host.back() != ']')
			throw wrong("has no valid host");
		url.host = url.host.substr(1, url.host.size() - 2);
	}
	url.port = port == std::string::npos ? (url.tls ? "443" : "80") : url.authority.substr(port + 1);
	if (url.host.empty())
		throw wrong("has no host");
	if (url.port.empty() || url.port.size() > 5 || url.port.find_first_not_of("0123456789") != std::string::npos)
		throw wrong("has no valid port");
	return url;
}

bool host_allowed(std::string host, const std::vector<std::string> &allowed)
{
	host = lower(host);
	return std::any_of(allowed.begin(), allowed.end(), [&host](std::string one) {
		one = lower(one);
		return one == host || (one.size() > 1 && one.front() == '.' && host.size() > one.size() &&
							   host.compare(host.size() - one.size(), one.size(), one) == 0);
	});
}

bool is_public(const ip::address &address)
{
	return address.is_v4() ? is_public_v4(address.to_v4()) : is_public_v6(address.to_v6());
}

std::vector<std::string> parse_secrets(const std::string &text)
{
	std::vector<std::string> keys;
	std::istringstream lines(text);
	for (std::string line; lines >> line;)
	{
		if (line.compare(0, kSecretPrefix.size(), kSecretPrefix) != 0)
			throw std::invalid_argument("a secret must begin with whsec_");
		std::string key;
		try
		{
			key = base64_decode(std::string_view(line).substr(kSecretPrefix.size()));
		}
		catch (const std::exception &)
		{
			throw std::invalid_argument("a secret must be whsec_ and base64");
		}
		if (key.size() < kMinSecret || key.size() > kMaxSecret)
			throw std::invalid_argument("a secret must have 24 to 64 bytes");
		keys.push_back(std::move(key));
	}
	if (keys.empty())
		throw std::invalid_argument("the file has no secret");
	return keys;
}

std::string webhook_signature(const std::vector<std::string> &keys, const std::string &id, std::int64_t timestamp,
							  const std::string &body)
{
	std::string signatures;
	for (const std::string &key : keys)
		signatures +=
			(signatures.empty() ? "v1," : " v1,") + sign(key, id + "." + std::to_string(timestamp) + "." + body);
	return signatures;
}

std::optional<std::int64_t> parse_retry_after(std::string_view text, std::int64_t now)
{
	std::int64_t seconds = 0;
	const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
	if (error == std::errc() && end == text.data() + text.size())
		return seconds >= 0 ? std::optional(seconds) : std::nullopt;
	std::tm date{};
	const char *rest = strptime(std::string(text).c_str(), "%a, %d %b %Y %H:%M:%S GMT", &date);
	return rest ? std::optional(std::max<std::int64_t>(timegm(&date) - now, 0)) : std::nullopt;
}

} // namespace tq::webhook
