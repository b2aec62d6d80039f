#pragma once

#include <chrono>
#include <cstdint>

#include "storage/node/settings.h"
#include "storage/store/store_types.h"

namespace millrace::storage::sim {

/// What kind of world a seed makes.
struct WorldPlan {
  int data_shards = 4;
  int parity_shards = 2;
  int groups = 1;
  int spares = 1;
  int clients = 3;
  std::uint32_t block_bytes = 700;
  std::uint64_t slots = 32;  ///< of a target
  std::size_t keys = 16;
  int operations = 150;
  std::chrono::microseconds operation_interval{40'000};  ///< on average
  std::uint64_t network_us = 1000;                       ///< longest way of a message
  double drop_fraction = 0;                              ///< of messages, always
  int operations_per_fault = 12;
  int wipes = 1;  ///< disks that are replaced by empty ones
  int rots = 2;
  /// More blocks than slots: blocks are evicted for space.
  bool has_pressure = false;
  /// Minutes pass between operations now and then, and blocks live only a few.
  bool has_short_ttl = false;
  node::TargetSettings target;
  store::StoreSettings store;

  int members() const { return data_shards + parity_shards; }
  std::size_t nodes() const { return static_cast<std::size_t>(groups * members() + spares); }
};

WorldPlan plan_for(std::uint64_t seed);

}  // namespace millrace::storage::sim
