// How a C++ function becomes one that SQL can call. Regime: PG (the body may ereport; no C++ exception may
// leave it, which holds because nothing outside src/core uses the allocating part of the standard library,
// and src/core throws nothing).
#pragma once

#include "pg/prelude.hpp"

// Declares and begins the definition of a SQL-callable function with C linkage. Until 15 PG_FUNCTION_INFO_V1
// declares the function without PGDLLEXPORT, and later declarations cannot add the visibility, hence the
// declaration first.
#define TQ_FUNCTION(name)                                                                                              \
	extern "C"                                                                                                         \
	{                                                                                                                  \
		PGDLLEXPORT Datum name(PG_FUNCTION_ARGS);                                                                      \
		PG_FUNCTION_INFO_V1(name);                                                                                     \
	}                                                                                                                  \
	extern "C" PGDLLEXPORT Datum name(PG_FUNCTION_ARGS)
