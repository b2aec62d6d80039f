#include "storage/fetch/fetch_metrics.h"

#include <string>
#include <vector>

namespace millrace::storage::fetch {
namespace {

std::vector<std::string> end_names() {
  std::vector<std::string> names;
  names.reserve(kFetchEnds);
  for (int i = 0; i < kFetchEnds; ++i) names.emplace_back(fetch_end_name(static_cast<FetchEnd>(i)));
  return names;
}

std::vector<std::string> store_names() {
  std::vector<std::string> names;
  names.reserve(kStoreEnds);
  for (int i = 0; i < kStoreEnds; ++i) names.emplace_back(store_end_name(static_cast<StoreEnd>(i)));
  return names;
}

void add(const Counter& counter, std::uint64_t now, std::uint64_t before) {
  if (now != before) counter.add(static_cast<double>(now - before));
}

void set(const Gauge& gauge, std::uint64_t value) { gauge.set(static_cast<double>(value)); }

}  // namespace

FetchMetrics::FetchMetrics(Registry& registry, std::uint32_t read_slots, std::uint32_t write_slots)
    : read_slot_count_(read_slots),
      write_slot_count_(write_slots),
      fetches_(registry.counter("millrace_storage_fetch_requests_total", "Fetches asked for.")),
      ends_(registry.counter("millrace_storage_fetch_ends_total",
                             "Fetches that ended, by why; all but \"complete\" are short.",
                             {{"reason", end_names()}})),
      asked_blocks_(registry.counter("millrace_storage_fetch_asked_blocks_total",
                                     "Blocks that fetches asked for.")),
      ready_blocks_(registry.counter("millrace_storage_fetch_ready_blocks_total",
                                     "Blocks that engines were told are ready.")),
      shared_blocks_(
          registry.counter("millrace_storage_fetch_shared_blocks_total",
                           "Blocks that were there, or on their way, for another fetch.")),
      reads_(registry.counter("millrace_storage_fetch_reads_total", "Blocks read from the store.")),
      unwanted_reads_(registry.counter("millrace_storage_fetch_unwanted_reads_total",
                                       "Blocks that nobody wanted any more when they came.")),
      slot_waits_(
          registry.counter("millrace_storage_fetch_slot_waits_total",
                           "Times that the first fetch of the queue found every slot leased.")),
      leases_lost_(registry.counter("millrace_storage_fetch_leases_lost_total",
                                    "Slots taken back from an engine at the end of its lease.")),
      stores_(registry.counter("millrace_storage_fetch_stores_total",
                               "Blocks that engines sealed, by what became of them.",
                               {{"outcome", store_names()}})),
      sessions_(registry.gauge("millrace_storage_fetch_sessions", "Engines connected.")),
      open_fetches_(
          registry.gauge("millrace_storage_fetch_open_requests", "Fetches that have not ended.")),
      queued_blocks_(registry.gauge("millrace_storage_fetch_queued_blocks",
                                    "Blocks whose read has not started.")),
      read_slots_(registry.gauge("millrace_storage_fetch_read_slots",
                                 "Slots for fetched blocks, by state; \"ready\" are pinned.",
                                 {{"state", {"free", "filling", "ready"}}})),
      write_slots_(registry.gauge("millrace_storage_fetch_write_slots",
                                  "Slots for new blocks, by state.",
                                  {{"state", {"free", "writing", "sealed"}}})),
      leased_blocks_(
          registry.gauge("millrace_storage_fetch_leased_blocks",
                         "Ready blocks leased to engines; one that several have counts for each.")),
      fetch_seconds_(registry.histogram("millrace_storage_fetch_seconds",
                                        "From the request for a prefix to its end.",
                                        latency_buckets_seconds())) {}

void FetchMetrics::observe_fetch(double seconds) { fetch_seconds_.observe(seconds); }

void FetchMetrics::publish(const FetchCounters& now) {
  add(fetches_, now.fetches, last_.fetches);
  for (std::size_t i = 0; i < kFetchEnds; ++i) {
    add(ends_.with({fetch_end_name(static_cast<FetchEnd>(i))}), now.ends[i], last_.ends[i]);
  }
  add(asked_blocks_, now.asked_blocks, last_.asked_blocks);
  add(ready_blocks_, now.ready_blocks, last_.ready_blocks);
  add(shared_blocks_, now.shared_blocks, last_.shared_blocks);
  add(reads_, now.reads, last_.reads);
  add(unwanted_reads_, now.unwanted_reads, last_.unwanted_reads);
  add(slot_waits_, now.slot_waits, last_.slot_waits);
  add(leases_lost_, now.leases_lost, last_.leases_lost);
  for (std::size_t i = 0; i < kStoreEnds; ++i) {
    add(stores_.with({store_end_name(static_cast<StoreEnd>(i))}), now.stores[i], last_.stores[i]);
  }
  set(sessions_, now.sessions);
  set(open_fetches_, now.open_fetches);
  set(queued_blocks_, now.queued_blocks);
  set(read_slots_.with({"filling"}), now.filling_slots);
  set(read_slots_.with({"ready"}), now.ready_slots);
  set(read_slots_.with({"free"}), read_slot_count_ - now.filling_slots - now.ready_slots);
  set(write_slots_.with({"writing"}), now.writing_slots);
  set(write_slots_.with({"sealed"}), now.sealed_slots);
  set(write_slots_.with({"free"}), write_slot_count_ - now.writing_slots - now.sealed_slots);
  set(leased_blocks_, now.leased_blocks);
  last_ = now;
}

}  // namespace millrace::storage::fetch
