#include "dataplane/kv/block_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/str_cat.h"

namespace millrace::dataplane::kv {

BlockHandle::BlockHandle(BlockHandle&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), index_(other.index_) {}

BlockHandle& BlockHandle::operator=(BlockHandle&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(index_, other.index_);
  return *this;
}

BlockHandle::~BlockHandle() {
  if (pool_ != nullptr) pool_->free_.push_back(index_);
}

std::span<std::byte> BlockHandle::bytes() const {
  return {pool_->memory_.get() + static_cast<std::size_t>(index_) * pool_->block_bytes_,
          pool_->block_bytes_};
}

void BlockPool::Unmap::operator()(std::byte* memory) const {
  if (bytes > 0) ::munmap(memory, bytes);
}

absl::StatusOr<std::unique_ptr<BlockPool>> BlockPool::create(int block_count,
                                                             std::size_t block_bytes) {
  if (block_count < 0) return absl::InvalidArgumentError("block_count must not be negative");
  const std::size_t bytes = static_cast<std::size_t>(block_count) * block_bytes;
  std::byte* memory = nullptr;
  if (bytes > 0) {
    // Mapped, not allocated: pages that no block has used yet cost nothing.
    void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          str_cat("no memory for ", block_count, " KV blocks of ", block_bytes, " bytes"));
    }
    memory = static_cast<std::byte*>(mapped);
  }
  return std::unique_ptr<BlockPool>(new BlockPool(block_count, block_bytes, memory));
}

BlockPool::BlockPool(int block_count, std::size_t block_bytes, std::byte* memory)
    : capacity_(block_count),
      block_bytes_(block_bytes),
      memory_(memory, Unmap{static_cast<std::size_t>(block_count) * block_bytes}) {
  for (int index = block_count - 1; index >= 0; --index) free_.push_back(index);
}

absl::StatusOr<std::vector<BlockHandle>> BlockPool::take(int count) {
  CHECK(count >= 0);
  if (static_cast<std::size_t>(count) > free_.size()) {
    return absl::ResourceExhaustedError(
        str_cat("KV pool: ", count, " blocks wanted, ", free_.size(), " of ", capacity_, " free"));
  }
  std::vector<BlockHandle> blocks;
  blocks.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    blocks.push_back(BlockHandle(*this, free_.back()));
    free_.pop_back();
    const auto bytes = blocks.back().bytes();
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
  }
  return blocks;
}

}  // namespace millrace::dataplane::kv
