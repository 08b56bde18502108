// TLS of the gRPC server, with files that can be read again while it runs.
#pragma once

#include "options.hpp"

#include <grpc/grpc_security.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <mutex>
#include <string>

namespace gateway
{

// Must outlive the server.
class GrpcTls : public grpc::ServerCredentials
{
public:
	// Raises std::runtime_error.
	explicit GrpcTls(const Options &options);

	// Reads the files again, for connections that begin from now on. Raises std::runtime_error, and keeps what it had.
	void reload();

	void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor> &) override {}

private:
	int AddPortToServer(const std::string &address, grpc_server *server) override;
	static grpc_ssl_certificate_config_reload_status fetch(void *self, grpc_ssl_server_certificate_config **config);

	const std::string cert_file_, key_file_, ca_file_; // no CA: certificates of clients are not asked for
	std::mutex mutex_;								   // gRPC fetches in its own threads
	std::string cert_, key_, ca_;
	bool changed_ = false; // since the last fetch
};

} // namespace gateway
