#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/time_point.h"
#include "storage/map/storage_map.h"
#include "storage/wire/messages.h"

namespace millrace::storage::node {

/// A target's group as its newest map has it.
struct GroupView {
  std::uint64_t epoch = 0;
  Group group;
  std::uint8_t own_index = 0;
  int data_shards = 0;
  int parity_shards = 0;

  const Member& own() const { return group.members[own_index]; }
  /// The others that may be asked: up or rebuilding. Indices, ascending.
  std::vector<std::uint8_t> live_others() const;
  /// This target decides what of the group's blocks is evicted.
  bool is_owner() const { return owner_of(group) == own_index; }
};

/// nullopt: the target is in no group of the map.
std::optional<GroupView> group_view(const StorageMap& map, std::string_view target_id);

/// The way to other targets. send() never blocks and never answers from within; the answer, if one
/// comes, goes to PeerCalls::on_reply() with the id of the call.
class PeerLink {
 public:
  virtual ~PeerLink() = default;
  virtual void send(const std::string& target_id, ShardOperation operation,
                    std::uint64_t call_id) = 0;
};

/// What a target has asked of others: each call ends exactly once, by its answer or its deadline.
/// Bounded. One thread.
class PeerCalls {
 public:
  PeerCalls(PeerLink& link, std::chrono::nanoseconds timeout, std::size_t capacity)
      : link_(link), timeout_(timeout), capacity_(capacity) {}

  /// `done` is never called from within. kUnavailable: no answer in time; kBusy: too many calls.
  void ask(const std::string& target_id, ShardOperation operation, ShardReplyCallback done,
           TimePoint now);
  /// An answer that came; one that came too late does nothing.
  void on_reply(std::uint64_t call_id, ShardReply reply);
  /// Ends the calls that are overdue.
  void expire(TimePoint now);
  std::size_t in_flight() const { return calls_.size(); }

 private:
  struct Deadline {
    TimePoint at;
    std::uint64_t call_id;
  };

  PeerLink& link_;
  const std::chrono::nanoseconds timeout_;
  const std::size_t capacity_;
  std::uint64_t next_id_ = 1;
  std::unordered_map<std::uint64_t, ShardReplyCallback> calls_;
  std::deque<Deadline> deadlines_;  // in order: one timeout for all
  std::vector<ShardReplyCallback> refused_;
};

}  // namespace millrace::storage::node
