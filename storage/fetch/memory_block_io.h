#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "storage/fetch/block_io.h"

namespace millrace::storage::fetch {

/// What a MemoryBlockIo holds; outlives it, so that a test can look. Any thread.
class MemoryBlocks {
 public:
  void put(const BlockKey& key, std::vector<std::byte> block) {
    std::lock_guard lock(mutex_);
    blocks_[key] = std::move(block);
  }
  std::vector<std::byte> find(const BlockKey& key) const {
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(key);
    return found == blocks_.end() ? std::vector<std::byte>() : found->second;
  }
  int reads() const {
    std::lock_guard lock(mutex_);
    return reads_;
  }
  /// Reads wait from now on.
  void hold() {
    std::lock_guard lock(mutex_);
    is_held_ = true;
  }
  /// Those that wait go on, and all after them.
  void let_go() {
    std::deque<std::function<void()>> held;
    {
      std::lock_guard lock(mutex_);
      is_held_ = false;
      held.swap(held_);
    }
    for (const auto& read : held) read();
  }

 private:
  friend class MemoryBlockIo;

  mutable std::mutex mutex_;
  std::map<BlockKey, std::vector<std::byte>> blocks_;
  std::deque<std::function<void()>> held_;
  int reads_ = 0;
  bool is_held_ = false;
};

/// Blocks in memory.
class MemoryBlockIo final : public BlockIo {
 public:
  explicit MemoryBlockIo(MemoryBlocks& blocks) : blocks_(blocks) {}
  ~MemoryBlockIo() override { blocks_.let_go(); }

  void read(const BlockKey& key, std::span<std::byte> landing, std::chrono::milliseconds,
            ReadDone done) override {
    auto finish = [this, key, landing, done = std::move(done)] {
      const std::vector<std::byte> block = blocks_.find(key);
      if (block.empty()) return done(FetchEnd::kNotFound);
      if (block.size() != landing.size()) return done(FetchEnd::kOtherSize);
      std::memcpy(landing.data(), block.data(), block.size());
      done(FetchEnd::kComplete);
    };
    {
      std::lock_guard lock(blocks_.mutex_);
      ++blocks_.reads_;
      if (blocks_.is_held_) {
        blocks_.held_.emplace_back(std::move(finish));
        return;
      }
    }
    finish();
  }

  void store(NewBlock block, std::chrono::milliseconds, StoreDone done) override {
    const bool is_there = !blocks_.find(block.key).empty();
    if (!is_there) blocks_.put(block.key, std::move(block.bytes));
    done(is_there ? StoreEnd::kAlreadyThere : StoreEnd::kStored);
  }

 private:
  MemoryBlocks& blocks_;
};

}  // namespace millrace::storage::fetch
