// SQLSTATEs of class TQ. Each is raised with DETAIL and HINT that say what to do; docs/reference.md lists them.
#pragma once

#include "pg/prelude.hpp"

namespace tq
{
constexpr int kErrLeaseLost = MAKE_SQLSTATE('T', 'Q', '0', '0', '1');
constexpr int kErrNoSuchQueue = MAKE_SQLSTATE('T', 'Q', '0', '0', '2');
constexpr int kErrQueueFull = MAKE_SQLSTATE('T', 'Q', '0', '0', '3');
constexpr int kErrNoSuchJob = MAKE_SQLSTATE('T', 'Q', '0', '0', '4');
constexpr int kErrWrongState = MAKE_SQLSTATE('T', 'Q', '0', '0', '5');
constexpr int kErrNotPreloaded = MAKE_SQLSTATE('T', 'Q', '0', '0', '6');
constexpr int kErrVersionMismatch = MAKE_SQLSTATE('T', 'Q', '0', '0', '7');
constexpr int kErrDuplicateKey = MAKE_SQLSTATE('T', 'Q', '0', '0', '8');
constexpr int kErrNotLoaded = MAKE_SQLSTATE('T', 'Q', '0', '0', '9');
constexpr int kErrCursorTooOld = MAKE_SQLSTATE('T', 'Q', '0', '1', '0');
} // namespace tq
