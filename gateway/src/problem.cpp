#include "problem.hpp"

#include <tq/utf8.hpp>

#include <boost/json.hpp>
#include <spdlog/spdlog.h>

#include <iterator>

namespace gateway
{

namespace
{

struct Row
{
	std::string_view sqlstate; // or its beginning
	unsigned status;
	const char *title;
	const char *retry_after; // in seconds; null: the same call will not do better
};

// The first row that fits.
constexpr Row kRows[] = {
	{"TQ001", 409, "Lease lost", nullptr},
	{"TQ002", 404, "No such queue", nullptr},
	{"TQ003", 429, "Queue full", "1"},
	{"TQ004", 404, "No such job", nullptr},
	{"TQ005", 409, "Wrong state", nullptr},
	{"TQ008", 409, "Unique key taken", nullptr},
	{"TQ009", 503, "Not loaded yet", "1"},
	{"TQ010", 410, "Changes gone", nullptr},
	{"TQ", 503, "Not served", "10"},
	{"42501", 403, "Not allowed", nullptr},
	{"42704", 404, "Not found", nullptr},
	{"42710", 409, "Exists already", nullptr},
	{"42883", 501, "Not in this version of tq", nullptr},
	{"42P01", 501, "Not in this version of tq", nullptr},
	{"54000", 413, "Too large", nullptr},
	{"53400", 503, "A limit of the server is reached", "10"},
	{"55P03", 409, "Being changed", "1"},
	{"55", 409, "Wrong state", nullptr},
	{"40", 503, "Try again", "1"},
	{"25006", 503, "The server is read-only", "10"},
	{"57014", 503, "The call took too long", "1"},
	{"0A000", 400, "Not supported", nullptr},
	{"22", 400, "Bad request", nullptr},
	{"57", 503, "The database is not reachable", "1"},
	{"53", 503, "The database is overloaded", "1"},
	{"08", 503, "The database is not reachable", "1"},
	{"", 500, "Internal error", nullptr},
};

constexpr Row kLost = {"", 503, "The database is not reachable", "1"};

const char *title_of(unsigned status)
{
	switch (status)
	{
		case 400:
			return "Bad request";
		case 401:
			return "Unauthorized";
		case 403:
			return "Not allowed";
		case 404:
			return "Not found";
		case 405:
			return "Method not allowed";
		case 408:
			return "Too slow";
		case 413:
			return "Too large";
		case 415:
			return "Not JSON";
		case 429:
			return "Too many requests";
		case 431:
			return "Headers too large";
		case 503:
			return "Not available";
		default:
			return "Refused";
	}
}

Answer written(unsigned status, const char *title, const std::string &detail, const std::string &hint,
			   const std::string &code)
{
	boost::json::object object{{"status", status}, {"title", title}, {"detail", tq::valid_utf8(detail)}};
	if (!hint.empty())
		object["hint"] = tq::valid_utf8(hint);
	if (!code.empty())
		object["code"] = code;
	Answer answer;
	answer.status = status;
	answer.type = "application/problem+json";
	answer.body = boost::json::serialize(object);
	return answer;
}

} // namespace

Answer problem(const Refusal &refusal)
{
	Answer answer = written(refusal.status, title_of(refusal.status), refusal.what(), refusal.hint, "");
	answer.headers = refusal.headers;
	return answer;
}

Answer problem(const tq::Error &error)
{
	const Row *row = &kLost;
	if (!error.sqlstate().empty())
		row = std::find_if(std::begin(kRows), std::end(kRows),
						   [&error](const Row &one) { return error.sqlstate().starts_with(one.sqlstate); });
	std::string detail = error.what();
	if (!error.detail().empty())
		detail += ": " + error.detail();
	Answer answer = written(row->status, row->title, detail, error.hint(), error.sqlstate());
	if (row->retry_after)
		answer.headers.emplace_back("Retry-After", row->retry_after);
	return answer;
}

Answer problem(std::exception_ptr exception)
{
	try
	{
		std::rethrow_exception(exception);
	}
	catch (const Refusal &refusal)
	{
		return problem(refusal);
	}
	catch (const tq::Error &error)
	{
		return problem(error);
	}
	catch (const std::exception &error)
	{
		spdlog::error("a request failed: {}", error.what());
		return written(500, "Internal error", "The gateway failed. Its log says more.", "", "");
	}
}

} // namespace gateway
