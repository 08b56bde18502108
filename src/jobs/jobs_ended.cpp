#include "jobs/jobs_ended.hpp"

namespace tq
{

namespace
{

JobsEnded registered = nullptr;

} // namespace

void on_jobs_ended(JobsEnded call) noexcept { registered = call; }

void jobs_ended(Db &db, const journal::EventRow *rows, int n) { registered(db, rows, n); }

} // namespace tq
