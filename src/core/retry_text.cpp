#include "core/retry_text.hpp"

#include <cstdlib>
#include <cstring>

namespace tq::core
{

namespace
{

constexpr double kTenYears = 3652.0 * 86400e6;
constexpr size_t kWordMax = 64;
constexpr Micros kNotGiven = -1;

bool is_space(char c) noexcept { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
bool is_letter(char c) noexcept { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char lower(char c) noexcept { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

struct Unit
{
	const char *name;
	double micros;
};
constexpr Unit kUnits[] = {
	{"us", 1},		  {"ms", 1e3},		{"s", 1e6},		   {"sec", 1e6},   {"secs", 1e6},	 {"second", 1e6},
	{"seconds", 1e6}, {"m", 60e6},		{"min", 60e6},	   {"mins", 60e6}, {"minute", 60e6}, {"minutes", 60e6},
	{"h", 3600e6},	  {"hour", 3600e6}, {"hours", 3600e6}, {"d", 86400e6}, {"day", 86400e6}, {"days", 86400e6},
};

// Digits with an optional fraction; no sign, no exponent, no locale.
bool read_number(const char *&p, double *out) noexcept
{
	if (!is_digit(*p))
		return false;
	double v = 0;
	for (; is_digit(*p); ++p)
		v = v * 10 + (*p - '0');
	if (*p == '.')
	{
		double place = 0.1;
		for (++p; is_digit(*p); ++p, place /= 10)
			v += (*p - '0') * place;
	}
	*out = v;
	return true;
}

// What is left of the text, read token by token.
struct Reader
{
	const char *p;

	void skip() noexcept
	{
		while (is_space(*p))
			++p;
	}
	bool take(char c) noexcept
	{
		skip();
		if (*p != c)
			return false;
		++p;
		return true;
	}
	bool word(const char *w) noexcept
	{
		skip();
		const size_t n = std::strlen(w);
		if (std::strncmp(p, w, n) != 0)
			return false;
		p += n;
		return true;
	}
	// A JSON string without escapes: no key and no value of a policy needs one.
	bool string(char (&out)[kWordMax]) noexcept
	{
		if (!take('"'))
			return false;
		size_t n = 0;
		for (; *p != '"'; ++p)
		{
			if (*p == '\0' || *p == '\\' || static_cast<unsigned char>(*p) < 0x20 || n + 1 == kWordMax)
				return false;
			out[n++] = *p;
		}
		++p;
		out[n] = '\0';
		return true;
	}
	bool duration(Micros *out) noexcept
	{
		char s[kWordMax];
		return string(s) && parse_duration(s, out);
	}
	bool number(double low, double high, float *out) noexcept
	{
		skip();
		double v = 0;
		if (!read_number(p, &v) || v < low || v > high)
			return false;
		*out = static_cast<float>(v);
		return true;
	}
	bool delays(RetryPolicy *policy) noexcept
	{
		if (!take('['))
			return false;
		int n = 0;
		do
			if (n == kMaxDelays || !duration(&policy->delays[n++]))
				return false;
		while (take(','));
		policy->ndelays = static_cast<uint8_t>(n);
		return take(']');
	}
};

bool parse_backoff(const char *name, Backoff *out) noexcept
{
	constexpr const char *kNames[] = {"exponential", "linear", "fixed", "list"};
	for (int i = 0; i < 4; ++i)
		if (std::strcmp(name, kNames[i]) == 0)
		{
			*out = static_cast<Backoff>(i);
			return true;
		}
	return false;
}

// One value; null leaves the default.
const char *read_value(Reader &r, const char *key, RetryPolicy *p) noexcept
{
	const bool null = r.word("null");
	if (std::strcmp(key, "policy") == 0)
	{
		char name[kWordMax];
		return null || (r.string(name) && parse_backoff(name, &p->backoff))
				   ? nullptr
				   : "policy must be one of \"exponential\", \"linear\", \"fixed\", \"list\".";
	}
	if (std::strcmp(key, "delay") == 0)
		return null || r.duration(&p->delay) ? nullptr : "delay must be a duration such as \"10 s\".";
	if (std::strcmp(key, "max") == 0)
		return null || r.duration(&p->max) ? nullptr : "max must be a duration such as \"1 h\".";
	if (std::strcmp(key, "on_lost") == 0)
		return null || r.duration(&p->on_lost) ? nullptr : "on_lost must be a duration such as \"5 s\".";
	if (std::strcmp(key, "factor") == 0)
		return null || r.number(1, 1000, &p->factor) ? nullptr : "factor must be a number between 1 and 1000.";
	if (std::strcmp(key, "jitter") == 0)
		return null || r.number(0, 1, &p->jitter) ? nullptr : "jitter must be a number between 0 and 1.";
	if (std::strcmp(key, "delays") == 0)
		return null || r.delays(p) ? nullptr
								   : "delays must be an array of 1 to 16 durations such as [\"1 s\", \"1 min\"].";
	return "Known keys are policy, delay, max, factor, jitter, delays, on_lost.";
}

} // namespace

bool parse_duration(const char *text, Micros *out) noexcept
{
	const char *p = text;
	double total = 0;
	bool any = false;
	while (is_space(*p))
		++p;
	while (*p != '\0')
	{
		double v = 0;
		if (!read_number(p, &v))
			return false;
		if (*p == ':') // hours:minutes[:seconds]
		{
			double minutes = 0, seconds = 0;
			if (!read_number(++p, &minutes) || minutes >= 60)
				return false;
			if (*p == ':' && (!read_number(++p, &seconds) || seconds >= 60))
				return false;
			total += v * 3600e6 + minutes * 60e6 + seconds * 1e6;
		}
		else
		{
			while (is_space(*p))
				++p;
			char name[kWordMax];
			size_t n = 0;
			while (is_letter(*p) && n + 1 < kWordMax)
				name[n++] = lower(*p++);
			name[n] = '\0';
			const Unit *unit = nullptr;
			for (const Unit &u : kUnits)
				if (std::strcmp(u.name, name) == 0)
					unit = &u;
			if (unit == nullptr)
				return false;
			total += v * unit->micros;
		}
		any = true;
		while (is_space(*p))
			++p;
	}
	if (!any || !(total <= kTenYears))
		return false;
	*out = static_cast<Micros>(total + 0.5);
	return true;
}

bool parse_retry_text(const char *text, RetryPolicy *policy, const char **error) noexcept
{
	RetryPolicy p = *policy;
	p.max = kNotGiven;
	Reader r{text};
	*error = "It must be a JSON object such as {\"policy\": \"exponential\", \"delay\": \"10 s\", \"max\": \"1 h\"}.";
	if (!r.take('{'))
		return false;
	const char *shape = *error;
	if (!r.take('}'))
	{
		do
		{
			char key[kWordMax];
			if (!r.string(key) || !r.take(':'))
				return false;
			*error = read_value(r, key, &p);
			if (*error != nullptr)
				return false;
			*error = shape;
		} while (r.take(','));
		if (!r.take('}'))
			return false;
	}
	r.skip();
	if (*r.p != '\0')
		return false;
	*error = "The policy \"list\" needs \"delays\".";
	if (p.backoff == Backoff::list && p.ndelays == 0)
		return false;
	*error = nullptr;
	if (p.max == kNotGiven)
		p.max = p.backoff == Backoff::list ? static_cast<Micros>(kTenYears) : policy->max; // a list says itself how long
	*policy = p;
	return true;
}

} // namespace tq::core
