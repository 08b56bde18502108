#include "jobs/claim_arguments.hpp"

#include "guc.hpp"
#include "api/args.hpp"
#include "queues/queue_names.hpp"
#include "queues/queue_settings.hpp"

namespace tq
{

namespace
{

void parse_kinds(FunctionCallInfo fcinfo, int i, Filter *filter, const char **names)
{
	filter->nkinds = 0;
	if (!given(fcinfo, i))
		return;
	int n = 0;
	Datum *kinds = array_required(fcinfo, i, "kinds", TEXTOID, &n, names_limit(lengthof(filter->kinds)));
	if (n == 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("kinds must not be empty"),
						errhint("Leave it out to take jobs of every kind.")));
	if (n > static_cast<int>(lengthof(filter->kinds)))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("kinds has more than %d elements",
																		  static_cast<int>(lengthof(filter->kinds)))));
	for (int k = 0; k < n; ++k)
	{
		const char *kind = name_in(kinds[k], "kind");
		check_name("kind", kind);
		names[filter->nkinds] = kind;
		filter->kinds[filter->nkinds++] = core::hash_name(kind);
	}
}

void parse_queues(FunctionCallInfo fcinfo, const ClaimPositions &at, ClaimArguments *c)
{
	c->nnames = 1;
	if (!at.many_queues)
	{
		c->names[0] = text_required(fcinfo, at.queues, "queue");
		return;
	}
	const int most = static_cast<int>(lengthof(c->names));
	Datum *list = array_required(fcinfo, at.queues, "queues", TEXTOID, &c->nnames, names_limit(lengthof(c->names)));
	if (c->nnames < 1 || c->nnames > most)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("queues must have 1 to %d elements", most)));
	for (int i = 0; i < c->nnames; ++i)
		c->names[i] = name_in(list[i], "queue");
}

void parse_workers(FunctionCallInfo fcinfo, const ClaimPositions &at, ClaimArguments *c)
{
	c->nworkers = 1;
	Datum *list = nullptr;
	if (at.many_workers)
	{
		list = array_required(fcinfo, at.worker, "workers", TEXTOID, &c->nworkers);
		const int most = guc::claim_batch_limit / c->each;
		if (c->nworkers < 1 || c->nworkers > most)
			ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
							errmsg("workers must have 1 to %d elements", most),
							errdetail("A call takes at most %d jobs, tq.claim_batch_limit.", guc::claim_batch_limit)));
	}
	c->max = c->each * c->nworkers;
	c->workers = static_cast<Claimant *>(palloc0(sizeof(Claimant) * static_cast<Size>(c->nworkers)));
	for (int i = 0; i < c->nworkers; ++i)
	{
		const char *name = list != nullptr ? name_in(list[i], "worker") : text_or_null(fcinfo, at.worker, "worker");
		c->workers[i].name = name;
		if (name == nullptr)
			continue;
		check_name("worker", name);
		c->worker_bits |= core::worker_bit(core::hash_name(name));
	}
}

core::Binding parse_binding(FunctionCallInfo fcinfo, const ClaimPositions &at, const ClaimArguments &c)
{
	const bool session = given(fcinfo, at.bind_session) && PG_GETARG_BOOL(at.bind_session);
	// tq_claim and tq_claim_any of 0.1.0 have no such argument
	const bool worker =
		PG_NARGS() > at.bind_worker && given(fcinfo, at.bind_worker) && PG_GETARG_BOOL(at.bind_worker);
	if (worker && session)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("bind_session and bind_worker exclude each other")));
	if (worker && c.workers->name == nullptr)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("bind_worker requires a worker")));
	return worker ? core::Binding::worker : session ? core::Binding::session : core::Binding::none;
}

} // namespace

void parse_claim(FunctionCallInfo fcinfo, const ClaimPositions &at, ClaimArguments *c)
{
	parse_queues(fcinfo, at, c);
	c->each = int_or(fcinfo, at.max_jobs, "max_jobs", 1, 1, guc::claim_batch_limit);
	parse_workers(fcinfo, at, c);
	const core::Micros lease = interval_or(fcinfo, at.lease_for, "lease_for", 0, 1000, kLongestLease);
	// a waiting SELECT holds a snapshot, so tq.max_pinned_wait limits the wait
	c->wait = at.wait < 0 ? 0
						  : std::min(interval_or(fcinfo, at.wait, "wait", 0, 0),
									 guc::max_pinned_wait * core::Micros{1000});
	parse_kinds(fcinfo, at.kinds, &c->filter, c->kinds);
	c->terms = core::ClaimTerms{};
	c->terms.lease_ms = static_cast<uint32>(lease / 1000);
	c->terms.default_lease_ms = static_cast<uint32>(guc::lease);
	c->terms.default_timeout_ms = static_cast<uint32>(guc::timeout);
	c->terms.binding = parse_binding(fcinfo, at, *c);
	c->terms.kinds = c->filter.kinds;
	c->terms.nkinds = c->filter.nkinds;
}

} // namespace tq
