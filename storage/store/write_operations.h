#pragma once

#include <map>
#include <memory>
#include <vector>

#include "storage/store/store_context.h"

namespace millrace::storage::store {

/// The writes of one core: each a WritePlan, the block, and its timers. A block's bytes stay until
/// no member can need them any more.
class WriteOperations {
 public:
  explicit WriteOperations(StoreContext& context) : context_(context) {}

  void start(StartWrite write, TimePoint now);
  void on_answer(const Outstanding& note, const ShardReply& reply, TimePoint now);
  void on_deadline(std::uint64_t attempt_id, TimePoint now);
  void on_retry(std::uint64_t attempt_id, TimePoint now);
  /// Starts again, under another generation, what was refused for its old map.
  void on_map(TimePoint now);
  void stop(TimePoint now);

 private:
  /// One try to write a block; a second one only follows a newer map.
  struct Attempt {
    StartWrite write;
    std::shared_ptr<const StorageMap> map;
    std::shared_ptr<const ec::Codec> codec;
    const Group* group = nullptr;
    WritePlan plan;
    int retries = 0;           ///< because of newer maps
    bool is_reported = false;  ///< the caller knows the outcome, or the retry will tell
    std::size_t window_bytes = 0;
  };
  struct Parked {
    StartWrite write;
    std::uint64_t epoch = 0;
    int retries = 0;
  };
  using Attempts = std::map<std::uint64_t, Attempt>;

  void begin(StartWrite write, int retries, TimePoint now);
  void act(std::uint64_t attempt_id, Attempt& attempt, const WriteStep& step, TimePoint now);
  void send_shards(std::uint64_t attempt_id, const Attempt& attempt, MemberMask members,
                   TimePoint now);
  /// Takes the block out of an attempt that has given up, for another one with a newer map.
  void park(Attempt& attempt, std::uint64_t epoch);
  void report(OperationId id, WriteOutcome outcome);
  void erase_if_settled(Attempts::iterator found);

  StoreContext& context_;
  Attempts attempts_;
  std::vector<Parked> parked_;
};

}  // namespace millrace::storage::store
