#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "storage/ec/codec.h"
#include "storage/store/hedge_budget.h"
#include "storage/store/store_types.h"

namespace millrace::storage::store {

/// What reads, writes and queries of one core share. Pure, as everything behind it; one thread.

enum class Errand : std::uint8_t {
  kRead,
  kWrite,
  kQuery,
  kNone,  ///< a touch, a drop, a repair: whatever comes back is fine
};

/// A request on its way. Exists until its answer comes.
struct Outstanding {
  Errand errand = Errand::kNone;
  std::uint64_t attempt = 0;  ///< of a read or write; the part of a query
  int member = 0;
  std::string node_id{};
  TimePoint sent_at{};
};

enum class TimerKind : std::uint8_t {
  kReadDeadline,
  kReadOverdue,
  kWriteDeadline,
  kWriteRetry,
  kQueryDeadline,
  kQueryOverdue,
  kTouch,
};

struct Timer {
  TimePoint at{};
  std::uint64_t sequence = 0;  ///< equal times: in the order in which they were set
  TimerKind kind = TimerKind::kTouch;
  std::uint64_t subject = 0;

  bool operator>(const Timer& other) const {
    return at != other.at ? at > other.at : sequence > other.sequence;
  }
};

/// An operation starts again for a newer map so often at most: nodes that die together give a map
/// each, and a request may meet every one of them.
inline constexpr int kMaxMapRetries = 8;

class StoreContext {
 public:
  StoreContext(const StoreSettings& store_settings, std::uint64_t seed)
      : settings(store_settings),
        scores(store_settings.scores),
        budget(store_settings.hedge_fraction),
        random(seed) {}

  /// The map that new operations go by, and the code that belongs to it. Both null at first.
  std::shared_ptr<const StorageMap> map;
  std::shared_ptr<const ec::Codec> codec;

  const StoreSettings settings;
  NodeScores scores;
  HedgeBudget budget;
  StoreCounters counters;
  std::mt19937_64 random;
  StoreActions actions;  ///< of the event that is being handled

  std::uint64_t next_id() { return ++last_id_; }

  /// Sends an operation to a target, with `deadline` as the time left to it.
  void send(const StorageMap& of_map, const std::string& target_id, ShardOperation operation,
            TimePoint deadline, TimePoint now, Outstanding note);
  /// The same for what nobody waits for.
  void send_errand(const StorageMap& of_map, const std::string& target_id, ShardOperation operation,
                   TimePoint now);
  void send_repairs(const StorageMap& of_map, const Group& group, MemberMask members,
                    const BlockKey& key, TimePoint now);

  /// The request that an answer belongs to, which is then over; nullopt: there is none.
  std::optional<Outstanding> take(RequestId id);

  /// Says that a node has named an epoch; asks for the map when it is newer than all known.
  void note_epoch(std::uint64_t epoch, TimePoint now);

  void set_timer(TimePoint at, TimerKind kind, std::uint64_t subject);
  std::optional<TimePoint> next_timer() const;
  std::optional<Timer> take_due(TimePoint now);

  /// The id of the node that a target is on; the target's own when the map does not say.
  static std::string node_of(const StorageMap& of_map, const std::string& target_id);

 private:
  std::unordered_map<RequestId, Outstanding> outstanding_;
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  std::uint64_t last_id_ = 0;
  std::uint64_t last_timer_ = 0;
  std::uint64_t wanted_epoch_ = 0;
  TimePoint ask_again_at_{};
};

}  // namespace millrace::storage::store
