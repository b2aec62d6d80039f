// The owner of the map, by the plans that the controller uses.

#include <algorithm>
#include <set>
#include <utility>

#include "common/check.h"
#include "common/str_cat.h"
#include "storage/map/map_plan.h"
#include "tests/sim/storage/storage_world.h"

namespace millrace::storage::sim {
namespace {

constexpr auto kTick = std::chrono::milliseconds(400);
constexpr auto kDeadAfter = std::chrono::milliseconds(1500);
constexpr auto kReplacedAfter = std::chrono::seconds(4);
constexpr auto kClientPoll = 5;  // ticks

}  // namespace

void StorageWorld::make_map() {
  StorageMap map;
  map.cluster_id = "c";
  map.epoch = 1;
  map.data_shards = plan_.data_shards;
  map.parity_shards = plan_.parity_shards;
  map.block_bytes = plan_.block_bytes;
  for (std::size_t i = 0; i < plan_.nodes(); ++i) {
    auto next = add_node(
        map, {.node_id = str_cat("n", i), .address = str_cat(i), .target_ids = {target_name(i)}});
    CHECK(next.ok() && next->has_value());
    map = **std::move(next);
  }
  std::optional<StorageMap> formed = form_groups(map, static_cast<std::size_t>(plan_.spares));
  CHECK(formed.has_value() && validate(*formed).ok());
  last_heard_.assign(plan_.nodes(), loop_.now());
  take_map(*std::move(formed));
}

void StorageWorld::take_map(StorageMap next) {
  CHECK(map_.epoch < next.epoch && validate(next).ok());
  map_ = std::move(next);
  map_snapshot_ = std::make_shared<const StorageMap>(map_);
  ++counts_.maps;
  oracle_.on_map(map_);
  std::set<std::string> rebuilding;
  for (const Group& group : map_.groups) {
    for (const Member& member : group.members) {
      if (member.state == MemberState::kRebuilding) {
        rebuilding.insert(member.target_id);
        rebuilding_since_.try_emplace(member.target_id, map_.epoch, loop_.now());
      }
      if (member.state == MemberState::kDown) last_down_[group.id] = loop_.now();
    }
  }
  std::erase_if(rebuilding_since_,
                [&](const auto& entry) { return !rebuilding.contains(entry.first); });
  // Most hear of it soon; the others when they ask, or at the next tick.
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    if (pick(4) != 0) send_map_to_node(i);
  for (std::size_t i = 0; i < clients_.size(); ++i)
    if (pick(3) == 0) send_map_to_client(i);
}

void StorageWorld::send_map_to_node(std::size_t node) {
  loop_.post(way(), [this, node, map = map_snapshot_] {
    if (!is_cut(node_endpoint(node), kController)) nodes_[node]->offer_map(map);
  });
}

void StorageWorld::send_map_to_client(std::size_t client) {
  loop_.post(way(), [this, client, life = clients_[client]->life(), map = map_snapshot_] {
    if (clients_[client]->life() == life && !is_cut(client_endpoint(client), kController))
      clients_[client]->offer_map(map);
  });
}

void StorageWorld::controller_tick() {
  loop_.post(kTick, [this] { controller_tick(); });
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const SimulatedNode& node = *nodes_[i];
    if (!node.is_running() || node.is_frozen() || is_cut(node_endpoint(i), kController)) continue;
    last_heard_[i] = loop_.now();
    if (node.map() == nullptr || node.map()->epoch < map_.epoch) send_map_to_node(i);
    note_rebuilt(i);
  }
  mark_dead_nodes();
  for (std::size_t i = 0; i < clients_.size(); ++i)
    if (pick(kClientPoll) == 0) send_map_to_client(i);
}

void StorageWorld::note_rebuilt(std::size_t node) {
  const std::string target_id = target_name(node);
  const auto since = rebuilding_since_.find(target_id);
  if (since == rebuilding_since_.end()) return;
  const node::TargetStatus status = nodes_[node]->host().status(nodes_[node]->clock());
  if (status.rebuild.complete_at_epoch < since->second.first) return;
  std::optional<StorageMap> next = set_rebuilt(map_, target_id);
  if (!next) return;
  check_rebuilt(target_id, since->second.first);
  ++counts_.rebuilds;
  take_map(*std::move(next));
}

/// Whoever is called up has every block that was stored before its rebuild began, if all of its
/// group could be asked meanwhile; else it owes what it lacks until all were back.
void StorageWorld::check_rebuilt(const std::string& target_id, std::uint64_t since) {
  const TimePoint began = rebuilding_since_.at(target_id).second;
  const std::optional<StorageMap::Place> place = map_.place_of(target_id);
  const auto down = last_down_.find(place->group_id);
  const bool was_one_away = down != last_down_.end() && down->second >= began;
  for (const auto& [key, generation] : oracle_.expected()) {
    if (group_of(map_, key).id != place->group_id) continue;
    if (*oracle_.find(key, generation)->acknowledged_at >= began) continue;
    if (nodes_[target_number(target_id)]->holds(key, generation, place->shard_index)) continue;
    if (was_one_away) {
      owed_.insert({target_id, key, generation});
    } else {
      oracle_.fail(str_cat(target_id, " is called up, rebuilt since epoch ", since,
                           ", and lacks block ", key.hex().substr(0, 8)));
    }
  }
}

/// With nobody away any more.
void StorageWorld::check_owed() {
  const auto expected = oracle_.expected();
  for (const auto& [target_id, key, generation] : owed_) {
    const std::optional<StorageMap::Place> place = map_.place_of(target_id);
    if (!place || group_of(map_, key).id != place->group_id ||
        std::find(expected.begin(), expected.end(), std::pair(key, generation)) == expected.end())
      continue;
    ++counts_.owed;
    if (!nodes_[target_number(target_id)]->holds(key, generation, place->shard_index))
      oracle_.fail(str_cat(target_id, " was called up while others were away, and lacks block ",
                           key.hex().substr(0, 8), " still"));
  }
}

void StorageWorld::mark_dead_nodes() {
  std::set<std::string, std::less<>> dead;
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    if (loop_.now() - last_heard_[i] > kDeadAfter) dead.insert(str_cat("n", i));
  if (std::optional<StorageMap> next = set_dead_nodes(map_, dead)) take_map(*std::move(next));
  if (!has_faults_) return;
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    if (loop_.now() - last_heard_[i] > kReplacedAfter && pick(8) == 0) replace(target_name(i));
}

void StorageWorld::replace(const std::string& target_id) {
  if (!map_.place_of(target_id)) return;
  for (const TargetEntry* spare : spares_of(map_)) {
    if (loop_.now() - last_heard_[target_number(spare->id)] > kDeadAfter) continue;
    auto next = replace_target(map_, target_id, spare->id);
    if (!next.ok()) return;
    ++counts_.replacements;
    return take_map(*std::move(next));
  }
}

}  // namespace millrace::storage::sim
