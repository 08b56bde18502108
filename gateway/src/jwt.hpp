// JSON Web Tokens (RFC 7519), signed with HS256, RS256 or ES256.
#pragma once

#include "options.hpp"

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct _cjose_jwk_int;

namespace gateway
{

class Jwt
{
public:
	explicit Jwt(const Options &options);
	~Jwt();

	// Takes the keys of a JWKS (RFC 7517) instead of those it had. Keys of a document that everybody can read must not be
	// secrets. Raises std::runtime_error.
	void set_keys(const std::string &jwks, bool is_public);
	bool has_keys() const noexcept { return !keys_.empty(); }
	// Whether a key has the id that the token names, or the token names none.
	bool knows_key_of(std::string_view token) const;

	// The role that a token names. Raises Refusal (401) if the token is not valid at that time.
	std::string role_of(std::string_view token, std::chrono::system_clock::time_point now) const;

private:
	struct Key
	{
		std::string id;
		std::string algorithm;
		std::shared_ptr<_cjose_jwk_int> key;
	};

	const std::string audience_, issuer_; // empty: any
	std::vector<Key> keys_;
};

// Whether a credential looks like a token of this kind.
bool looks_like_jwt(std::string_view token);

} // namespace gateway
