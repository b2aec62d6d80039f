#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "common/time_point.h"
#include "storage/map/storage_map.h"
#include "storage/store/node_scores.h"
#include "storage/store/read_plan.h"
#include "storage/store/write_plan.h"
#include "storage/wire/messages.h"

namespace millrace::storage::store {

/// What goes into the core of the client and comes out of it (storage/store/store_core.h).

struct StoreSettings {
  NodeScoreSettings scores;
  /// Shards beyond k that a read asks for at once, so that the slowest does not matter; 0 is there
  /// to measure what that is worth.
  int spare_shards = 1;
  /// Of reads that may be hedged because of time alone, in the long run.
  double hedge_fraction = 0.05;
  /// Shard bytes that reads may have on the way, those nobody waits for any more included. Reads
  /// beyond it wait, so many at most; further ones are misses.
  std::size_t read_window_bytes = std::size_t{256} << 20;
  std::size_t max_waiting_reads = 4096;
  /// Block and shard bytes of writes that have not settled; further ones are kBusy.
  std::size_t write_window_bytes = std::size_t{256} << 20;
  /// Queries in flight; of further ones no key is present. Keys of one are kMaxQueryKeys at most.
  std::size_t max_queries = 1024;
  /// Touches wait so long for others, to travel together, and so many at most; further ones are
  /// dropped.
  std::chrono::milliseconds touch_delay{100};
  std::size_t max_waiting_touches = 65536;
};

/// Keys of one query: a prompt of two million tokens.
inline constexpr std::size_t kMaxQueryKeys = 16384;

/// Chosen by the caller; unique among operations that have not finished.
using OperationId = std::uint64_t;
/// Chosen by the core.
using RequestId = std::uint64_t;

// Events.

/// `landing` empty: the result owns the block. Else the block is of exactly that size, and the
/// memory is the core's until FinishRead, never after.
struct StartRead {
  OperationId id = 0;
  BlockKey key;
  std::span<std::byte> landing;
  TimePoint deadline{};
};
struct StartWrite {
  OperationId id = 0;
  BlockKey key;
  std::vector<std::byte> block;
  std::uint32_t depth = 0;  ///< of the block in its chain
  TtlClass ttl = TtlClass::kAgent;
  TimePoint deadline{};
};
struct StartQuery {
  OperationId id = 0;
  std::vector<BlockKey> keys;
  /// Keeps what is there from being evicted for so long.
  std::chrono::milliseconds lease{0};
  TimePoint deadline{};
};
struct TouchBlocks {
  std::vector<BlockKey> keys;
  TtlClass ttl = TtlClass::kAgent;
};
struct ShardAnswered {
  RequestId request_id = 0;
  ShardReply reply;
};
struct MapChanged {
  std::shared_ptr<const StorageMap> map;
};
struct TimerDue {};
/// Everything finishes now, as kShutdown; answers may still come.
struct StopStore {};

using StoreEvent = std::variant<StartRead, StartWrite, StartQuery, TouchBlocks, ShardAnswered,
                                MapChanged, TimerDue, StopStore>;

// Actions.

/// The answer comes back as ShardAnswered, exactly once, however late.
struct SendShard {
  RequestId request_id = 0;
  std::string node_address;
  ShardRequest request;
};
/// A node knows of a newer map. Asked for once per epoch and second.
struct FetchMap {
  std::uint64_t epoch = 0;
};
struct ReadResult {
  MissReason miss = MissReason::kNone;
  Generation generation = 0;
  std::uint32_t depth = 0;
  TtlClass ttl = TtlClass::kAgent;
  std::vector<std::byte> block;  ///< empty where a landing was given

  bool is_hit() const { return miss == MissReason::kNone; }
};
struct FinishRead {
  OperationId id = 0;
  ReadResult result;
};
struct FinishWrite {
  OperationId id = 0;
  WriteOutcome outcome = WriteOutcome::kBusy;
};
/// One for each key. What could not be learned in time counts as absent.
struct FinishQuery {
  OperationId id = 0;
  std::vector<bool> present;
};

/// All that an event leads to. Requests go out in their order; between the lists there is none.
struct StoreActions {
  std::vector<SendShard> sends;
  std::vector<FetchMap> maps;
  std::vector<FinishRead> reads;
  std::vector<FinishWrite> writes;
  std::vector<FinishQuery> queries;
};

inline constexpr int kShardDefects = 8;
inline constexpr int kShardResults = 13;

/// Sums since the start, and at the end what is in flight now.
struct StoreCounters {
  std::uint64_t reads = 0;
  std::uint64_t hits = 0;
  std::array<std::uint64_t, kMissReasons> misses{};
  std::uint64_t read_bytes = 0;  ///< of blocks
  std::uint64_t degraded_reads = 0;
  std::uint64_t hedged_reads = 0;
  std::uint64_t probes = 0;
  std::array<std::uint64_t, kShardDefects> shard_defects{};  ///< by ShardDefect
  std::array<std::uint64_t, kShardResults> shard_results{};  ///< answers to reads, by ShardResult
  std::uint64_t missed_deadlines = 0;                        ///< of shards
  std::uint64_t repairs = 0;
  std::array<std::uint64_t, kWriteOutcomes> writes{};
  std::uint64_t written_bytes = 0;  ///< of blocks that were stored
  std::uint64_t queried_keys = 0;
  std::uint64_t present_keys = 0;
  std::uint64_t touched_keys = 0;
  std::uint64_t dropped_touches = 0;

  std::uint64_t read_bytes_in_flight = 0;  ///< of shards, late ones included
  std::uint64_t late_bytes_in_flight = 0;  ///< of those, what nobody waits for any more
  std::uint64_t waiting_reads = 0;
  std::uint64_t write_bytes_in_flight = 0;
  std::uint64_t nodes_on_probation = 0;
};

}  // namespace millrace::storage::store
