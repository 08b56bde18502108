#include "hash.hpp"

#include <openssl/evp.h>

#include <array>

namespace gateway
{

std::string sha256(std::string_view text)
{
	std::array<unsigned char, 32> hash;
	unsigned size = hash.size();
	EVP_Digest(text.data(), text.size(), hash.data(), &size, EVP_sha256(), nullptr);
	static constexpr char kDigits[] = "0123456789abcdef";
	std::string digits;
	for (const unsigned char byte : hash)
	{
		digits += kDigits[byte >> 4];
		digits += kDigits[byte & 15];
	}
	return digits;
}

} // namespace gateway
