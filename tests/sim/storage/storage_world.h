#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "storage/map/storage_map.h"
#include "tests/sim/storage/event_loop.h"
#include "tests/sim/storage/oracle.h"
#include "tests/sim/storage/simulated_client.h"
#include "tests/sim/storage/simulated_fetcher.h"
#include "tests/sim/storage/simulated_node.h"
#include "tests/sim/storage/world_plan.h"

namespace millrace::storage::sim {

/// What happened in a world, to know that something did.
struct WorldCounts {
  std::uint64_t events = 0;
  std::uint64_t acknowledged = 0;
  std::uint64_t hits = 0;
  std::uint64_t evicted = 0;
  std::uint64_t lost = 0;
  std::uint64_t wipes = 0;
  std::uint64_t restarts = 0;
  std::uint64_t maps = 0;
  std::uint64_t replacements = 0;
  std::uint64_t rebuilds = 0;  ///< of members
  std::uint64_t owed = 0;      ///< shards that members got once those were back who had been away
};

/// A whole storage cluster in one thread on virtual time: nodes, clients with fetchers, a
/// controller that changes the map, a network and disks that fail. One seed decides everything.
/// While it runs faults happen and the oracle watches each event; then they stop, and the cluster
/// has a bounded time to come to rest, with every block that must be there readable.
class StorageWorld {
 public:
  StorageWorld(std::uint64_t seed, const node::NodeMetrics& metrics);
  ~StorageWorld();
  StorageWorld(const StorageWorld&) = delete;
  StorageWorld& operator=(const StorageWorld&) = delete;

  /// Ends at the first violation.
  void run();
  const std::vector<std::string>& violations() const { return oracle_.violations(); }
  WorldCounts counts() const;

 private:
  struct Call;
  /// Sets of endpoints; see the functions below.
  using Endpoints = std::uint64_t;
  struct Partition {
    Endpoints apart = 0;  ///< cannot be heard by the others, nor hear them
    TimePoint until;
  };

  // storage_world.cc: the order of things, and the end.
  bool run_for(std::chrono::nanoseconds time);
  void stop_faults();
  bool is_settled() const;
  bool settle();
  void read_expected();
  void check_rest();
  std::uint64_t pick(std::uint64_t count) { return random_() % count; }

  // network.cc
  static Endpoints node_endpoint(std::size_t node) { return Endpoints{1} << node; }
  static Endpoints client_endpoint(std::size_t client) { return Endpoints{1} << (40 + client); }
  static constexpr Endpoints kController = Endpoints{1} << 60;
  bool is_lost(Endpoints from, Endpoints to);
  bool is_cut(Endpoints a, Endpoints b) const;
  std::chrono::nanoseconds way();
  void send_shard(std::size_t client, std::uint64_t life, store::SendShard send);
  void deliver(std::size_t node, std::uint64_t life, ShardRequest request,
               const std::shared_ptr<Call>& call);
  void ask_peer(std::size_t from, const std::string& target_id, ShardRequest request,
                std::uint64_t call_id);

  // controller.cc
  void make_map();
  void controller_tick();
  void take_map(StorageMap next);
  void note_rebuilt(std::size_t node);
  void check_rebuilt(const std::string& target_id, std::uint64_t since);
  void check_owed();
  void mark_dead_nodes();
  void replace(const std::string& target_id);
  void send_map_to_node(std::size_t node);
  void send_map_to_client(std::size_t client);

  // faults.cc
  void cause_fault();
  void stop_node(std::size_t node, Loss loss);
  void start_later(std::size_t node, std::chrono::nanoseconds delay);
  void wipe_disk(std::size_t node);
  void freeze(std::size_t node);
  void slow_down(std::size_t node);
  void cut_network();
  void break_disk(std::size_t node);
  void crash_client(std::size_t client);
  void replace_any();
  void wish(std::size_t node);
  std::chrono::milliseconds some_time();

  // workload.cc
  void next_operation();
  void do_operation();
  void write(std::size_t client, std::size_t key);
  void query(std::size_t client);
  void touch(std::size_t client);
  void fetch(std::size_t client);
  SimulatedClient::NewBlock new_block(std::size_t key);
  bool is_whole(std::size_t key) const { return key % 2 == 0; }
  std::chrono::milliseconds timeout();

  const WorldPlan plan_;
  std::mt19937_64 random_;
  bool is_ending_ = false;  // of this object
  bool has_faults_ = true;
  EventLoop loop_;
  Oracle oracle_;
  NodeSurroundings node_surroundings_;
  ClientSurroundings client_surroundings_;
  std::vector<BlockKey> keys_;
  std::uint64_t last_content_ = 0;
  int operations_left_ = 0;

  StorageMap map_;
  std::shared_ptr<const StorageMap> map_snapshot_;
  std::vector<TimePoint> last_heard_;
  std::map<std::string, std::pair<std::uint64_t, TimePoint>> rebuilding_since_;  // epoch
  std::map<std::uint32_t, TimePoint> last_down_;                                 // by group
  /// What targets that were called up lacked, because who had it was away.
  std::set<std::tuple<std::string, BlockKey, Generation>> owed_;
  std::vector<Partition> partitions_;
  double drop_fraction_ = 0;
  int wipes_left_ = 0;
  int rots_left_ = 0;
  WorldCounts counts_;

  std::vector<std::unique_ptr<SimulatedNode>> nodes_;
  std::vector<std::unique_ptr<SimulatedClient>> clients_;
  std::vector<std::unique_ptr<SimulatedFetcher>> fetchers_;
};

}  // namespace millrace::storage::sim
