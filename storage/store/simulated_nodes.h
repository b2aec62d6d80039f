#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "storage/map/storage_map.h"
#include "storage/wire/messages.h"

namespace millrace::storage::store {

/// What is wrong with a simulated target.
enum class TargetFault : std::uint8_t {
  kNone,
  kUnavailable,  ///< no connection
  kSilent,       ///< takes requests, answers when the fault is over
  kBusy,
  kFlipBit,      ///< damages what it serves
  kTruncate,     ///< serves fewer bytes
  kZeros,        ///< serves a hole
  kOtherKey,     ///< serves the shard of another block
  kOtherIndex,   ///< serves a neighbour's shard
  kOtherLayout,  ///< serves a shard whose block has another size
  kSaysBad,      ///< has found the shard to be damaged itself
  kForgets,      ///< has lost its shards
};

/// Targets in memory that keep the contract of storage/wire/messages.h, for tests and simulations
/// of clients: first writer wins, publication, generations, map epochs. One thread.
class SimulatedNodes : public ShardEndpoint {
 public:
  explicit SimulatedNodes(std::shared_ptr<const StorageMap> map) : map_(std::move(map)) {}

  /// Answers at once, but for silent targets: those when their fault is over.
  void handle(ShardRequest request, ShardReplyCallback done) override;

  void set_fault(const std::string& target_id, TargetFault fault);
  /// What the nodes go by; a request with an older one is stale.
  void set_map(std::shared_ptr<const StorageMap> map) { map_ = std::move(map); }

  struct StoredShard {
    Generation generation = 0;
    bool is_published = false;
    std::vector<std::byte> shard;
  };
  /// What a target holds of a block; null: nothing.
  const StoredShard* find(const std::string& target_id, const BlockKey& key) const;
  /// Puts a shard there behind everyone's back.
  void plant(const std::string& target_id, const BlockKey& key, StoredShard shard);

  std::uint64_t requests_to(const std::string& target_id) const;
  std::uint64_t touches_of(const std::string& target_id) const;
  std::uint64_t repairs_of(const std::string& target_id) const;

 private:
  struct Target {
    TargetFault fault = TargetFault::kNone;
    std::map<BlockKey, StoredShard> shards;
    std::vector<std::pair<ShardRequest, ShardReplyCallback>> held;
    std::uint64_t requests = 0;
    std::uint64_t touches = 0;
    std::uint64_t repairs = 0;
  };

  ShardReply answer(Target& target, ShardRequest& request);
  ShardReply write(Target& target, WriteShard& write);
  ShardReply read(Target& target, const BlockKey& key);
  const Target* target_of(const std::string& target_id) const;

  std::shared_ptr<const StorageMap> map_;
  std::map<std::string, Target> targets_;
};

/// A map of groups of k + m targets, each on a node of its own; ids "t0", "n0", ..., addresses
/// equal to node ids.
std::shared_ptr<const StorageMap> simulated_map(int data_shards, int parity_shards, int groups,
                                                std::uint32_t block_bytes, std::uint64_t epoch = 1);

}  // namespace millrace::storage::store
