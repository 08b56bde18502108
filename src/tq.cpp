// The module: magic, settings, shared memory, hooks and callbacks.
#include "pg/prelude.hpp"

#include "guc.hpp"
#include "shmem/series.hpp"
#include "shmem/shared.hpp"
#include "commit/transaction_end.hpp"
#include "dependencies/orphans.hpp"
#include "enqueue/follow_up.hpp"
#include "residency/recount.hpp"
#include "workers/launcher.hpp"
#include "workers/lifecycle_hooks.hpp"
#include "processes/slots.hpp"

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
	tq::request_shmem();
	tq::request_slots();
	tq::request_series();
}

void startup()
{
	if (previous_startup != nullptr)
		previous_startup();
	tq::init_shmem();
	tq::init_slots();
	tq::init_series();
}

} // namespace

extern "C" void _PG_init(void)
{
	// Without shared_preload_libraries the functions exist and raise TQ006; there is nothing to set up.
	if (!process_shared_preload_libraries_in_progress)
		return;
	tq::guc::define();
	// The server of pg_upgrade runs neither workers nor hooks (H28).
	if (IsBinaryUpgrade)
		return;
	previous_request = shmem_request_hook;
	shmem_request_hook = request;
	previous_startup = shmem_startup_hook;
	shmem_startup_hook = startup;
	tq::register_callbacks(); // at the end of transactions
	// a folder includes none above it, so these give a function to a folder below their own
	tq::register_loader();
	tq::register_orphan_counter();
	tq::register_follow_ups();
	tq::install_hooks(); // for DDL that concerns tq
	tq::register_launcher();
}
