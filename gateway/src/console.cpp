#include "console.hpp"

#include "console_files.hpp"

#include <algorithm>

namespace gateway
{

namespace
{

// What the page may load, and where it may send what it knows: this gateway, nothing else.
constexpr const char *kPolicy =
	"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const char *type_of(std::string_view name)
{
	if (name.ends_with(".html"))
		return "text/html; charset=utf-8";
	if (name.ends_with(".js"))
		return "text/javascript; charset=utf-8";
	if (name.ends_with(".css"))
		return "text/css; charset=utf-8";
	return name.ends_with(".svg") ? "image/svg+xml" : "application/octet-stream";
}

} // namespace

std::optional<Answer> console(const Request &request)
{
	if ((request.method != "GET" && request.method != "HEAD") || request.path.empty())
		return std::nullopt;
	const std::string name = request.path == "/" ? "index.html" : request.path.substr(1);
	const auto file = std::find_if(console_files.begin(), console_files.end(),
								   [&name](const ConsoleFile &one) { return one.name == name; });
	if (file == console_files.end())
		return std::nullopt;
	Answer answer;
	answer.type = type_of(name);
	// the names of the others change with their contents
	const bool changes = name == "index.html";
	answer.headers = {{"Content-Security-Policy", kPolicy},
					  {"Referrer-Policy", "no-referrer"},
					  {"Cache-Control", changes ? "no-cache" : "public, max-age=31536000, immutable"},
					  {"Vary", "Accept-Encoding"}};
	const bool packed = request.header("accept-encoding").find("gzip") != std::string::npos;
	if (packed)
		answer.headers.emplace_back("Content-Encoding", "gzip");
	answer.body = packed ? file->gzip : file->plain;
	return answer;
}

} // namespace gateway
