// Rows of pg_extension by oid; no syscache has them before 18.
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

// As the current catalog snapshot shows it; false if it is not there.
bool extension_facts(Oid extension, ExtensionFacts *facts);

// It is not there, and no open transaction is creating it.
bool extension_gone(Oid extension);

} // namespace tq::pg
