// tq-gateway: HTTP for everyone without a database connection. Exit codes: 0 stopped in order, 1 failed, 2 wrong usage.
#include "grpc_server.hpp"
#include "server.hpp"

#include <CLI/CLI.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <csignal>
#include <cstdio>
#include <iostream>

#include <sys/resource.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

namespace asio = boost::asio;

namespace
{

constexpr int kFailed = 1, kUsage = 2;

std::chrono::milliseconds milliseconds(double seconds)
{
	return std::chrono::milliseconds(std::int64_t(seconds * 1000));
}

// Connections of clients need descriptors.
void raise_limit()
{
	rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
	{
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

tq::Task<> serve(gateway::Gateway &gateway, gateway::Server &server, gateway::GrpcServer *grpc, int &code)
{
	const auto executor = co_await asio::this_coro::executor;
	asio::signal_set signals(executor, SIGTERM, SIGINT, SIGHUP);
	asio::co_spawn(executor, gateway.run(), asio::detached);
	asio::co_spawn(executor, gateway.keep_keys(), asio::detached);
	asio::co_spawn(executor, server.run(), asio::detached);
	std::cout << "tq-gateway " TQ_VERSION " is ready: " << server.address();
	if (grpc)
		std::cout << " grpc://" << gateway::endpoint_of(gateway.options().grpc).address << ":" << grpc->port();
	std::cout << std::endl;
	while (co_await signals.async_wait(asio::use_awaitable) == SIGHUP)
	{
		try
		{
			gateway.reload();
			server.reload();
			if (grpc)
				grpc->reload();
			spdlog::info("read the files again");
		}
		catch (const std::exception &error)
		{
			spdlog::error("kept the files that were read before: {}", error.what());
		}
	}
	gateway.stop();
	server.stop();
	if (grpc)
		grpc->stop();
	const auto idle = [&] { return server.idle() && gateway.idle() && (!grpc || grpc->idle()); };
	const auto end = std::chrono::steady_clock::now() + gateway.options().shutdown_timeout;
	asio::steady_timer timer(executor);
	while (!idle() && std::chrono::steady_clock::now() < end)
	{
		timer.expires_after(std::chrono::milliseconds(10));
		co_await timer.async_wait(asio::use_awaitable);
	}
	code = idle() ? 0 : kFailed;
	static_cast<asio::io_context &>(executor.context()).stop();
}

} // namespace

int main(int count, char **arguments)
{
	std::signal(SIGPIPE, SIG_IGN);
	gateway::Options options;
	double max_wait = 60, request_timeout = 30, idle_timeout = 75, shutdown_timeout = 25;
	double pool_timeout = 10, ping_timeout = 2;
	CLI::App app("HTTP for the task queue inside PostgreSQL", "tq-gateway");
	app.set_version_flag("--version", "tq-gateway " TQ_VERSION);
	app.set_config("--config", "", "a file with options, as NAME = VALUE")->envname("TQ_GATEWAY_CONFIG");
	const auto add = [&app](const std::string &name, auto &into, const std::string &help) {
		std::string variable = "TQ_GATEWAY_" + name;
		for (char &c : variable)
			c = c == '-' ? '_' : char(std::toupper(c));
		return app.add_option("--" + name, into, help)->envname(variable);
	};
	add("dsn", options.dsn, "connection string or URI; else the PG* variables")->type_name("DSN");
	add("http", options.http, "address and port to listen on")->capture_default_str();
	add("grpc", options.grpc, "address and port of gRPC, or off")->capture_default_str();
	add("auth", options.auth, "none, or a file of tokens: lines of SHA-256 and role")->capture_default_str();
	add("host", options.hosts, "a further name under which it is reached without authentication");
	app.add_flag("--behind-proxy", options.behind_proxy, "a proxy in front of it does TLS")
		->envname("TQ_GATEWAY_BEHIND_PROXY");
	add("tls-cert", options.tls_cert, "certificate chain (PEM)")->type_name("FILE");
	add("tls-key", options.tls_key, "its key (PEM)")->type_name("FILE");
	add("client-ca", options.client_ca, "what signs the certificates of clients (PEM)")->type_name("FILE");
	add("client-roles", options.client_roles, "lines of the name in a certificate and its role")->type_name("FILE");
	add("jwt-keys", options.jwt_keys, "keys of JSON Web Tokens (JWKS)")->type_name("FILE|URL");
	add("jwt-audience", options.jwt_audience, "the audience that such a token must name");
	add("jwt-issuer", options.jwt_issuer, "the issuer that such a token must name");
	app.add_flag("--push", options.push, "deliver subscriptions as webhooks")->envname("TQ_GATEWAY_PUSH");
	add("push-host", options.push_hosts, "a host that may be reached, instead of all; .example.org is a domain");
	app.add_flag("--push-allow-private", options.push_private, "also deliver to addresses that are not public")
		->envname("TQ_GATEWAY_PUSH_ALLOW_PRIVATE");
	add("push-ca", options.push_ca, "certificates that receivers must have (PEM); else those of the system")
		->type_name("FILE");
	add("connections", options.connections, "connections to the database for calls; claims wait on one more")
		->capture_default_str()
		->check(CLI::Range(1, 1000));
	add("max-body", options.max_body, "the largest body of a request, in bytes")->capture_default_str();
	add("max-header", options.max_header, "the largest headers of a request, in bytes")->capture_default_str();
	add("max-clients", options.max_clients, "the most open connections of clients")->capture_default_str();
	add("max-clients-per-address", options.max_clients_per_address, "the same, of one address")->capture_default_str();
	add("max-wait", max_wait, "the longest wait of a call, in seconds")->capture_default_str();
	add("request-timeout", request_timeout, "for a request to arrive, and for its answer, in seconds")
		->capture_default_str();
	add("idle-timeout", idle_timeout, "of a connection without a request, in seconds")->capture_default_str();
	add("shutdown-timeout", shutdown_timeout, "for open calls to end after SIGTERM, in seconds")->capture_default_str();
	add("pool-timeout", pool_timeout, "for a call to get a connection to the database, in seconds")
		->capture_default_str();
	add("ping-timeout", ping_timeout, "for a client of gRPC to answer a ping, in seconds")
		->capture_default_str()
		->check(CLI::Range(0.1, 3600.0));
	try
	{
		app.parse(count, arguments);
	}
	catch (const CLI::ParseError &error)
	{
		return app.exit(error) == 0 ? 0 : kUsage;
	}
	spdlog::set_default_logger(spdlog::stderr_logger_st("tq-gateway"));
	spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %v", spdlog::pattern_time_type::utc);
	try
	{
		options.max_wait = milliseconds(max_wait);
		options.request_timeout = milliseconds(request_timeout);
		options.idle_timeout = milliseconds(idle_timeout);
		options.shutdown_timeout = milliseconds(shutdown_timeout);
		options.pool_timeout = milliseconds(pool_timeout);
		options.ping_timeout = milliseconds(ping_timeout);
		gateway::check(options);
		raise_limit();
		asio::io_context context(1);
		gateway::Gateway gateway(options);
		gateway::Server server(context.get_executor(), gateway);
		std::unique_ptr<gateway::GrpcServer> grpc;
		if (options.grpc != "off")
			grpc = std::make_unique<gateway::GrpcServer>(context.get_executor(), gateway);
		int code = kFailed;
		asio::co_spawn(context, serve(gateway, server, grpc.get(), code), asio::detached);
		context.run();
		std::fflush(nullptr);
#ifdef __SANITIZE_ADDRESS__
		__lsan_do_leak_check();
#endif
		std::_Exit(code); // coroutines that still wait are left as they are
	}
	catch (const std::invalid_argument &error)
	{
		std::cerr << "tq-gateway: " << error.what() << "\n";
		return kUsage;
	}
	catch (const std::exception &error)
	{
		std::cerr << "tq-gateway: " << error.what() << "\n";
		return kFailed;
	}
}
