#include "text.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace gateway
{

std::string lower(std::string text)
{
	std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return char(std::tolower(c)); });
	return text;
}

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

std::string contents(const std::string &path)
{
	std::ifstream file(path);
	if (!file)
		throw std::runtime_error("cannot read " + path);
	return std::string(std::istreambuf_iterator<char>(file), {});
}

} // namespace gateway
