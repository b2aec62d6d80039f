#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "storage/disk/simulated_disk.h"
#include "storage/node/target_host.h"
#include "storage/wire/messages.h"
#include "tests/sim/storage/event_loop.h"
#include "tests/sim/storage/oracle.h"
#include "tests/sim/storage/simulated_index.h"
#include "tests/sim/storage/watched_slots.h"

namespace millrace::storage::sim {

/// The world as a storage node sees it. Outlives the nodes.
struct NodeSurroundings {
  EventLoop& loop;
  std::mt19937_64& random;
  Oracle& oracle;
  const node::NodeMetrics& metrics;
  node::TargetSettings settings;
  int data_shards = 0;
  std::uint32_t block_bytes = 0;
  std::uint64_t slots = 0;
  /// A question to another target; the answer comes to on_peer_reply(), or not at all.
  std::function<void(std::size_t from, const std::string& target_id, ShardRequest request,
                     std::uint64_t call_id)>
      ask_peer;
  /// Somebody knows a newer map than this node.
  std::function<void(std::size_t node)> want_map;
  /// The power of this node went at a change of its disk: it has stopped.
  std::function<void(std::size_t node)> on_power_cut;
};

enum class Loss {
  kProcess,  ///< what was written is with the kernel
  kPower,    ///< what was not synced is lost, kept or torn
};

/// A storage node with one target "t<i>": the production core, a disk, an index and a clock of its
/// own, which starts anywhere whenever the process does.
class SimulatedNode final : public node::PeerLink, public IndexWatcher, public SlotWatcher {
 public:
  SimulatedNode(NodeSurroundings& surroundings, std::size_t number);
  ~SimulatedNode() override;

  void start();
  void stop(Loss loss);
  /// Its disk is replaced by an empty one. Only while it is stopped.
  void wipe();
  void freeze() { is_frozen_ = true; }
  void thaw();
  /// Times that everything takes longer.
  void set_slowness(int factor) { slowness_ = factor; }
  /// Damages one stored shard, if there is any.
  void rot();

  bool is_running() const { return host_ != nullptr; }
  bool is_frozen() const { return is_frozen_; }
  /// Of the process: what was sent to an earlier one is lost.
  std::uint64_t life() const { return life_; }

  void offer_map(const std::shared_ptr<const StorageMap>& map);
  const StorageMap* map() const { return map_.get(); }
  /// What comes in over the network. Nothing happens when it is not running; while it is frozen it
  /// waits.
  void handle(ShardRequest request, ShardReplyCallback done);
  void on_peer_reply(std::uint64_t call_id, ShardReply reply);

  /// Wishes of people.
  void scrub();
  void evict_to(double fraction);

  node::TargetHost& host() { return *host_; }
  disk::SimulatedDisk& disk() { return *disk_; }
  TimePoint clock() const { return surroundings_.loop.now() + clock_offset_; }
  std::size_t record_count() const { return slot_owner_.size(); }
  /// Tells the oracle of each published shard on the medium.
  void show_stored_shards();
  /// Has the published shard of that generation and member, or had it until the medium damaged it.
  bool holds(const BlockKey& key, Generation generation, std::uint8_t shard_index);

  // node::PeerLink
  void send(const std::string& target_id, ShardOperation operation, std::uint64_t call_id) override;
  // IndexWatcher
  void on_index_change(const BlockKey& key, const std::optional<index::ShardRecord>& before,
                       const std::optional<index::ShardRecord>& after, CommitEnd end) override;
  // SlotWatcher
  void on_write_submitted(std::uint64_t slot, int reads) override;
  void on_written(std::uint64_t slot) override { rotten_.erase(slot); }

 private:
  struct Queued {
    ShardOperation operation;
    ShardReplyCallback done;
    TimePoint overdue_at;
  };

  bool open();
  void want_turn(std::chrono::nanoseconds delay);
  void turn();
  void take(Queued queued);
  bool may_evict(const BlockKey& key, const index::ShardRecord& record) const;
  bool is_expired(const BlockKey& key, const index::ShardRecord& record) const;
  /// Empty: the medium cannot be read.
  std::vector<std::byte> content_of(std::uint64_t slot) const;
  std::map<BlockKey, index::ShardRecord> records();
  std::chrono::nanoseconds delay(std::uint64_t most_us);

  NodeSurroundings& surroundings_;
  const std::size_t number_;
  const std::string target_id_;
  std::uint64_t life_ = 0;
  std::uint64_t disks_ = 0;
  bool is_frozen_ = false;
  int slowness_ = 1;
  bool has_wish_ = false;
  std::uint64_t last_wish_ = 0;
  std::chrono::nanoseconds clock_offset_{0};
  std::uint32_t minute_at_stop_ = 0;
  TimePoint next_turn_ = TimePoint::max();

  std::unique_ptr<disk::SimulatedDisk> disk_;
  std::unique_ptr<SimulatedIndex> index_;
  std::unique_ptr<WatchedSlots> slots_;
  std::shared_ptr<const StorageMap> map_;  // a cached file: survives the process
  std::uint64_t shown_epoch_ = 0;
  std::vector<Queued> mailbox_;
  std::vector<std::pair<std::uint64_t, ShardReply>> peer_replies_;
  std::vector<std::function<void()>> held_;  // while frozen

  // What the rules of slots and leases say of this life.
  std::map<std::uint64_t, BlockKey> slot_owner_;
  std::map<std::uint64_t, TimePoint> freed_at_;
  std::map<BlockKey, TimePoint> leases_;
  std::set<std::uint64_t> rotten_;  // slots

  std::unique_ptr<node::TargetHost> host_;
};

}  // namespace millrace::storage::sim
