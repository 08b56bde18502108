#include <tq/utf8.hpp>

namespace tq
{

namespace
{

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// The length of the valid character at the beginning of the text, or 0.
std::size_t character_length(std::string_view text)
{
	const auto byte = [text](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
	const unsigned first = byte(0);
	if (first == 0)
		return 0;
	if (first < 0x80)
		return 1;
	const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
	if (first < 0xc2 || first > 0xf4)
		return 0;
	for (std::size_t i = 1; i < length; ++i)
	{
		if ((byte(i) & 0xc0) != 0x80)
			return 0;
	}
	// overlong forms, surrogates, and what is beyond Unicode
	const unsigned second = byte(1);
	if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) || (first == 0xf0 && second < 0x90) ||
		(first == 0xf4 && second > 0x8f))
		return 0;
	return length;
}

} // namespace

std::string valid_utf8(std::string_view text)
{
	std::string valid;
	while (!text.empty())
	{
		const std::size_t length = character_length(text);
		valid += length ? text.substr(0, length) : kReplacement;
		text.remove_prefix(length ? length : 1);
	}
	return valid;
}

} // namespace tq
