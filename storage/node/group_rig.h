#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/metrics/metrics.h"
#include "storage/disk/simulated_disk.h"
#include "storage/ec/codec.h"
#include "storage/index/shard_index.h"
#include "storage/map/storage_map.h"
#include "storage/node/target_host.h"
#include "storage/node/target_rig.h"

namespace millrace::storage::node {

/// A whole group on one thread: every member with a disk of its own, messages in an order that the
/// seed decides, a clock that the test moves, and a client that writes and reads blocks.
class GroupRig {
 public:
  struct Options {
    std::uint64_t seed = 1;
    std::uint64_t slots = 64;
    bool on_rocks = false;
    TargetSettings settings = {};
    std::size_t spares = 0;
  };
  static constexpr std::size_t kMembers = kTestDataShards + kTestParityShards;

  explicit GroupRig(const Options& options);
  ~GroupRig();
  GroupRig(const GroupRig&) = delete;
  GroupRig& operator=(const GroupRig&) = delete;

  /// Some I/O, some messages, a turn of every member; `time` passes. Members whose power went start
  /// again.
  void turn(std::chrono::nanoseconds time = std::chrono::milliseconds(1));
  void turns(int count, std::chrono::nanoseconds time = std::chrono::milliseconds(1));

  /// Writes a block and publishes it where it was written. True: acknowledged.
  bool write_block(std::uint64_t key, Generation generation, TtlClass ttl = TtlClass::kAgent,
                   std::uint32_t depth = 0);
  enum class Read { kGood, kMiss };
  /// Reads a block as a client does, from all members that answer. Wrong bytes, and bytes that were
  /// never published, are recorded in `wrong()`.
  Read read_block(std::uint64_t key);
  /// One request to one target; nullopt when it does not answer.
  std::optional<ShardReply> ask(std::size_t member, ShardOperation operation);

  /// The process is gone, without a power cut: what was written is there.
  void stop(std::size_t member);
  /// It starts again, with what it has, or on an empty disk.
  void start(std::size_t member, bool on_empty_disk = false);
  /// Changes the map and tells everybody who runs.
  void change_map(const std::function<void(StorageMap&)>& change);
  void set_state(std::size_t member, MemberState state);

  /// Members that have a good published shard of the block.
  std::size_t shards_of(std::uint64_t key);
  TargetHost& host(std::size_t member);
  bool is_running(std::size_t member) const;
  disk::SimulatedDisk& disk(std::size_t member);
  index::ShardIndex& index(std::size_t member);
  const NodeMetrics& metrics() const { return metrics_; }
  const StorageMap& map() const { return map_; }
  TimePoint now() const { return now_; }
  std::mt19937_64& random() { return random_; }
  /// What must never happen, in words; empty when it did not.
  const std::vector<std::string>& wrong() const { return wrong_; }
  /// Blocks that somebody was told to drop.
  const std::set<BlockKey>& dropped() const { return dropped_; }
  std::uint64_t power_cuts() const { return power_cuts_; }

 private:
  struct Node;
  struct Link;
  struct Message {
    std::size_t to = 0;
    std::uint64_t life = 0;  // of the receiver; a later one does not know of it
    std::function<void(Node&)> deliver;
  };

  void open(Node& node);
  bool try_open(Node& node);
  void close(Node& node);
  void send(std::size_t to, ShardOperation operation, const ShardReplyCallback& done);
  std::size_t index_of(const std::string& target_id) const;
  std::vector<std::vector<std::byte>> shards_for(std::uint64_t key, Generation generation,
                                                 TtlClass ttl, std::uint32_t depth) const;
  std::map<std::size_t, ShardReply> ask_group(
      const std::function<std::optional<ShardOperation>(std::size_t)>& operation);
  void judge_shard(std::uint64_t key, std::size_t place, const ShardReply& reply);
  std::size_t member_at(std::size_t place) const;

  const Options options_;
  std::mt19937_64 random_;
  Registry registry_;
  NodeMetrics metrics_;
  std::unique_ptr<const ec::Codec> codec_;
  StorageMap map_;
  TimePoint now_ = TimePoint() + std::chrono::hours(1000);
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<Message> messages_;
  std::map<std::pair<std::uint64_t, Generation>, std::pair<TtlClass, std::uint32_t>> written_;
  std::set<std::pair<std::uint64_t, Generation>> publications_;
  std::set<BlockKey> dropped_;
  std::vector<std::string> wrong_;
  std::uint64_t power_cuts_ = 0;
};

}  // namespace millrace::storage::node
