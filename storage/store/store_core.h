#pragma once

#include <cstdint>
#include <optional>

#include "storage/store/query_operations.h"
#include "storage/store/read_operations.h"
#include "storage/store/store_context.h"
#include "storage/store/touch_batch.h"
#include "storage/store/write_operations.h"

namespace millrace::storage::store {

/// The client of the storage nodes, as a machine: events in, actions out. No I/O, no lock, no
/// clock; equal seeds and events give equal actions. One thread.
///
///     StartRead, StartWrite, StartQuery --> SendShard ... --> FinishRead, FinishWrite, FinishQuery
///     TouchBlocks                       --> SendShard (after a moment)
///     ShardAnswered                     <-- each SendShard, exactly once
///     MapChanged                        <-- FetchMap, sooner or later
///     TimerDue                          <-- at next_timer(), or a little later
///
/// Every Start finishes exactly once, at its deadline at the latest. Without a map everything is a
/// miss.
class StoreCore {
 public:
  StoreCore(const StoreSettings& settings, std::uint64_t seed)
      : context_(settings, seed),
        reads_(context_),
        writes_(context_),
        queries_(context_),
        touches_(context_) {}
  StoreCore(const StoreCore&) = delete;
  StoreCore& operator=(const StoreCore&) = delete;

  StoreActions on_event(StoreEvent event, TimePoint now);

  /// When TimerDue is wanted; nullopt: not at all.
  std::optional<TimePoint> next_timer() const { return context_.next_timer(); }

  const StoreCounters& counters() const { return context_.counters; }
  /// nullptr until there is one.
  const StorageMap* map() const { return context_.map.get(); }

 private:
  void on(const StartRead& read, TimePoint now);
  void on(StartWrite& write, TimePoint now);
  void on(StartQuery& query, TimePoint now);
  void on(TouchBlocks& touch, TimePoint now);
  void on(ShardAnswered& answered, TimePoint now);
  void on(MapChanged& changed, TimePoint now);
  void on(TimerDue& due, TimePoint now);
  void on(StopStore& stop, TimePoint now);

  StoreContext context_;
  ReadOperations reads_;
  WriteOperations writes_;
  QueryOperations queries_;
  TouchBatch touches_;
  bool is_stopped_ = false;
};

}  // namespace millrace::storage::store
