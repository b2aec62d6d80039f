#include "tests/sim/storage/world_plan.h"

#include <random>

namespace millrace::storage::sim {
namespace {

using std::chrono::milliseconds;

/// Everything happens sooner than in production, in the same order of lengths.
node::TargetSettings target_settings() {
  node::TargetSettings settings;
  settings.queue_depth = 24;
  settings.slot_grace = milliseconds(3000);  // no read lasts longer than 2 s
  settings.max_lease = milliseconds(5000);
  settings.max_leases = 64;
  settings.pending_timeout = milliseconds(4000);
  settings.gc_interval = milliseconds(500);
  settings.rebuild_bytes_per_second = std::uint64_t{1} << 20;
  settings.rebuild_queue = 64;
  settings.repair_queue = 32;
  settings.list_page = 5;
  settings.peer_timeout = milliseconds(400);
  settings.max_peer_calls = 512;
  return settings;
}

store::StoreSettings store_settings() {
  store::StoreSettings settings;
  settings.touch_delay = milliseconds(20);
  settings.scores.first_probation = milliseconds(300);
  settings.scores.longest_probation = milliseconds(3000);
  return settings;
}

}  // namespace

WorldPlan plan_for(std::uint64_t seed) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15ULL + 1);
  const auto pick = [&](std::uint64_t count) { return random() % count; };
  WorldPlan plan;
  plan.target = target_settings();
  plan.store = store_settings();
  struct Geometry {
    int data_shards;
    int parity_shards;
    int groups;
  };
  constexpr Geometry kGeometries[] = {{4, 2, 1}, {4, 2, 1}, {3, 1, 2}, {2, 2, 1}};
  Geometry geometry = kGeometries[pick(std::size(kGeometries))];
  if (seed % 16 == 0) geometry = {10, 2, 1};
  plan.data_shards = geometry.data_shards;
  plan.parity_shards = geometry.parity_shards;
  plan.groups = geometry.groups;
  plan.spares = static_cast<int>(pick(3));
  plan.clients = 2 + static_cast<int>(pick(3));
  plan.block_bytes = 300 + static_cast<std::uint32_t>(pick(600));
  plan.network_us = pick(4) == 0 ? 20'000 : 500 + pick(2000);
  plan.operation_interval = std::chrono::microseconds(2000 + pick(80'000));
  plan.operations = 60 + static_cast<int>(pick(100));
  plan.drop_fraction = pick(3) == 0 ? 0.01 : 0;
  plan.operations_per_fault = 6 + static_cast<int>(pick(20));
  const bool is_harsh = pick(4) == 0;
  plan.wipes = is_harsh ? 4 : static_cast<int>(pick(2));
  plan.rots = is_harsh ? 8 : static_cast<int>(pick(3));
  plan.has_pressure = pick(4) == 0;
  plan.slots = plan.has_pressure ? 16 : 64;
  plan.keys = plan.has_pressure ? 30 : 8 + pick(12);
  plan.has_short_ttl = pick(6) == 0;
  if (plan.has_pressure) plan.target.watermarks = {.start = 0.8, .stop = 0.6, .emergency = 0.95};
  if (plan.has_short_ttl) {
    plan.target.ttl = {.agent_minutes = 4, .chatbot_minutes = 8};
    plan.target.orphan_slack_minutes = 2;
  }
  if (pick(4) == 0) plan.store.read_window_bytes = 4000;
  if (pick(8) == 0) plan.store.write_window_bytes = 8000;
  if (pick(8) == 0) plan.target.queue_depth = 3;
  return plan;
}

}  // namespace millrace::storage::sim
