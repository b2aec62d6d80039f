#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

namespace millrace::api::tokenizer {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Asks for pages of 2 MB inside of a block that nobody has written to yet. A wish: without it
/// everything works as well.
inline void advise_huge(void* block, std::size_t bytes) {
  const std::size_t skipped = -reinterpret_cast<std::uintptr_t>(block) % kHugePage;
  if (bytes < skipped + kHugePage) return;
  ::madvise(static_cast<char*>(block) + skipped, (bytes - skipped) / kHugePage * kHugePage,
            MADV_HUGEPAGE);
}

/// Takes large blocks in huge pages: the tables of a vocabulary are read all over, and with pages
/// of 4 KB a read often misses the translation buffer too. Page faults were a third of loading.
template <typename T>
struct HugeAllocator {
  using value_type = T;

  HugeAllocator() = default;
  template <typename Other>
  HugeAllocator(const HugeAllocator<Other>& /*other*/) {}

  T* allocate(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    if (bytes < kHugePage / 2) {
      return static_cast<T*>(::operator new (bytes, std::align_val_t{alignof(T)}));
    }
    const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    void* block = std::aligned_alloc(kHugePage, rounded);
    if (block == nullptr) throw std::bad_alloc();  // as every allocator must
    advise_huge(block, rounded);
    return static_cast<T*>(block);
  }
  void deallocate(T* block, std::size_t count) {
    if (count * sizeof(T) < kHugePage / 2) {
      ::operator delete (block, std::align_val_t{alignof(T)});
    } else {
      std::free(block);
    }
  }
  bool operator==(const HugeAllocator&) const = default;
};

template <typename T>
using HugeVector = std::vector<T, HugeAllocator<T>>;

}  // namespace millrace::api::tokenizer
