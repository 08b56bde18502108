// Groups of errors: those that differ only in numbers, quoted strings, UUIDs and hexadecimal digits are one.
// Regime: PG; may raise (out of memory). Locks: none.
#pragma once

#include "pg/prelude.hpp"

namespace tq
{

constexpr int kErrorRead = 2000; // bytes of an error that count

// The error with a placeholder for each of these. Of a group it is the group itself.
char *group_of_error(const char *error);

} // namespace tq
