// Kinds that claims ask for though their queue has no lane for them: a worker may misspell a kind. tq_explain and
// tq_health show them.
// Regime: PG; noexcept, except what init needs. Locks: each entry belongs to a queue, whose lock protects it. Each
// process writes its own few entries, so claims do not wait for each other.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

Size asked_kinds_size(uint32 procs); // of the shared memory
void init_asked_kinds(uint32 procs);

// Notes which of these kinds the queue does not have. To be called by each claim that names kinds: it looks again after
// some seconds only. No lock held.
void note_asked_kinds(uint16_t queue, uint32 generation, const char *const *kinds, int n) noexcept;

constexpr int kMostAskedKinds = 5;
struct AskedKinds
{
	char kinds[kMostAskedKinds][core::kNameMax];
	int n;
};
// Queue lock held: adds kinds that claims of the queue have asked for in the last minutes, and that it still does not
// have.
void copy_asked_kinds(const Queue &q, AskedKinds *out) noexcept;

} // namespace tq
