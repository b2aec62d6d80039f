#include "tests/sim/storage/storage_world.h"

#include <algorithm>
#include <utility>

#include "common/str_cat.h"

namespace millrace::storage::sim {
namespace {

/// Longer than rebuilds that are tried again, publications that are asked for, and every timeout.
constexpr auto kSettleBound = std::chrono::seconds(240);
constexpr auto kLook = std::chrono::milliseconds(500);

BlockKey key_of(std::uint64_t number) {
  BlockKey key;
  std::mt19937_64 random(number + 1);
  for (std::uint8_t& byte : key.bytes) byte = static_cast<std::uint8_t>(random());
  return key;
}

}  // namespace

StorageWorld::StorageWorld(std::uint64_t seed, const node::NodeMetrics& metrics)
    : plan_(plan_for(seed)),
      random_(seed),
      oracle_(plan_.data_shards, plan_.parity_shards),
      node_surroundings_{
          .loop = loop_,
          .random = random_,
          .oracle = oracle_,
          .metrics = metrics,
          .settings = plan_.target,
          .data_shards = plan_.data_shards,
          .block_bytes = plan_.block_bytes,
          .slots = plan_.slots,
          .ask_peer =
              [this](std::size_t from, const std::string& target_id, ShardRequest request,
                     std::uint64_t call_id) {
                ask_peer(from, target_id, std::move(request), call_id);
              },
          .want_map = [this](std::size_t node) { send_map_to_node(node); },
          .on_power_cut = [this](std::size_t node) { start_later(node, some_time()); }},
      client_surroundings_{
          .loop = loop_,
          .random = random_,
          .oracle = oracle_,
          .settings = plan_.store,
          .send = [this](std::size_t client, std::uint64_t life,
                         store::SendShard send) { send_shard(client, life, std::move(send)); },
          .want_map = [this](std::size_t client) { send_map_to_client(client); }},
      operations_left_(plan_.operations),
      drop_fraction_(plan_.drop_fraction),
      wipes_left_(plan_.wipes),
      rots_left_(plan_.rots) {
  for (std::size_t i = 0; i < plan_.keys; ++i) keys_.push_back(key_of(i));
  make_map();
  for (std::size_t i = 0; i < plan_.nodes(); ++i) {
    nodes_.push_back(std::make_unique<SimulatedNode>(node_surroundings_, i));
    nodes_.back()->start();
    nodes_.back()->offer_map(map_snapshot_);
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(plan_.clients); ++i) {
    clients_.push_back(std::make_unique<SimulatedClient>(client_surroundings_, i));
    fetchers_.push_back(std::make_unique<SimulatedFetcher>(client_surroundings_, *clients_.back(),
                                                           plan_.block_bytes));
    clients_.back()->start();
    fetchers_.back()->start();
    clients_.back()->offer_map(map_snapshot_);
  }
}

StorageWorld::~StorageWorld() { is_ending_ = true; }

void StorageWorld::run() {
  loop_.post(std::chrono::seconds(1), [this] { next_operation(); });
  controller_tick();
  while (operations_left_ > 0)
    if (!run_for(kLook)) return;
  if (!run_for(some_time())) return;
  stop_faults();
  if (!settle()) return;
  read_expected();
  // Reads may have found something to repair.
  if (!run_for(std::chrono::seconds(3)) || !settle()) return;
  check_rest();
}

/// False: a violation.
bool StorageWorld::run_for(std::chrono::nanoseconds time) {
  const TimePoint end = loop_.now() + time;
  while (violations().empty() && loop_.run_next(end)) {
  }
  return violations().empty();
}

void StorageWorld::stop_faults() {
  has_faults_ = false;
  drop_fraction_ = 0;
  partitions_.clear();
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    SimulatedNode& node = *nodes_[i];
    node.disk().set_fault(disk::SimulatedDisk::Fault::kNone);
    node.set_slowness(1);
    if (node.is_frozen()) node.thaw();
    // What a failed disk has left behind ends with the process.
    if (node.is_running() && node.host().target().state() != node::TargetState::kServing)
      node.stop(Loss::kProcess);
    if (!node.is_running()) node.start();
  }
}

bool StorageWorld::is_settled() const {
  for (const Group& group : map_.groups)
    for (const Member& member : group.members)
      if (member.state != MemberState::kUp) return false;
  for (const auto& node : nodes_) {
    if (!node->is_running() || node->map()->epoch != map_.epoch) return false;
    const node::TargetStatus status = node->host().status(node->clock());
    const bool is_member = map_.place_of(status.target_id).has_value();
    if (!is_member) continue;
    if (status.pending_shards > 0 || status.repair_backlog > 0 || status.rebuild.is_running ||
        !status.rebuild.has_seen_all || status.rebuild.backlog > 0 || status.cooling_slots > 0 ||
        !node->host().is_idle() || status.leases > 0)
      return false;
  }
  for (std::size_t i = 0; i < clients_.size(); ++i)
    if (!clients_[i]->is_idle() || !fetchers_[i]->is_idle()) return false;
  return true;
}

bool StorageWorld::settle() {
  const TimePoint bound = loop_.now() + kSettleBound;
  while (!is_settled()) {
    if (loop_.now() >= bound) {
      oracle_.fail("the cluster does not come to rest");
      return false;
    }
    if (!run_for(kLook)) return false;
  }
  return true;
}

void StorageWorld::read_expected() {
  clients_[0]->offer_map(map_snapshot_);  // it need not have heard of it yet
  for (const auto& [key, generation] : oracle_.expected()) {
    clients_[0]->read(key, std::chrono::seconds(2), {},
                      [this, key = key, generation = generation](const store::ReadResult& result) {
                        const Attempt& attempt = *oracle_.find(key, generation);
                        if (attempt.is_evicted || attempt.is_lost) return;  // meanwhile
                        if (!result.is_hit() || result.generation != generation)
                          oracle_.fail(str_cat("block ", key.hex().substr(0, 8),
                                               " was acknowledged and is not found: ",
                                               store::miss_reason_name(result.miss)));
                      });
    if (!run_for(std::chrono::milliseconds(100))) return;
  }
}

void StorageWorld::check_rest() {
  for (const auto& client : clients_) client->check_leaks();
  for (const auto& fetcher : fetchers_) fetcher->check_leaks();
  check_owed();
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i]->show_stored_shards();
    const node::SlotTable& slots = nodes_[i]->host().target().slots();
    const std::uint64_t known =
        nodes_[i]->record_count() + slots.cooling_count() + slots.bad_count();
    if (slots.used_count() != known || slots.pinned_count() != 0)
      oracle_.fail(str_cat("target ", i, " at rest uses ", slots.used_count(), " slots, knows ",
                           known, ", and has ", slots.pinned_count(), " pinned"));
  }
}

WorldCounts StorageWorld::counts() const {
  WorldCounts counts = counts_;
  const Oracle::Counts blocks = oracle_.counts();
  counts.events = loop_.events_done();
  counts.acknowledged = blocks.acknowledged;
  counts.hits = blocks.hits;
  counts.evicted = blocks.evicted;
  counts.lost = blocks.lost;
  return counts;
}

}  // namespace millrace::storage::sim
