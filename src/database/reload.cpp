#include "database/reload.hpp"

#include "guc.hpp"

namespace tq
{

namespace
{

bool marked = false;

} // namespace

void request_reload() noexcept
{
	for (int i = 0; preloaded() && i < guc::max_databases; ++i)
		if (db_at(i).used && db_at(i).database == MyDatabaseId)
			request_reload(db_at(i));
}

void mark_reload() noexcept { marked = true; }
bool reload_marked() noexcept { return marked; }
void forget_reload() noexcept { marked = false; }

} // namespace tq
