#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "storage/fetch/fetch_types.h"
#include "storage/fetch/read_slots.h"
#include "storage/fetch/write_table.h"

namespace millrace::storage::fetch {

struct ArenaCapacity {
  std::uint32_t read_slots = 0;
  std::uint32_t write_slots = 0;
  std::uint32_t block_bytes = 0;  ///< of the largest block
};

/// Decides which block is read into which slot when, who may use it how long, and what becomes of
/// blocks that go the other way. Pure: no I/O, no clock, no lock; one thread.
///
/// Blocks are read in the order of (priority, arrival of the fetch, index in the fetch), so many at
/// one time. A slot is taken when the read starts. A block that another fetch has read, or is
/// reading, is shared: read once, in one slot, until the last of its users has given it back.
///
/// A fetch is told of ready blocks in the order of its keys, then that it is done. The first block
/// that cannot be had ends it there: what lies behind is not read, or given back. So does the
/// deadline. Nothing waits without bound: the first fetch of the queue ends short when engines have
/// kept every slot for FetchLimits::slot_wait; those behind it wait for their turn or their
/// deadline.
///
/// Ready blocks are leased to the session until it gives them back, cancels the fetch or ends, or
/// until FetchLimits::lease after it was told. The slot is used anew only then, under a new
/// generation.
class FetchCore {
 public:
  FetchCore(const FetchLimits& limits, const ArenaCapacity& capacity);

  /// Applies one event; returns what is to be done about it, in order.
  FetchActions on_event(FetchEvent event, TimePoint now);

  /// When TimerDue is wanted; nullopt: not until something else happens.
  std::optional<TimePoint> next_timer() const;

  FetchCounters counters() const;
  /// No fetch is open, no read or store is under way.
  bool is_idle() const;

 private:
  using FetchSerial = std::uint64_t;  ///< order of arrival

  enum class BlockState : std::uint8_t {
    kQueued,
    kReading,
    kReady,   ///< held, but a block before it is not ready
    kLeased,  ///< told to the session
    kGone,    ///< given back, or not wanted any more
  };
  struct Block {
    BlockState state = BlockState::kQueued;
    std::uint32_t slot = 0;
    TimePoint leased_at{};
  };
  struct Fetch {
    FetchBlocks asked;
    TimePoint asked_at{};
    std::vector<Block> blocks;
    std::uint32_t limit = 0;        ///< blocks from here on are not wanted
    std::uint32_t next_issue = 0;   ///< none before it is queued
    std::uint32_t next_report = 0;  ///< the session was told of those before it
    std::uint32_t next_expiry = 0;  ///< none before it is leased
    std::uint32_t leases = 0;
    FetchEnd end = FetchEnd::kComplete;  ///< what it will end with
    bool is_done = false;
    std::optional<TimePoint> timer;
  };

  void apply(const SessionOpened& event, TimePoint now);
  void apply(const SessionEnded& event, TimePoint now);
  void apply(FetchBlocks& event, TimePoint now);
  void apply(const Reprioritise& event, TimePoint now);
  void apply(const CancelFetch& event, TimePoint now);
  void apply(const ReleaseBlocks& event, TimePoint now);
  void apply(const ReserveSlots& event, TimePoint now);
  void apply(const ReturnSlot& event, TimePoint now);
  void apply(const SealSlot& event, TimePoint now);
  void apply(const ReadFinished& event, TimePoint now);
  void apply(const StoreFinished& event, TimePoint now);
  void apply(const TimerDue& event, TimePoint now);
  void apply(const BeginDrain& event, TimePoint now);

  std::optional<FetchEnd> reason_to_refuse(const FetchBlocks& asked, std::size_t open) const;
  Fetch* find(SessionId session, RequestId request_id, FetchSerial& serial);

  void issue(TimePoint now);
  /// False: the fetch waits for a slot.
  bool issue_block(FetchSerial serial, Fetch& fetch, std::uint32_t index, TimePoint now);
  void start_read(FetchSerial serial, Fetch& fetch, std::uint32_t index, TimePoint now);
  void join(FetchSerial serial, Fetch& fetch, std::uint32_t index, std::uint32_t slot,
            TimePoint now);

  void on_block_there(std::uint32_t slot, TimePoint now);
  void on_block_missed(std::uint32_t slot, FetchEnd end, TimePoint now);
  void cut(FetchSerial serial, std::uint32_t at, FetchEnd end, TimePoint now);
  void report(FetchSerial serial, TimePoint now);
  void cancel(FetchSerial serial, TimePoint now);
  void release_block(Fetch& fetch, Block& block);
  void release_slot(std::uint32_t slot);
  void expire_leases(FetchSerial serial, TimePoint now);
  /// Forgets a fetch that is done and holds nothing; else sets its timer.
  void settle(FetchSerial serial);
  void end_store(const SlotRef& ref, SessionId session, StoreEnd end);

  void tell(SessionId session, SessionEvent event);

  const FetchLimits limits_;
  const ArenaCapacity capacity_;
  FetchActions actions_;  ///< of the event that is being handled
  FetchCounters counters_;

  std::map<SessionId, std::map<RequestId, FetchSerial>> sessions_;
  std::map<FetchSerial, Fetch> fetches_;
  FetchSerial last_serial_ = 0;
  std::uint64_t open_fetches_ = 0;
  std::uint64_t keys_ = 0;
  std::set<std::pair<std::int64_t, FetchSerial>> queue_;  ///< fetches with queued blocks
  std::set<std::pair<TimePoint, FetchSerial>> timers_;
  ReadSlots read_slots_;
  std::uint64_t reads_in_flight_ = 0;
  WriteTable write_table_;
  /// The fetch at the head of the queue that finds every slot leased, and since when.
  std::optional<std::pair<FetchSerial, TimePoint>> starved_;
  bool is_draining_ = false;
};

}  // namespace millrace::storage::fetch
