// AES-256-GCM and HMAC-SHA256 by OpenSSL.
#include <tq/codec.hpp>

#include <boost/json.hpp>

#include <array>
#include <memory>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

namespace json = boost::json;

namespace tq
{

namespace
{

constexpr std::size_t kKeySize = 32, kIvSize = 12, kTagSize = 16;
const json::parse_options kParsing = [] {
	json::parse_options options;
	options.max_depth = 1000;
	return options;
}();

const unsigned char *bytes(std::string_view text) { return reinterpret_cast<const unsigned char *>(text.data()); }
unsigned char *bytes(std::string &text) { return reinterpret_cast<unsigned char *>(text.data()); }

struct Cipher
{
	Cipher() : context(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free) {}
	EVP_CIPHER_CTX *get() const { return context.get(); }

	std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context;
};

void require(bool done, const char *what)
{
	if (!done)
		throw CodecError(what);
}

std::string encrypt(const std::string &key, const std::string &iv, std::string_view context, std::string_view text)
{
	Cipher cipher;
	std::string sealed(text.size() + kTagSize, '\0');
	int length = 0;
	require(EVP_EncryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, bytes(std::string_view(key)),
							   bytes(std::string_view(iv))) == 1 &&
				EVP_EncryptUpdate(cipher.get(), nullptr, &length, bytes(context), int(context.size())) == 1 &&
				EVP_EncryptUpdate(cipher.get(), bytes(sealed), &length, bytes(text), int(text.size())) == 1 &&
				EVP_EncryptFinal_ex(cipher.get(), bytes(sealed) + text.size(), &length) == 1 &&
				EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG, kTagSize, bytes(sealed) + text.size()) == 1,
			"encryption failed");
	return sealed;
}

std::string decrypt(const std::string &key, const std::string &iv, std::string_view context, std::string sealed)
{
	require(iv.size() == kIvSize && sealed.size() >= kTagSize, "it is cut");
	Cipher cipher;
	std::string tag = sealed.substr(sealed.size() - kTagSize);
	sealed.resize(sealed.size() - kTagSize);
	std::string text(sealed.size(), '\0');
	int length = 0;
	require(EVP_DecryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, bytes(std::string_view(key)),
							   bytes(std::string_view(iv))) == 1 &&
				EVP_DecryptUpdate(cipher.get(), nullptr, &length, bytes(context), int(context.size())) == 1 &&
				EVP_DecryptUpdate(cipher.get(), bytes(text), &length, bytes(std::string_view(sealed)),
								  int(sealed.size())) == 1 &&
				EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_SET_TAG, kTagSize, bytes(tag)) == 1 &&
				EVP_DecryptFinal_ex(cipher.get(), bytes(text) + text.size(), &length) == 1,
			"its tag does not fit its key and context");
	return text;
}

std::string sign(const std::string &key, std::string_view context, std::string_view text)
{
	std::string message(context);
	message += '\0';
	message += text;
	std::string mac(EVP_MAX_MD_SIZE, '\0');
	unsigned int length = 0;
	require(HMAC(EVP_sha256(), key.data(), int(key.size()), bytes(std::string_view(message)), message.size(),
				 bytes(mac), &length) != nullptr,
			"signing failed");
	mac.resize(length);
	return mac;
}

const std::string &member(const json::object &object, const char *name, std::string &into)
{
	const json::value *found = object.if_contains(name);
	require(found && found->is_string(), (std::string("it has no text \"") + name + "\"").c_str());
	into.assign(found->get_string().data(), found->get_string().size());
	return into;
}

} // namespace

std::string base64_encode(std::string_view data)
{
	std::string text((data.size() + 2) / 3 * 4 + 1, '\0');
	const int length = EVP_EncodeBlock(bytes(text), bytes(data), int(data.size()));
	text.resize(std::size_t(length));
	return text;
}

std::string base64_decode(std::string_view text)
{
	static constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	std::size_t padding = 0;
	while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=')
		++padding;
	const std::string_view digits = text.substr(0, text.size() - padding);
	require(text.size() % 4 == 0 && digits.find_first_not_of(kAlphabet) == std::string_view::npos, "it is not base64");
	std::string data;
	std::uint32_t group = 0;
	int bits = 0;
	for (char digit : digits)
	{
		group = group << 6 | std::uint32_t(kAlphabet.find(digit));
		bits += 6;
		if (bits >= 8)
		{
			bits -= 8;
			data += char(group >> bits & 0xff);
		}
	}
	require((group & ((1u << bits) - 1)) == 0, "it is not base64");
	return data;
}

Codec::Codec(std::map<std::string, std::string> keys, std::string encode_with, Algorithm algorithm)
	: keys_(std::move(keys)), encode_with_(std::move(encode_with)), algorithm_(algorithm)
{
	for (const auto &[id, key] : keys_)
		require(key.size() == kKeySize, ("key " + id + " does not have 32 bytes").c_str());
	require(keys_.contains(encode_with_), ("there is no key " + encode_with_).c_str());
}

std::string Codec::encode(std::string_view context, std::string_view text) const
{
	const std::string &key = keys_.at(encode_with_);
	json::object object{{"tq", "v1"}, {"kid", encode_with_}};
	if (algorithm_ == Algorithm::kSign)
	{
		object["alg"] = "HS256";
		object["text"] = text;
		object["mac"] = base64_encode(sign(key, context, text));
	}
	else
	{
		std::string iv(kIvSize, '\0');
		require(RAND_bytes(bytes(iv), int(kIvSize)) == 1, "no random numbers");
		object["alg"] = "A256GCM";
		object["iv"] = base64_encode(iv);
		object["ct"] = base64_encode(encrypt(key, iv, context, text));
	}
	return json::serialize(object);
}

std::string Codec::decode(std::string_view context, std::string_view text, bool accept_plain) const
{
	boost::system::error_code error;
	const json::value value = json::parse(text, error, {}, kParsing);
	const json::object *object = error ? nullptr : value.if_object();
	if (!object || !object->contains("tq") || !object->contains("alg"))
	{
		if (accept_plain)
			return std::string(text);
		throw CodecError("the value is not encoded");
	}
	std::string kid = "?";
	const auto checked = [](std::string decoded) {
		boost::system::error_code wrong;
		json::parse(decoded, wrong, {}, kParsing);
		require(!wrong, "its text is not JSON");
		return decoded;
	};
	try
	{
		std::string version, algorithm, first, second;
		member(*object, "kid", kid);
		require(member(*object, "tq", version) == "v1", "its format is unknown");
		member(*object, "alg", algorithm);
		const auto key = keys_.find(kid);
		require(key != keys_.end(), "the key is unknown");
		if (algorithm == "A256GCM")
			return checked(decrypt(key->second, base64_decode(member(*object, "iv", first)), context,
								   base64_decode(member(*object, "ct", second))));
		require(algorithm == "HS256", "its algorithm is unknown");
		member(*object, "text", first);
		const std::string mac = base64_decode(member(*object, "mac", second));
		const std::string expected = sign(key->second, context, first);
		require(mac.size() == expected.size() && CRYPTO_memcmp(mac.data(), expected.data(), mac.size()) == 0,
				"its mac does not fit its key and context");
		return checked(first);
	}
	catch (const CodecError &reason)
	{
		throw CodecError("the value with key id \"" + kid + "\" cannot be decoded: " + reason.what());
	}
}

std::string Codec::decode_parents(std::string_view text, bool accept_plain) const
{
	boost::system::error_code error;
	json::value value = json::parse(text, error, {}, kParsing);
	require(!error && value.is_object(), "the parents are not a JSON object");
	std::string decoded;
	for (auto &[id, parent] : value.as_object())
	{
		decoded += (decoded.empty() ? "{" : ",") + json::serialize(id) + ":";
		json::object *outcome = parent.if_object();
		const json::value *result = outcome ? outcome->if_contains("result") : nullptr;
		if (!result || result->is_null())
		{
			decoded += json::serialize(parent);
			continue;
		}
		// joined as text, because json::value would round its numbers
		const std::string plain = decode("tq.v1:result:" + std::string(id), json::serialize(*result), accept_plain);
		outcome->erase("result");
		const std::string others = json::serialize(parent);
		decoded += others.substr(0, others.size() - 1) + (outcome->empty() ? "" : ",") + "\"result\":" + plain + "}";
	}
	return decoded.empty() ? "{}" : decoded + "}";
}

} // namespace tq
