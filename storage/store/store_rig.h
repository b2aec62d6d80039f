#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <vector>

#include "common/check.h"
#include "storage/store/simulated_nodes.h"
#include "storage/store/store_core.h"

namespace millrace::storage::store {

/// A core, simulated nodes and virtual time, on one thread. Delays come from the seed.
class StoreRig {
 public:
  StoreRig(std::shared_ptr<const StorageMap> map, std::uint64_t seed, StoreSettings settings = {})
      : nodes_(map), core_(settings, seed + 1), random_(seed) {
    act(core_.on_event(MapChanged{std::move(map)}, now_));
  }

  SimulatedNodes& nodes() { return nodes_; }
  const StoreCore& core() const { return core_; }
  TimePoint now() const { return now_; }
  void event(StoreEvent event) { act(core_.on_event(std::move(event), now_)); }

  OperationId read(const BlockKey& key, std::chrono::milliseconds timeout = kTimeout,
                   std::span<std::byte> landing = {}) {
    event(StartRead{.id = ++last_id_, .key = key, .landing = landing, .deadline = now_ + timeout});
    return last_id_;
  }
  OperationId write(const BlockKey& key, std::vector<std::byte> block,
                    std::chrono::milliseconds timeout = kTimeout) {
    event(StartWrite{
        .id = ++last_id_, .key = key, .block = std::move(block), .deadline = now_ + timeout});
    return last_id_;
  }
  OperationId query(std::vector<BlockKey> keys, std::chrono::milliseconds timeout = kTimeout) {
    event(StartQuery{.id = ++last_id_, .keys = std::move(keys), .deadline = now_ + timeout});
    return last_id_;
  }

  /// Until nothing happens any more, or that time has passed.
  void run_for(std::chrono::nanoseconds time) {
    const TimePoint end = now_ + time;
    while (true) {
      const auto timer = core_.next_timer();
      const bool has_arrival = !arrivals_.empty() && arrivals_.top().at <= end;
      if (timer && *timer <= end && !(has_arrival && arrivals_.top().at <= *timer)) {
        now_ = std::max(now_, *timer);
        event(TimerDue{});
      } else if (has_arrival) {
        Arrival arrival = arrivals_.top();
        arrivals_.pop();
        now_ = std::max(now_, arrival.at);
        (*arrival.run)();
      } else {
        break;
      }
    }
    now_ = end;
  }

  bool has_finished(OperationId id) const {
    return reads_.contains(id) || writes_.contains(id) || queries_.contains(id);
  }
  const ReadResult& read_result(OperationId id) const { return reads_.at(id); }
  WriteOutcome write_outcome(OperationId id) const { return writes_.at(id); }
  const std::vector<bool>& query_result(OperationId id) const { return queries_.at(id); }
  std::uint64_t map_requests() const { return map_requests_; }
  TimePoint finished_at(OperationId id) const { return finished_at_.at(id); }

  /// Round trips take this long, at most: half on the way there, half back.
  std::chrono::microseconds longest_way{1000};

  static constexpr std::chrono::milliseconds kTimeout{2000};

 private:
  struct Arrival {
    TimePoint at;
    std::uint64_t sequence = 0;
    std::shared_ptr<std::function<void()>> run;
    bool operator>(const Arrival& other) const {
      return at != other.at ? at > other.at : sequence > other.sequence;
    }
  };

  void later(std::function<void()> run) {
    const std::uint64_t limit = static_cast<std::uint64_t>(longest_way.count()) / 2;
    const std::chrono::microseconds delay(limit == 0 ? 0 : random_() % limit);
    arrivals_.push({.at = now_ + delay,
                    .sequence = ++sequence_,
                    .run = std::make_shared<std::function<void()>>(std::move(run))});
  }

  void act(StoreActions actions) {
    for (SendShard& send : actions.sends) {
      auto request = std::make_shared<ShardRequest>(std::move(send.request));
      later([this, request, id = send.request_id] {
        nodes_.handle(std::move(*request), [this, id](ShardReply reply) {
          auto answer = std::make_shared<ShardReply>(std::move(reply));
          later([this, id, answer] { event(ShardAnswered{id, std::move(*answer)}); });
        });
      });
    }
    map_requests_ += actions.maps.size();
    for (FinishRead& finish : actions.reads) {
      CHECK(reads_.emplace(finish.id, std::move(finish.result)).second, "finished twice");
      finished_at_[finish.id] = now_;
    }
    for (const FinishWrite& finish : actions.writes) {
      CHECK(writes_.emplace(finish.id, finish.outcome).second, "finished twice");
      finished_at_[finish.id] = now_;
    }
    for (FinishQuery& finish : actions.queries) {
      CHECK(queries_.emplace(finish.id, std::move(finish.present)).second, "finished twice");
      finished_at_[finish.id] = now_;
    }
  }

  TimePoint now_{std::chrono::hours(1)};
  SimulatedNodes nodes_;
  StoreCore core_;
  std::mt19937_64 random_;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals_;
  std::uint64_t sequence_ = 0;
  OperationId last_id_ = 0;
  std::map<OperationId, ReadResult> reads_;
  std::map<OperationId, WriteOutcome> writes_;
  std::map<OperationId, std::vector<bool>> queries_;
  std::map<OperationId, TimePoint> finished_at_;
  std::uint64_t map_requests_ = 0;
};

}  // namespace millrace::storage::store
