#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace::dataplane::kv {

class BlockPool;

/// One block of a pool, held by exactly one owner; gives itself back. Must not outlive the pool.
class BlockHandle {
 public:
  BlockHandle(BlockHandle&& other) noexcept;
  BlockHandle& operator=(BlockHandle&& other) noexcept;
  ~BlockHandle();

  int index() const { return index_; }
  std::span<std::byte> bytes() const;

 private:
  friend class BlockPool;
  BlockHandle(BlockPool& pool, int index) : pool_(&pool), index_(index) {}

  BlockPool* pool_;
  int index_;
};

/// A fixed number of equal blocks in one allocation, made at the start and never grown. A taken
/// block is all zeros: nobody sees, or ships, what an earlier owner left. Not thread-safe.
class BlockPool {
 public:
  /// kResourceExhausted when the memory cannot be had.
  static absl::StatusOr<std::unique_ptr<BlockPool>> create(int block_count,
                                                           std::size_t block_bytes);

  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// The first block; block i lies i · block_bytes behind it.
  std::byte* base() { return memory_.get(); }
  int capacity() const { return capacity_; }
  int used() const { return capacity_ - static_cast<int>(free_.size()); }

  /// `count` zeroed blocks, or kResourceExhausted and none. The lowest free index goes first when
  /// nothing was given back yet; afterwards the one given back last.
  absl::StatusOr<std::vector<BlockHandle>> take(int count);

 private:
  friend class BlockHandle;
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* memory) const;
  };

  BlockPool(int block_count, std::size_t block_bytes, std::byte* memory);

  const int capacity_;
  const std::size_t block_bytes_;
  std::unique_ptr<std::byte[], Unmap> memory_;
  std::vector<int> free_;
};

}  // namespace millrace::dataplane::kv
