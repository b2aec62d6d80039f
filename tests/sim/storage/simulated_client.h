#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "storage/store/store_core.h"
#include "tests/sim/storage/event_loop.h"
#include "tests/sim/storage/oracle.h"

namespace millrace::storage::sim {

/// The world as a client sees it. Outlives the clients.
struct ClientSurroundings {
  EventLoop& loop;
  std::mt19937_64& random;
  Oracle& oracle;
  store::StoreSettings settings;
  std::uint64_t last_operation = 0;
  /// The answer comes to on_answer() with the same life.
  std::function<void(std::size_t client, std::uint64_t life, store::SendShard send)> send;
  std::function<void(std::size_t client)> want_map;
};

/// A process with the production core of the client, and a clock of its own. All that is read goes
/// to the oracle, which also hears of operations that do not finish once and in time.
class SimulatedClient {
 public:
  using ReadDone = std::function<void(const store::ReadResult&)>;
  using WriteDone = std::function<void(store::WriteOutcome)>;
  using QueryDone = std::function<void(const std::vector<bool>&)>;

  SimulatedClient(ClientSurroundings& surroundings, std::size_t number);

  /// The process begins; a crash ends it, with all that it had begun.
  void start();
  void crash();
  std::uint64_t life() const { return life_; }

  struct NewBlock {
    BlockKey key;
    std::vector<std::byte> bytes;
    std::uint32_t depth = 0;
    TtlClass ttl = TtlClass::kAgent;
  };
  void write(NewBlock block, std::chrono::nanoseconds timeout, WriteDone done = {});
  /// `landing` empty: the block comes with the result. Else it is the core's until `done`.
  void read(const BlockKey& key, std::chrono::nanoseconds timeout,
            std::span<std::byte> landing = {}, ReadDone done = {});
  /// The same into memory of this client, which nobody may write to afterwards.
  void read_into_landing(const BlockKey& key, std::size_t bytes, std::chrono::nanoseconds timeout);
  void query(std::vector<BlockKey> keys, std::chrono::milliseconds lease,
             std::chrono::nanoseconds timeout, QueryDone done = {});
  void touch(std::vector<BlockKey> keys, TtlClass ttl);
  void stop_store() { feed(store::StopStore{}); }

  void offer_map(const std::shared_ptr<const StorageMap>& map) { feed(store::MapChanged{map}); }
  void on_answer(std::uint64_t life, store::RequestId id, ShardReply reply);

  /// Nothing begun that has not finished, nothing on its way.
  bool is_idle() const;
  /// What a core at rest must not hold any more.
  void check_leaks() const;
  const store::StoreCounters& counters() const { return core_->counters(); }
  TimePoint clock() const { return surroundings_.loop.now() + clock_offset_; }

 private:
  struct Read {
    BlockKey key;
    TimePoint deadline;
    std::span<std::byte> landing;
    ReadDone done;
  };
  struct Write {
    TimePoint deadline;
    WriteDone done;
  };
  struct Query {
    std::size_t keys = 0;
    TimePoint deadline;
    QueryDone done;
  };

  void feed(store::StoreEvent event);
  void want_timer();
  void note_sent(const ShardOperation& operation);
  void finish(store::FinishRead& finished);
  void finish(const store::FinishWrite& finished);
  void finish(const store::FinishQuery& finished);
  void check_in_time(TimePoint deadline);

  ClientSurroundings& surroundings_;
  const std::size_t number_;
  std::uint64_t life_ = 0;
  std::chrono::nanoseconds clock_offset_{0};
  std::unique_ptr<store::StoreCore> core_;
  TimePoint timer_at_ = TimePoint::max();  // of the world
  std::map<store::OperationId, Read> reads_;
  std::map<store::OperationId, Write> writes_;
  std::map<store::OperationId, Query> queries_;
  /// Landings of reads that are over.
  std::vector<std::unique_ptr<std::vector<std::byte>>> landings_;
};

}  // namespace millrace::storage::sim
