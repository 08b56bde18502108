// A growable array in a memory context. It has no destructor, so an error may longjmp over it.
// Regime: PG; reserve() and append() may raise. Locks: none.
#pragma once

#include "pg/prelude.hpp"

extern "C"
{
#include "utils/memutils.h"
}

namespace tq::pg
{

template <class T> struct Array
{
	T *data = nullptr;
	int64 n = 0;
	int64 capacity = 0; // a power of two

	// Reserves memory for `more` elements, so that push() cannot fail.
	void reserve(MemoryContext context, int64 more)
	{
		if (n + more <= capacity)
			return;
		int64 to = std::max<int64>(capacity * 2, 16);
		while (to < n + more)
			to *= 2;
		const Size bytes = mul_size(sizeof(T), static_cast<Size>(to));
		data = static_cast<T *>(data == nullptr ? MemoryContextAllocHuge(context, bytes) : repalloc_huge(data, bytes));
		capacity = to;
	}

	// Requires reserved memory.
	T &push(const T &value) noexcept
	{
		Assert(n < capacity);
		return data[n++] = value;
	}

	// `context` counts on the first call only.
	T &append(MemoryContext context, const T &value)
	{
		reserve(context, 1);
		return push(value);
	}

	void free() noexcept
	{
		if (data != nullptr)
			pfree(data);
		forget();
	}

	// Call it after a reset of the context.
	void forget() noexcept { *this = Array{}; }

	T &operator[](int64 i) const noexcept { return data[i]; }
	T &last() const noexcept { return data[n - 1]; }
	T *begin() const noexcept { return data; }
	T *end() const noexcept { return data + n; }
};

} // namespace tq::pg
