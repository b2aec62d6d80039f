#include "storage/store/store_metrics.h"

#include <string>
#include <vector>

namespace millrace::storage::store {
namespace {

constexpr const char* kHit = "hit";

std::vector<std::string> read_results() {
  std::vector<std::string> names = {kHit};
  for (int i = 1; i < kMissReasons; ++i)
    names.emplace_back(miss_reason_name(static_cast<MissReason>(i)));
  return names;
}

/// Names of the enumerators 0 .. count-1.
template <typename Enum>
std::vector<std::string> names_of(int count, const char* (*name)(Enum)) {
  std::vector<std::string> names;
  names.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) names.emplace_back(name(static_cast<Enum>(i)));
  return names;
}

/// 100 us to 10 s: the way to a page cache over loopback and back takes a few hundred us.
std::vector<double> io_buckets_seconds() {
  return {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02,
          0.05,   0.1,    0.2,    0.5,   1,     2,     5,    10};
}

void add(const Counter& counter, std::uint64_t now, std::uint64_t last) {
  if (now != last) counter.add(static_cast<double>(now - last));
}

template <typename Enum, std::size_t kCount>
void add_all(const MetricFamily<Counter>& family, const std::array<std::uint64_t, kCount>& now,
             const std::array<std::uint64_t, kCount>& last, const char* (*name)(Enum)) {
  for (std::size_t i = 0; i < kCount; ++i)
    if (now[i] != last[i]) add(family.with({name(static_cast<Enum>(i))}), now[i], last[i]);
}

}  // namespace

StoreMetrics::StoreMetrics(Registry& registry)
    : reads_(registry.counter("millrace_storage_client_reads_total",
                              "Reads of KV blocks by what came of them",
                              {{"result", read_results()}})),
      read_bytes_(registry.counter("millrace_storage_client_read_bytes_total",
                                   "Bytes of KV blocks that were read")),
      degraded_reads_(registry.counter("millrace_storage_client_degraded_reads_total",
                                       "Hits that had to do without a member or its shard")),
      hedged_reads_(registry.counter("millrace_storage_client_hedged_reads_total",
                                     "Reads that asked one more member because of time")),
      probes_(registry.counter("millrace_storage_client_probes_total",
                               "Shards asked of nodes on probation, on top of a read")),
      shard_defects_(
          registry.counter("millrace_storage_client_shard_defects_total",
                           "Shards that were not what was asked for, by defect",
                           {{"defect", names_of<ShardDefect>(kShardDefects, shard_defect_name)}})),
      shard_answers_(registry.counter(
          "millrace_storage_client_shard_answers_total", "Answers to reads of shards by result",
          {{"result", names_of<ShardResult>(kShardResults, shard_result_name)}})),
      missed_deadlines_(registry.counter("millrace_storage_client_missed_deadlines_total",
                                         "Reads of shards that passed their hedge deadline")),
      repairs_(registry.counter("millrace_storage_client_repairs_requested_total",
                                "Shards reported as missing or bad")),
      writes_(registry.counter(
          "millrace_storage_client_writes_total", "Writes of KV blocks by outcome",
          {{"outcome", names_of<WriteOutcome>(kWriteOutcomes, write_outcome_name)}})),
      written_bytes_(registry.counter("millrace_storage_client_written_bytes_total",
                                      "Bytes of KV blocks that were stored")),
      queried_keys_(registry.counter("millrace_storage_client_queried_keys_total",
                                     "Keys whose existence was asked for")),
      present_keys_(registry.counter("millrace_storage_client_present_keys_total",
                                     "Of those, keys that exist")),
      touched_keys_(registry.counter("millrace_storage_client_touched_keys_total",
                                     "Keys whose use was passed on")),
      dropped_touches_(registry.counter("millrace_storage_client_dropped_touches_total",
                                        "Touches dropped because too many waited, or for want "
                                        "of a map")),
      read_bytes_in_flight_(registry.gauge("millrace_storage_client_read_in_flight_bytes",
                                           "Shard bytes that were asked for and have not come")),
      late_bytes_in_flight_(registry.gauge("millrace_storage_client_late_in_flight_bytes",
                                           "Of those, bytes that nobody waits for any more")),
      waiting_reads_(registry.gauge("millrace_storage_client_waiting_reads",
                                    "Reads that wait for room in the window")),
      write_bytes_in_flight_(registry.gauge("millrace_storage_client_write_in_flight_bytes",
                                            "Block and shard bytes of unsettled writes")),
      nodes_on_probation_(registry.gauge("millrace_storage_client_nodes_on_probation",
                                         "Nodes that have not been answering in time")),
      read_seconds_(registry.histogram("millrace_storage_client_read_seconds",
                                       "Time of a read of a block", {{"result", {kHit, "miss"}}},
                                       io_buckets_seconds())),
      write_seconds_(registry.histogram("millrace_storage_client_write_seconds",
                                        "Time of a write of a block, until its outcome",
                                        io_buckets_seconds())) {}

void StoreMetrics::publish(const StoreCounters& now) {
  publish_reads(now);
  add_all<WriteOutcome>(writes_, now.writes, last_.writes, write_outcome_name);
  add(written_bytes_, now.written_bytes, last_.written_bytes);
  add(repairs_, now.repairs, last_.repairs);
  add(queried_keys_, now.queried_keys, last_.queried_keys);
  add(present_keys_, now.present_keys, last_.present_keys);
  add(touched_keys_, now.touched_keys, last_.touched_keys);
  add(dropped_touches_, now.dropped_touches, last_.dropped_touches);
  read_bytes_in_flight_.set(static_cast<double>(now.read_bytes_in_flight));
  late_bytes_in_flight_.set(static_cast<double>(now.late_bytes_in_flight));
  waiting_reads_.set(static_cast<double>(now.waiting_reads));
  write_bytes_in_flight_.set(static_cast<double>(now.write_bytes_in_flight));
  nodes_on_probation_.set(static_cast<double>(now.nodes_on_probation));
  last_ = now;
}

void StoreMetrics::publish_reads(const StoreCounters& now) {
  add(reads_.with({kHit}), now.hits, last_.hits);
  for (std::size_t i = 1; i < now.misses.size(); ++i) {
    if (now.misses[i] == last_.misses[i]) continue;
    add(reads_.with({miss_reason_name(static_cast<MissReason>(i))}), now.misses[i],
        last_.misses[i]);
  }
  add(read_bytes_, now.read_bytes, last_.read_bytes);
  add(degraded_reads_, now.degraded_reads, last_.degraded_reads);
  add(hedged_reads_, now.hedged_reads, last_.hedged_reads);
  add(probes_, now.probes, last_.probes);
  add_all<ShardDefect>(shard_defects_, now.shard_defects, last_.shard_defects, shard_defect_name);
  add_all<ShardResult>(shard_answers_, now.shard_results, last_.shard_results, shard_result_name);
  add(missed_deadlines_, now.missed_deadlines, last_.missed_deadlines);
}

void StoreMetrics::observe_read(bool is_hit, double seconds) {
  read_seconds_.with({is_hit ? kHit : "miss"}).observe(seconds);
}

void StoreMetrics::observe_write(double seconds) { write_seconds_.observe(seconds); }

}  // namespace millrace::storage::store
