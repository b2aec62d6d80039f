#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/metrics/metrics.h"
#include "storage/map/map_cell.h"
#include "storage/store/store_types.h"
#include "storage/wire/messages.h"

namespace millrace::storage::store {

struct BlockStoreOptions {
  StoreSettings settings{};
  /// Of generations: processes must not share it.
  std::uint64_t seed = 0;
  /// Operations that wait for the loop; further ones finish at once, as busy.
  std::size_t max_waiting_operations = 8192;
  /// A node knows of a newer map than ours: get it, offer it to the cell, call map_changed(). On
  /// the loop thread; must not block. Empty: the map comes by itself.
  std::function<void(std::uint64_t epoch)> fetch_map = {};
  /// Where the counters go; null: nowhere. Must outlive the store.
  Registry* registry = nullptr;
};

/// Reads and writes KV blocks on the storage nodes. StoreCore with a thread, a clock and a
/// transport. Any thread may call; nothing blocks.
///
/// Each `done` is called exactly once: on the store's own thread, where it must not block or
/// destroy the store, or within the call when a queue is full. After the destructor has returned,
/// no more calls, and no touch of a landing.
class BlockStore {
 public:
  using ReadDone = std::function<void(ReadResult)>;
  using WriteDone = std::function<void(WriteOutcome)>;
  using QueryDone = std::function<void(std::vector<bool> present)>;

  /// `transport` and `map` must outlive it.
  BlockStore(const BlockStoreOptions& options, ShardTransport& transport, const MapCell& map);
  /// Finishes everything as kShutdown.
  ~BlockStore();
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  /// Into memory of exactly the block's size, which is the store's until `done`.
  void read(const BlockKey& key, std::span<std::byte> landing, std::chrono::milliseconds timeout,
            ReadDone done);
  /// Into memory that the result brings.
  void read(const BlockKey& key, std::chrono::milliseconds timeout, ReadDone done);

  struct NewBlock {
    BlockKey key;
    std::vector<std::byte> bytes;
    std::uint32_t depth = 0;  ///< in its chain
    TtlClass ttl = TtlClass::kAgent;
  };
  void write(NewBlock block, std::chrono::milliseconds timeout, WriteDone done);

  /// Which of the keys, at most kMaxQueryKeys, are stored; `lease` keeps those from eviction.
  void query(std::vector<BlockKey> keys, std::chrono::milliseconds lease,
             std::chrono::milliseconds timeout, QueryDone done);

  /// The blocks were used. Passed on at most once a minute for each key; may be lost.
  void touch(std::vector<BlockKey> keys, TtlClass ttl);

  /// The cell has another map.
  void map_changed();

  /// As of a moment ago.
  StoreCounters counters() const;

 private:
  class Loop;
  std::shared_ptr<Loop> loop_;
};

}  // namespace millrace::storage::store
