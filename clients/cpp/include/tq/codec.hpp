// Codecs: encrypted or signed payloads, results and checkpoints. clients/README.md has the format.
#pragma once

#include <tq/error.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace tq
{

// A value that cannot be decoded. what() names the key and the reason, never a byte of the value.
class CodecError : public Error
{
public:
	explicit CodecError(const std::string &message) : Error({}, message) {}
};

enum class Algorithm
{
	kEncrypt, // A256GCM
	kSign,	  // HS256
};

class Codec
{
public:
	// keys: 32 bytes each, by id. encode_with is the id of the key that encodes. Raises CodecError.
	Codec(std::map<std::string, std::string> keys, std::string encode_with, Algorithm algorithm = Algorithm::kEncrypt);

	// Encodes the JSON text of a value, and returns JSON.
	std::string encode(std::string_view context, std::string_view text) const;

	// Decodes what encode() of any library returned. Raises CodecError. With accept_plain, JSON that no codec has made is
	// returned as it is.
	std::string decode(std::string_view context, std::string_view json, bool accept_plain = false) const;

	// Decodes the results in `parents` of a claimed job, a JSON object by the ids of the parents. Raises CodecError.
	std::string decode_parents(std::string_view json, bool accept_plain = false) const;

	static std::string payload_context() { return "tq.v1:payload"; }
	static std::string result_context(std::int64_t id) { return "tq.v1:result:" + std::to_string(id); }
	static std::string checkpoint_context(std::int64_t id) { return "tq.v1:checkpoint:" + std::to_string(id); }

private:
	std::map<std::string, std::string> keys_;
	std::string encode_with_;
	Algorithm algorithm_;
};

// Standard base64 with padding. decode raises CodecError.
std::string base64_encode(std::string_view bytes);
std::string base64_decode(std::string_view text);

} // namespace tq
