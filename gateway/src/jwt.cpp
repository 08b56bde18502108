#include "jwt.hpp"

#include "problem.hpp"

#include <boost/json.hpp>

extern "C"
{
#include <cjose/cjose.h>
}

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace json = boost::json;
using namespace std::chrono_literals;

namespace gateway
{

namespace
{

constexpr auto kLeeway = 30s; // between clocks
constexpr std::size_t kLeastSecret = 256, kLeastRsa = 2048; // bits

struct Release
{
	void operator()(cjose_jws_t *jws) const { cjose_jws_release(jws); }
};
using Jws = std::unique_ptr<cjose_jws_t, Release>;

[[noreturn]] void refuse(const std::string &why)
{
	Refusal refusal(401, "the token is not valid: " + why, "Send another one as Authorization: Bearer TOKEN.");
	refusal.headers.emplace_back("WWW-Authenticate", "Bearer error=\"invalid_token\"");
	throw refusal;
}

Jws parse(std::string_view token)
{
	cjose_err error;
	return Jws(cjose_jws_import(token.data(), token.size(), &error));
}

// A text in the header; empty if there is none.
std::string header_of(const Jws &jws, const char *name)
{
	cjose_err error;
	const char *value = cjose_header_get(cjose_jws_get_protected(jws.get()), name, &error);
	return value ? value : "";
}

bool has_header(const Jws &jws, const char *name)
{
	cjose_err error;
	char *value = cjose_header_get_raw(cjose_jws_get_protected(jws.get()), name, &error);
	std::free(value);
	return value != nullptr;
}

std::string text_of(const json::object &object, const char *name)
{
	const json::value *value = object.if_contains(name);
	return value && value->is_string() ? std::string(value->get_string()) : "";
}

// A time in seconds since 1970. Raises Refusal if it is something else.
std::chrono::duration<double> time_of(const json::value &value, const char *name)
{
	boost::system::error_code error;
	const double seconds = value.to_number<double>(error);
	if (error || !std::isfinite(seconds))
		refuse(std::string(name) + " is not a time");
	return std::chrono::duration<double>(seconds);
}

bool is_meant_for(const json::object &claims, const std::string &audience)
{
	const json::value *value = claims.if_contains("aud");
	if (value && value->is_array())
		return std::any_of(value->get_array().begin(), value->get_array().end(),
						   [&](const json::value &one) { return one.is_string() && one.get_string() == audience; });
	return text_of(claims, "aud") == audience;
}

// The one algorithm that a key is for; empty if it cannot be used.
std::string algorithm_of(const json::object &key, const cjose_jwk_t *jwk, bool is_public)
{
	cjose_err error;
	const cjose_jwk_kty_t type = cjose_jwk_get_kty(jwk, &error);
	const std::size_t bits = cjose_jwk_get_keysize(jwk, &error);
	std::string algorithm;
	if (type == CJOSE_JWK_KTY_OCT)
	{
		if (is_public)
			throw std::runtime_error("a key that everybody can read is a secret (kty oct)");
		if (bits < kLeastSecret)
			throw std::runtime_error("a secret is shorter than 32 bytes");
		algorithm = "HS256";
	}
	else if (type == CJOSE_JWK_KTY_RSA && bits >= kLeastRsa)
		algorithm = "RS256";
	else if (type == CJOSE_JWK_KTY_EC && cjose_jwk_EC_get_curve(jwk, &error) == CJOSE_JWK_EC_P_256)
		algorithm = "ES256";
	const std::string use = text_of(key, "use"), named = text_of(key, "alg");
	return (use.empty() || use == "sig") && (named.empty() || named == algorithm) ? algorithm : "";
}

} // namespace

Jwt::Jwt(const Options &options) : audience_(options.jwt_audience), issuer_(options.jwt_issuer) {}
Jwt::~Jwt() = default;

void Jwt::set_keys(const std::string &jwks, bool is_public)
{
	boost::system::error_code error;
	const json::value document = json::parse(jwks, error);
	const json::value *list = !error && document.is_object() ? document.get_object().if_contains("keys") : nullptr;
	if (!list || !list->is_array())
		throw std::runtime_error("the keys are no JWKS: an object with an array \"keys\" is expected");
	std::vector<Key> keys;
	for (const json::value &one : list->get_array())
	{
		if (!one.is_object())
			throw std::runtime_error("a key is no object");
		const std::string text = json::serialize(one);
		cjose_err failure;
		const std::shared_ptr<cjose_jwk_t> key(cjose_jwk_import(text.data(), text.size(), &failure),
											   [](cjose_jwk_t *jwk) { cjose_jwk_release(jwk); });
		if (!key)
			continue; // of a kind that came later than the library
		std::string algorithm = algorithm_of(one.get_object(), key.get(), is_public);
		if (!algorithm.empty())
			keys.push_back({text_of(one.get_object(), "kid"), std::move(algorithm), key});
	}
	if (keys.empty())
		throw std::runtime_error("there is no key for HS256, RS256 (of 2048 bits) or ES256");
	keys_ = std::move(keys);
}

bool Jwt::knows_key_of(std::string_view token) const
{
	const Jws jws = parse(token);
	const std::string id = jws ? header_of(jws, CJOSE_HDR_KID) : "";
	return id.empty() || std::any_of(keys_.begin(), keys_.end(), [&](const Key &key) { return key.id == id; });
}

std::string Jwt::role_of(std::string_view token, std::chrono::system_clock::time_point now) const
{
	const Jws jws = parse(token);
	if (!jws)
		refuse("it cannot be read");
	if (has_header(jws, "crit"))
		refuse("its header asks for extensions");
	const std::string algorithm = header_of(jws, CJOSE_HDR_ALG), id = header_of(jws, CJOSE_HDR_KID);
	const bool verified = std::any_of(keys_.begin(), keys_.end(), [&](const Key &key) {
		cjose_err error;
		return key.algorithm == algorithm && (id.empty() || key.id.empty() || key.id == id) &&
			   cjose_jws_verify(jws.get(), key.key.get(), &error);
	});
	if (!verified)
		refuse("no key verifies its signature");

	std::uint8_t *text = nullptr;
	std::size_t size = 0;
	cjose_err failure;
	boost::system::error_code error;
	json::value document;
	if (cjose_jws_get_plaintext(jws.get(), &text, &size, &failure))
		document = json::parse({reinterpret_cast<const char *>(text), size}, error);
	if (error || !document.is_object())
		refuse("its claims are no object");
	const json::object &claims = document.get_object();
	const auto time = now.time_since_epoch();
	const json::value *end = claims.if_contains("exp");
	if (!end)
		refuse("it has no time of expiry (exp)");
	if (time >= time_of(*end, "exp") + kLeeway)
		refuse("it has expired");
	if (const json::value *begin = claims.if_contains("nbf"); begin && time + kLeeway < time_of(*begin, "nbf"))
		refuse("its time has not come (nbf)");
	if (!issuer_.empty() && text_of(claims, "iss") != issuer_)
		refuse("it is of another issuer");
	if (!audience_.empty() && !is_meant_for(claims, audience_))
		refuse("it is for another audience");
	const std::string role = text_of(claims, "role");
	if (role.empty())
		refuse("it names no role");
	return role;
}

bool looks_like_jwt(std::string_view token) { return std::count(token.begin(), token.end(), '.') == 2; }

} // namespace gateway
