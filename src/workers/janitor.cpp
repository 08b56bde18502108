#include "workers/janitor.hpp"

#include "live/attach.hpp"
#include "live/load.hpp"
#include "workers/transaction.hpp"

namespace tq::workers
{

void run_janitor(const WorkerContext &context)
{
	if (!begin_work(context, "tq: recounting"))
		return;
	live::Db &db = live::database_of(context.extension);
	db.reload.store(false);
	live::CountResult result{};
	live::load_or_count(db, &result);
	end_work();
}

} // namespace tq::workers
