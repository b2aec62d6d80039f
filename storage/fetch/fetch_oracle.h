#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/str_cat.h"
#include "storage/fetch/fetch_core.h"

namespace millrace::storage::fetch {

/// A slow and obvious account of what FetchCore may do: it sees the same events, then each action,
/// and says what is wrong with it. It searches where the core keeps lists.
class FetchOracle {
 public:
  FetchOracle(const FetchLimits& limits, const ArenaCapacity& capacity)
      : limits_(limits), capacity_(capacity) {}

  struct ReadUse {
    std::uint64_t generation = 0;
    BlockKey key;
    bool is_filling = true;
    bool has_full_time = false;
    TimePoint deadline{};
  };
  struct WriteUse {
    std::uint64_t generation = 0;
    SessionId session = 0;
    bool is_sealed = false;
    TimePoint expires_at{};
  };
  using FetchName = std::pair<SessionId, RequestId>;

  std::set<SessionId> sessions;
  std::map<std::uint32_t, ReadUse> reads;    ///< slots in use
  std::map<std::uint32_t, WriteUse> writes;  ///< likewise
  /// (fetch, index) of blocks that a session has.
  std::map<std::pair<FetchName, std::uint32_t>, SlotRef> leases;
  std::vector<std::string> problems;
  int busy_ends = 0;
  int retries = 0;

  void before(const FetchEvent& event, TimePoint now) {
    now_ = now;
    std::visit([&](const auto& value) { note(value); }, event);
  }
  void on_action(const FetchAction& action) {
    std::visit([&](const auto& value) { check(value); }, action);
  }
  void after() {
    check_progress();
    for (auto& [name, fetch] : fetches_) {
      if (!fetch.is_done && fetch.told == fetch.limit)
        problem("a fetch was not told its end", name);
    }
    for (const auto& [slot, use] : reads) {
      if (!use.is_filling && !is_held(slot)) problem("nobody has slot ", slot);
    }
    std::erase_if(fetches_, [&](const auto& entry) {
      return entry.second.is_done && leases_of(entry.first) == 0;
    });
  }

  int in_flight() const {
    return static_cast<int>(std::count_if(
        reads.begin(), reads.end(), [](const auto& entry) { return entry.second.is_filling; }));
  }
  bool has_fetch(const FetchName& name) const { return fetches_.contains(name); }
  std::vector<FetchName> fetch_names() const {
    std::vector<FetchName> names;
    names.reserve(fetches_.size());
    for (const auto& [name, fetch] : fetches_) names.push_back(name);
    return names;
  }

 private:
  enum class Mark { kQueued, kIssued, kTold };
  struct Fetch {
    std::uint64_t arrival = 0;
    std::int64_t priority = 0;
    TimePoint deadline{};
    std::vector<BlockKey> keys;
    std::vector<Mark> marks;
    std::uint32_t limit = 0;
    std::uint32_t told = 0;
    bool is_done = false;
    FetchEnd end = FetchEnd::kComplete;
  };

  template <typename... Parts>
  void problem(const Parts&... parts) {
    problems.push_back(str_cat(parts...));
  }
  void problem(const char* what, const FetchName& name) {
    problem(what, ": fetch ", name.second, " of session ", name.first);
  }

  // ---- what the events mean

  void note(const SessionOpened& event) { sessions.insert(event.session); }
  void note(const SessionEnded& event) {
    sessions.erase(event.session);
    for (auto& [name, fetch] : fetches_) {
      if (name.first == event.session) give_up(name, fetch, FetchEnd::kCancelled);
    }
    std::erase_if(fetches_, [&](const auto& e) { return e.first.first == event.session; });
  }
  void note(const FetchBlocks& event) {
    const FetchName name{event.session, event.request_id};
    if (!sessions.contains(event.session) || fetches_.contains(name)) return;
    expected_refusal_ = refusal(event);
    if (expected_refusal_) return;
    Fetch& fetch = fetches_[name];
    fetch.arrival = ++arrivals_;
    fetch.priority = event.priority;
    fetch.deadline = event.deadline;
    fetch.keys = event.keys;
    fetch.marks.assign(event.keys.size(), Mark::kQueued);
    fetch.limit = static_cast<std::uint32_t>(event.keys.size());
  }
  std::optional<FetchEnd> refusal(const FetchBlocks& event) const {
    if (is_draining_) return FetchEnd::kStopping;
    if (event.keys.empty() || event.keys.size() > limits_.max_keys_per_fetch) {
      return FetchEnd::kInvalid;
    }
    const auto open = std::count_if(fetches_.begin(), fetches_.end(), [&](const auto& entry) {
      return entry.first.first == event.session;
    });
    if (static_cast<std::size_t>(open) >= limits_.max_fetches_per_session) return FetchEnd::kBusy;
    return event.deadline <= now_ ? std::optional(FetchEnd::kDeadline) : std::nullopt;
  }
  void note(const Reprioritise& event) {
    const auto found = fetches_.find({event.session, event.request_id});
    if (found != fetches_.end()) found->second.priority = event.priority;
  }
  void note(const CancelFetch& event) {
    const auto found = fetches_.find({event.session, event.request_id});
    if (found != fetches_.end()) give_up(found->first, found->second, FetchEnd::kCancelled);
  }
  void note(const ReleaseBlocks& event) {
    for (const std::uint32_t index : event.indices) {
      leases.erase({{event.session, event.request_id}, index});
    }
  }
  void note(const ReserveSlots&) {}
  void note(const ReturnSlot&) {}
  void note(const SealSlot&) {}
  void note(const ReadFinished& event) {
    const ReadUse use = reads.at(event.ref.slot);
    reads.at(event.ref.slot).is_filling = false;
    if (event.end == FetchEnd::kComplete) return;
    for (auto& [name, fetch] : fetches_) {
      for (std::uint32_t i = fetch.told; i < fetch.limit; ++i) {
        if (fetch.marks[i] != Mark::kIssued || fetch.keys[i] != use.key) continue;
        if (event.end == FetchEnd::kDeadline && !use.has_full_time && fetch.deadline > now_) {
          fetch.marks[i] = Mark::kQueued;
          ++retries;
        } else {
          cut(fetch, i, event.end);
        }
      }
    }
  }
  void note(const StoreFinished&) {}
  void note(const TimerDue&) {
    std::erase_if(leases, [&](const auto& lease) {
      return leased_at_.at(lease.first) + limits_.lease <= now_;
    });
    for (auto& [name, fetch] : fetches_) {
      if (!fetch.is_done && fetch.deadline <= now_) cut(fetch, fetch.told, FetchEnd::kDeadline);
    }
  }
  void note(const BeginDrain&) { is_draining_ = true; }

  void give_up(const FetchName& name, Fetch& fetch, FetchEnd end) {
    std::erase_if(leases, [&](const auto& lease) { return lease.first.first == name; });
    if (!fetch.is_done) cut(fetch, fetch.told, end);
  }
  static void cut(Fetch& fetch, std::uint32_t at, FetchEnd end) {
    fetch.limit = at;
    fetch.end = end;
  }

  // ---- what may be done

  void check(const StartRead& action) {
    const auto last = read_generations_[action.ref.slot];
    if (action.ref.slot >= capacity_.read_slots) problem("no such slot ", action.ref.slot);
    if (reads.contains(action.ref.slot)) problem("slot ", action.ref.slot, " is in use");
    if (action.ref.generation <= last) problem("generation of slot ", action.ref.slot);
    if (find_slot(action.key)) problem("a block is read twice");
    if (in_flight() >= static_cast<int>(limits_.max_reads_in_flight)) problem("too many reads");
    auto head = next_to_read();
    if ((!head || head->second != action.key) && explain_by_busy()) head = next_to_read();
    if (!head || head->second != action.key) {
      problem("not the first block of the queue is read");
      return;
    }
    Fetch& fetch = fetches_.at(head->first);
    fetch.marks[first_queued(fetch)] = Mark::kIssued;
    const TimePoint full = now_ + limits_.longest_read;
    if (action.deadline != std::min(full, fetch.deadline)) problem("the read's deadline");
    reads[action.ref.slot] = {.generation = action.ref.generation,
                              .key = action.key,
                              .has_full_time = fetch.deadline >= full,
                              .deadline = action.deadline};
    read_generations_[action.ref.slot] = action.ref.generation;
    starved_.reset();
  }

  void check(const PublishSlot& action) {
    const auto use = reads.find(action.ref.slot);
    if (use == reads.end() || use->second.is_filling || use->second.key != action.key ||
        use->second.generation != action.ref.generation) {
      problem("slot ", action.ref.slot, " is published without its block");
    }
  }

  void check(const RetireSlot& action) {
    if (action.arena == ArenaKind::kWrite) {
      const auto use = writes.find(action.ref.slot);
      if (use == writes.end() || use->second.generation != action.ref.generation) {
        problem("write slot ", action.ref.slot, " is not in use");
      } else {
        writes.erase(use);
      }
      return;
    }
    const auto use = reads.find(action.ref.slot);
    if (use == reads.end() || use->second.is_filling) {
      problem("slot ", action.ref.slot, " cannot be retired");
      return;
    }
    if (is_held(action.ref.slot) && !(explain_by_busy() && !is_held(action.ref.slot))) {
      problem("slot ", action.ref.slot, " is retired although somebody has it");
    }
    reads.erase(use);
  }

  void check(const OpenSlot& action) {
    if (writes.contains(action.ref.slot)) problem("write slot ", action.ref.slot, " is in use");
    if (action.ref.generation <= write_generations_[action.ref.slot]) problem("generation");
    write_generations_[action.ref.slot] = action.ref.generation;
    writes[action.ref.slot] = {.generation = action.ref.generation,
                               .expires_at = now_ + limits_.lease};
  }

  void check(const StartStore& action) {
    const auto use = writes.find(action.ref.slot);
    if (use == writes.end() || use->second.is_sealed) {
      problem("write slot ", action.ref.slot, " has nothing to store");
    } else {
      use->second.is_sealed = true;
    }
  }

  void check(const Tell& action) {
    if (!sessions.contains(action.session)) problem("session ", action.session, " is gone");
    std::visit([&](const auto& event) { check_told(action.session, event); }, action.event);
  }
  void check(const RefuseSession&) {}
  void check(const MeasureFetch& action) {
    if (action.time < std::chrono::nanoseconds::zero()) problem("a fetch ended before it began");
  }

  void check_told(SessionId session, const BlockReady& event) {
    const FetchName name{session, event.request_id};
    const auto found = fetches_.find(name);
    if (found == fetches_.end()) return problem("no such fetch", name);
    Fetch& fetch = found->second;
    if (event.index != fetch.told || event.index >= fetch.limit) return problem("order", name);
    if (fetch.marks[event.index] == Mark::kQueued) next_to_read();  // it was there for another
    if (fetch.marks[event.index] == Mark::kQueued && explain_by_busy()) next_to_read();
    if (fetch.marks[event.index] != Mark::kIssued) problem("nobody read it", name);
    const auto use = reads.find(event.ref.slot);
    if (use == reads.end() || use->second.is_filling ||
        use->second.generation != event.ref.generation ||
        use->second.key != fetch.keys[event.index]) {
      problem("the slot does not hold the block", name);
    }
    fetch.marks[event.index] = Mark::kTold;
    ++fetch.told;
    leases[{name, event.index}] = event.ref;
    leased_at_[{name, event.index}] = now_;
  }

  void check_told(SessionId session, const FetchDone& event) {
    const FetchName name{session, event.request_id};
    if (const auto refused = std::exchange(expected_refusal_, std::nullopt)) {
      if (*refused != event.end || event.ready_blocks != 0) problem("the refusal", name);
      return;
    }
    const auto found = fetches_.find(name);
    if (found == fetches_.end() || found->second.is_done) return problem("a second end", name);
    Fetch& fetch = found->second;
    if (event.end == FetchEnd::kBusy && fetch.end != FetchEnd::kBusy) explain_by_busy();
    const bool is_right =
        event.ready_blocks == fetch.told && fetch.told == fetch.limit && event.end == fetch.end;
    if (!is_right)
      problem("ended as ", fetch_end_name(event.end), " instead of ", fetch_end_name(fetch.end),
              " at ", event.ready_blocks);
    fetch.is_done = true;
  }

  void check_told(SessionId session, const WriteSlots& event) {
    for (const SlotRef& ref : event.slots) {
      const auto use = writes.find(ref.slot);
      if (use == writes.end() || use->second.generation != ref.generation) {
        problem("write slot ", ref.slot, " is not open");
      } else {
        use->second.session = session;
      }
    }
  }
  void check_told(SessionId, const BlockStored&) {}
  template <typename Window>
  void check_told(SessionId, const Window&) {
    problem("blocks and windows have nothing to do with each other");
  }

  // ---- the queue, by search

  static std::uint32_t first_queued(const Fetch& fetch) {
    for (std::uint32_t i = 0; i < fetch.limit; ++i) {
      if (fetch.marks[i] == Mark::kQueued) return i;
    }
    return fetch.limit;
  }

  /// The block that must be read next, and whose it is. Blocks before it that are in a slot already
  /// count as read.
  std::optional<std::pair<FetchName, BlockKey>> next_to_read() {
    while (true) {
      const FetchName* best = nullptr;
      for (const auto& [name, fetch] : fetches_) {
        if (fetch.is_done || first_queued(fetch) == fetch.limit) continue;
        if (best == nullptr ||
            std::pair(fetch.priority, fetch.arrival) <
                std::pair(fetches_.at(*best).priority, fetches_.at(*best).arrival)) {
          best = &name;
        }
      }
      if (best == nullptr) return std::nullopt;
      Fetch& fetch = fetches_.at(*best);
      const std::uint32_t index = first_queued(fetch);
      if (!find_slot(fetch.keys[index])) return std::pair(*best, fetch.keys[index]);
      fetch.marks[index] = Mark::kIssued;
    }
  }

  /// Whether the end of the first fetch's patience explains what was just done.
  bool explain_by_busy() {
    if (!starved_ || now_ - starved_->second < limits_.slot_wait) return false;
    Fetch& fetch = fetches_.at(starved_->first);
    cut(fetch, first_queued(fetch), FetchEnd::kBusy);
    starved_.reset();
    ++busy_ends;
    return true;
  }

  void check_progress() {
    while (in_flight() < static_cast<int>(limits_.max_reads_in_flight)) {
      const auto head = next_to_read();
      if (!head) break;
      if (reads.size() < capacity_.read_slots) return problem("a slot is free, and not used");
      if (in_flight() > 0) break;
      if (!starved_ || starved_->first != head->first) {
        starved_ = {head->first, now_};
        return;
      }
      if (!explain_by_busy()) return;
    }
    starved_.reset();
  }

  std::optional<std::uint32_t> find_slot(const BlockKey& key) const {
    for (const auto& [slot, use] : reads) {
      if (use.key == key) return slot;
    }
    return std::nullopt;
  }

  /// A session has it, or will be told of it when the blocks before it are there.
  bool is_held(std::uint32_t slot) const {
    for (const auto& [block, ref] : leases) {
      if (ref.slot == slot) return true;
    }
    const BlockKey& key = reads.at(slot).key;
    for (const auto& [name, fetch] : fetches_) {
      for (std::uint32_t i = fetch.told; i < fetch.limit; ++i) {
        if (fetch.marks[i] == Mark::kIssued && fetch.keys[i] == key) return true;
      }
    }
    return false;
  }

  int leases_of(const FetchName& name) const {
    return static_cast<int>(std::count_if(leases.begin(), leases.end(), [&](const auto& lease) {
      return lease.first.first == name;
    }));
  }

  const FetchLimits limits_;
  const ArenaCapacity capacity_;
  TimePoint now_{};
  std::map<FetchName, Fetch> fetches_;
  std::map<std::pair<FetchName, std::uint32_t>, TimePoint> leased_at_;
  std::map<std::uint32_t, std::uint64_t> read_generations_;
  std::map<std::uint32_t, std::uint64_t> write_generations_;
  std::optional<std::pair<FetchName, TimePoint>> starved_;
  std::optional<FetchEnd> expected_refusal_;
  std::uint64_t arrivals_ = 0;
  bool is_draining_ = false;
};

}  // namespace millrace::storage::fetch
