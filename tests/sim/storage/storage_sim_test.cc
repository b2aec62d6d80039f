#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/metrics/metrics.h"
#include "tests/sim/storage/storage_world.h"

namespace millrace::storage::sim {
namespace {

std::uint64_t number_in(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

void add(WorldCounts& sum, const WorldCounts& counts) {
  sum.events += counts.events;
  sum.acknowledged += counts.acknowledged;
  sum.hits += counts.hits;
  sum.evicted += counts.evicted;
  sum.lost += counts.lost;
  sum.wipes += counts.wipes;
  sum.restarts += counts.restarts;
  sum.maps += counts.maps;
  sum.replacements += counts.replacements;
  sum.rebuilds += counts.rebuilds;
  sum.owed += counts.owed;
}

/// MILLRACE_SIM_SEED: this seed alone. MILLRACE_SIM_SEEDS: so many, from MILLRACE_SIM_FIRST on.
TEST(StorageSim, NoReaderIsDeceivedAndNoAcknowledgedBlockForgotten) {
  constexpr std::uint64_t kSeeds = 500;
  const bool is_replay = std::getenv("MILLRACE_SIM_SEED") != nullptr;
  const std::uint64_t first =
      is_replay ? number_in("MILLRACE_SIM_SEED", 0) : number_in("MILLRACE_SIM_FIRST", 0);
  const std::uint64_t count = is_replay ? 1 : number_in("MILLRACE_SIM_SEEDS", kSeeds);
  Registry registry;
  std::vector<std::string> targets;
  for (std::size_t i = 0; i < 16; ++i) targets.push_back(target_name(i));
  const node::NodeMetrics metrics(registry, targets);
  WorldCounts sum;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    StorageWorld world(seed, metrics);
    world.run();
    add(sum, world.counts());
    ASSERT_TRUE(world.violations().empty())
        << world.violations().front() << "\nreplay: MILLRACE_SIM_SEED=" << seed
        << " build/release/test/storage_sim_test";
  }
  RecordProperty("events", std::to_string(sum.events));
  RecordProperty("acknowledged", std::to_string(sum.acknowledged));
  RecordProperty("hits", std::to_string(sum.hits));
  std::cout << count << " worlds: " << sum.events << " events, " << sum.acknowledged
            << " blocks acknowledged, " << sum.evicted << " evicted, " << sum.lost << " lost, "
            << sum.hits << " hits, " << sum.restarts << " restarts, " << sum.wipes
            << " wiped disks, " << sum.replacements << " replacements, " << sum.rebuilds
            << " rebuilt members, " << sum.owed << " shards that came with those who were away, "
            << sum.maps << " maps\n";
  if (count < kSeeds) return;
  // What this is about has happened often.
  EXPECT_GT(sum.acknowledged, 10 * count);
  EXPECT_GT(sum.hits, 10 * count);
  EXPECT_GT(sum.evicted, count);
  EXPECT_GT(sum.lost, count / 10);
  EXPECT_LT(sum.lost, sum.acknowledged / 2);
  EXPECT_GT(sum.restarts, count);
  EXPECT_GT(sum.wipes, count / 10);
  EXPECT_GT(sum.replacements, count / 10);
  EXPECT_GT(sum.rebuilds, count);
}

}  // namespace
}  // namespace millrace::storage::sim
