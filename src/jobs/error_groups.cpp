#include "jobs/error_groups.hpp"

extern "C"
{
#include "mb/pg_wchar.h"
}

namespace tq
{

namespace
{

constexpr char kPlaceholder = '?';

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
bool is_hex(char c) noexcept { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
// Bytes of characters beyond ASCII count as letters.
bool is_word(char c) noexcept
{
	return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0;
}

int hex_run(const char *s) noexcept
{
	int n = 0;
	while (is_hex(s[n]))
		++n;
	return n;
}

// The length of a UUID at the start of `s`; 0: there is none.
int uuid_at(const char *s) noexcept
{
	static constexpr int kParts[] = {8, 4, 4, 4, 12};
	int n = 0;
	for (const int part : kParts)
	{
		if (hex_run(s + n) != part)
			return 0;
		n += part;
		if (part != 12 && s[n++] != '-')
			return 0;
	}
	return is_word(s[n]) ? 0 : n;
}

// The length of a word of hexadecimal digits. Without 0x it needs eight of them and a decimal digit, because "deadbeef"
// may be a word.
int hex_at(const char *s) noexcept
{
	constexpr int kFewest = 8;
	if (s[0] == '0' && (s[1] == 'x' || s[1] == 'X') && hex_run(s + 2) > 0)
		return 2 + hex_run(s + 2);
	const int n = hex_run(s);
	return n >= kFewest && !is_word(s[n]) && std::any_of(s, s + n, is_digit) ? n : 0;
}

// A quoted string ends in the same line; an apostrophe in a word begins none.
int quoted_at(const char *s) noexcept
{
	if (*s != '\'' && *s != '"')
		return 0;
	const size_t n = strcspn(s + 1, *s == '"' ? "\"\n" : "'\n");
	return s[1 + n] == *s ? static_cast<int>(n) + 2 : 0;
}

// Digits, also with separators between them: 1,000, 2.5, 10:30.
int number_at(const char *s) noexcept
{
	int n = 0;
	while (is_digit(s[n]) || (n > 0 && strchr(".,:", s[n]) != nullptr && s[n] != '\0' && is_digit(s[n + 1])))
		++n;
	return n;
}

} // namespace

char *group_of_error(const char *error)
{
	const int length = pg_mbcliplen(error, static_cast<int>(strlen(error)), kErrorRead);
	char *s = pnstrdup(error, static_cast<Size>(length));
	char *out = s, *to = s;
	while (*s != '\0')
	{
		const bool begins = to == out || !is_word(to[-1]); // of what is written, so that a group's own group is itself
		int n = begins ? quoted_at(s) : 0;
		n = n == 0 && begins ? uuid_at(s) : n;
		n = n == 0 && begins ? hex_at(s) : n;
		n = n == 0 ? number_at(s) : n;
		*to++ = n > 0 ? kPlaceholder : *s;
		s += std::max(n, 1);
	}
	*to = '\0';
	return out;
}

} // namespace tq
