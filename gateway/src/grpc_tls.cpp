#include "grpc_tls.hpp"

#include "text.hpp"

#include <grpc/grpc.h>

namespace gateway
{

GrpcTls::GrpcTls(const Options &options)
	: cert_file_(options.tls_cert), key_file_(options.tls_key), ca_file_(options.client_ca)
{
	reload();
}

void GrpcTls::reload()
{
	std::string cert = contents(cert_file_), key = contents(key_file_);
	// gRPC wants a CA also where it asks for no certificates
	std::string ca = contents(ca_file_.empty() ? cert_file_ : ca_file_);
	const std::lock_guard lock(mutex_);
	cert_ = std::move(cert);
	key_ = std::move(key);
	ca_ = std::move(ca);
	changed_ = true;
}

// gRPC calls it for each connection.
grpc_ssl_certificate_config_reload_status GrpcTls::fetch(void *self, grpc_ssl_server_certificate_config **config)
{
	GrpcTls &tls = *static_cast<GrpcTls *>(self);
	const std::lock_guard lock(tls.mutex_);
	if (!tls.changed_)
		return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
	const grpc_ssl_pem_key_cert_pair pair{tls.key_.c_str(), tls.cert_.c_str()};
	*config = grpc_ssl_server_certificate_config_create(tls.ca_.c_str(), &pair, 1);
	tls.changed_ = false;
	return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

// Only the C interface of gRPC takes a function that fetches.
int GrpcTls::AddPortToServer(const std::string &address, grpc_server *server)
{
	const auto ask = ca_file_.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
									  : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY;
	grpc_server_credentials *const credentials = grpc_ssl_server_credentials_create_with_options(
		grpc_ssl_server_credentials_create_options_using_config_fetcher(ask, fetch, this));
	const int port = grpc_server_add_http2_port(server, address.c_str(), credentials);
	grpc_server_credentials_release(credentials);
	return port;
}

} // namespace gateway
