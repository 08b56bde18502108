// The function of a handler: which one was registered, and whether it is still that one
// (docs/adr/0010-deferred-work-authorization.md).
//
// A handler runs as the role that registered it. So it may run only the function that this role chose, and only roles
// that have the rights of this role anyway may be able to change the code. tq.handler records the function by name,
// owner and oid; the oid is valid in this database only. judge() compares all three with the catalogs: at the claim,
// and again in the transaction that runs the function. A handler with another function is held until tq_handle is
// called again: its retry_at is infinity.
// Regime: PG; may raise, but not because of a row's contents. Locks: rows of tq.handler, to the end of the transaction.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// A function as tq.handler records it.
struct HandlerFunction
{
	const char *function; // with its schema, quoted
	Oid role;			  // registered it; it runs as this role; InvalidOid: it or the owner does not exist here
	Oid owner;			  // of the function, when it was registered; InvalidOid: not recorded
	Oid function_oid;	  // InvalidOid: not bound in this database
	bool has_identity;	  // the table has the last two columns; that of release 0.1.0 does not
};

enum class FunctionState : uint8
{
	good,
	paused, // may not be called now
	held,	// is not the registered one; only tq_handle ends this (docs/guides/handlers.md)
};

struct Judgment
{
	FunctionState state;
	const char *why; // null: good
	Oid function;
	bool returns_void;
};

// Whether the function may be called. Takes no invalidation messages by itself.
Judgment judge(const HandlerFunction &f, Oid job_type);

// Why a function cannot be a handler; null if it can.
const char *unfit(const FormData_pg_proc &proc, Oid job_type) noexcept;

// The type tq_job of an extension in this schema. Raises if it is not there.
Oid job_type_in(Oid schema);

// Whether tq.handler has the columns that record a function's identity.
bool handlers_have_identity();

// Locks a handler's row before an update; call it within the scope of the owner. False if the handler is held or gone,
// or if another transaction has locked the row. The caller then writes nothing: even an UPDATE of no row fires the
// trigger that makes workers read the handlers again.
bool lock_handler(int32 queue_id, const char *kind);

// Holds one handler. Does nothing if it is held already, if it was registered again since `f` was read, or if another
// transaction is changing it.
void hold_handler(Oid extension, int32 queue_id, const char *kind, const HandlerFunction &f, const char *why);

// Holds every handler whose function is not the registered one. Does nothing in a copy, where oids are invalid.
void hold_changed_handlers(Oid extension, Oid schema);

// The role of a handler, for a table that has the owner of the function.
#define TQ_HANDLER_ROLE "CASE WHEN owner::oid = 0 THEN 0::oid ELSE role::oid END AS role"

// Why a handler without a role is not called.
constexpr const char *kUnknownRole =
	"its role or the owner of its function does not exist here; create it and call tq_activate()";

// For tq_activate(), after which a copy runs handlers. Binds each handler that is not held to the function of its name
// and owner; holds the handler if there is no such function. `only_unbound`: those that have no function's oid.
void bind_handlers(Oid extension, Oid schema, bool only_unbound);

} // namespace tq
