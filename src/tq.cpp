// The module: magic, and the order in which its parts are set up.
#include "pg/prelude.hpp"

#include "guc.hpp"
#include "live/shared.hpp"
#include "live/xact.hpp"
#include "workers/launcher.hpp"
#include "workers/lifecycle_hooks.hpp"
#include "workers/slots.hpp"

extern "C"
{
#ifdef PG_MODULE_MAGIC_EXT
PG_MODULE_MAGIC_EXT(.name = "tq", .version = TQ_VERSION);
#else
PG_MODULE_MAGIC;
#endif
PGDLLEXPORT void _PG_init(void);
}

namespace
{

shmem_request_hook_type previous_request = nullptr;
shmem_startup_hook_type previous_startup = nullptr;

void request()
{
	if (previous_request != nullptr)
		previous_request();
	tq::live::request_shmem();
	tq::workers::request_shmem();
}

void startup()
{
	if (previous_startup != nullptr)
		previous_startup();
	tq::live::init_shmem();
	tq::workers::init_shmem();
}

} // namespace

extern "C" void _PG_init(void)
{
	// Without shared_preload_libraries the functions exist and say so (TQ006); there is nothing to set up. pg_upgrade's server runs
	// neither workers nor hooks (H28).
	if (!process_shared_preload_libraries_in_progress)
		return;
	tq::guc::define();
	if (IsBinaryUpgrade)
		return;
	previous_request = shmem_request_hook;
	shmem_request_hook = request;
	previous_startup = shmem_startup_hook;
	shmem_startup_hook = startup;
	tq::live::register_callbacks();
	tq::workers::install_hooks();
	tq::workers::register_launcher();
}
