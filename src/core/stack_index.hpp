// Finds the elements of a stack by hash. ROLLBACK TO removes operations in reverse order, so the removed element is
// always the first of its chain.
// Regime: core; the caller supplies the memory. Locks: none; local to one process.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tq::core
{

class StackIndex
{
  public:
	static constexpr int32_t kNone = -1;

	// The size of an index for `capacity` elements, in numbers.
	static constexpr size_t words(int32_t capacity) noexcept { return 2 * static_cast<size_t>(capacity); }

	// Creates an empty index for `capacity` elements: a power of two, at least 2.
	void attach(int32_t *memory, int32_t capacity) noexcept
	{
		heads_ = memory;
		links_ = memory + capacity;
		capacity_ = capacity;
		size_ = 0;
		shift_ = std::countl_zero(static_cast<uint64_t>(capacity)) + 1;
		std::memset(heads_, 0xff, sizeof(int32_t) * static_cast<size_t>(capacity));
	}

	int32_t capacity() const noexcept { return capacity_; }
	int32_t size() const noexcept { return size_; }

	// Adds the element number size().
	void push(uint64_t hash) noexcept
	{
		int32_t &head = heads_[chain_of(hash)];
		links_[size_] = head;
		head = size_++;
	}

	// Removes the last element; `hash` is its hash.
	void pop(uint64_t hash) noexcept { heads_[chain_of(hash)] = links_[--size_]; }

	// The last element of the chain of `hash`, and the previous element of a chain; kNone if there is none. A chain can
	// hold elements with other hashes.
	int32_t last(uint64_t hash) const noexcept { return heads_[chain_of(hash)]; }
	int32_t before(int32_t element) const noexcept { return links_[element]; }

  private:
	// Fibonacci hashing (Knuth, The Art of Computer Programming, 6.4) spreads neighbouring numbers over chains.
	  size_t chain_of(uint64_t hash) const noexcept
	  {
		  return static_cast<size_t>((hash * 0x9e3779b97f4a7c15ULL) >> shift_);
	  }

	int32_t *heads_ = nullptr;
	int32_t *links_ = nullptr;
	int32_t capacity_ = 0;
	int32_t size_ = 0;
	int shift_ = 0;
};

} // namespace tq::core
