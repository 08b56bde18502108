// Reads rows of pg_extension by oid; before 18 no syscache has them.
// Regime: PG. Locks: AccessShareLock on the catalog.
#pragma once

#include "pg/prelude.hpp"

namespace tq::pg
{

struct ExtensionFacts
{
	Oid owner;
	bool created_here; // by the current transaction: no other session can see it
	char version[64];
};

// Reads the current catalog snapshot; false if the extension does not exist.
bool extension_facts(Oid extension, ExtensionFacts *facts);

// Whether this transaction created the extension, so that no worker can see it.
inline bool created_here(Oid extension)
{
	ExtensionFacts facts;
	return extension_facts(extension, &facts) && facts.created_here;
}

// True if the extension does not exist and no open transaction is creating it.
bool extension_gone(Oid extension);

// The extension that a function belongs to. Raises undefined_function unless that is tq.
Oid extension_of(Oid function);

} // namespace tq::pg
