#include "storage/fetch/fetch_core.h"

#include <algorithm>

#include "common/check.h"
#include "common/str_cat.h"

namespace millrace::storage::fetch {

FetchCore::FetchCore(const FetchLimits& limits, const ArenaCapacity& capacity)
    : limits_(limits),
      capacity_(capacity),
      read_slots_(capacity.read_slots),
      write_table_(capacity.write_slots) {}

FetchActions FetchCore::on_event(FetchEvent event, TimePoint now) {
  actions_.clear();
  std::visit([&](auto& value) { apply(value, now); }, event);
  issue(now);
  return std::exchange(actions_, {});
}

std::optional<TimePoint> FetchCore::next_timer() const {
  std::optional<TimePoint> next = write_table_.next_expiry();
  const auto consider = [&](TimePoint at) { next = next ? std::min(*next, at) : at; };
  if (!timers_.empty()) consider(timers_.begin()->first);
  if (starved_) consider(starved_->second + limits_.slot_wait);
  return next;
}

FetchCounters FetchCore::counters() const {
  FetchCounters counters = counters_;
  counters.sessions = sessions_.size();
  counters.open_fetches = open_fetches_;
  for (const auto& [serial, fetch] : fetches_) {
    counters.leased_blocks += fetch.leases;
    for (std::uint32_t index = fetch.next_issue; index < fetch.limit; ++index) {
      if (fetch.blocks[index].state == BlockState::kQueued) ++counters.queued_blocks;
    }
  }
  counters.filling_slots = read_slots_.count(SlotState::kFilling);
  counters.ready_slots = read_slots_.count(SlotState::kReady);
  counters.writing_slots = write_table_.count(SlotState::kWriting);
  counters.sealed_slots = write_table_.count(SlotState::kSealed);
  return counters;
}

bool FetchCore::is_idle() const {
  return open_fetches_ == 0 && reads_in_flight_ == 0 && write_table_.count(SlotState::kSealed) == 0;
}

// ---- sessions and fetches -----------------------------------------------------------------------

void FetchCore::apply(const SessionOpened& event, TimePoint) { sessions_[event.session]; }

void FetchCore::apply(const SessionEnded& event, TimePoint now) {
  const auto session = sessions_.extract(event.session);  // from here on it is told nothing
  if (session.empty()) return;
  for (const auto& [request_id, serial] : session.mapped()) cancel(serial, now);
  for (const SlotRef& ref : write_table_.reserved_by(event.session)) {
    write_table_.give_back(ref);
    actions_.emplace_back(RetireSlot{ArenaKind::kWrite, ref});
  }
}

std::optional<FetchEnd> FetchCore::reason_to_refuse(const FetchBlocks& asked,
                                                    std::size_t open) const {
  if (is_draining_) return FetchEnd::kStopping;
  const std::size_t keys = asked.keys.size();
  if (keys == 0 || keys > limits_.max_keys_per_fetch || asked.block_bytes == 0 ||
      asked.block_bytes > capacity_.block_bytes) {
    return FetchEnd::kInvalid;
  }
  if (open >= limits_.max_fetches_per_session || keys_ + keys > limits_.max_keys) {
    return FetchEnd::kBusy;
  }
  return std::nullopt;
}

void FetchCore::apply(FetchBlocks& event, TimePoint now) {
  const auto session = sessions_.find(event.session);
  if (session == sessions_.end()) return;
  if (session->second.contains(event.request_id)) {
    actions_.emplace_back(RefuseSession{
        event.session, str_cat("fetch ", event.request_id, " was asked for while it was there")});
    return;
  }
  ++counters_.fetches;
  counters_.asked_blocks += event.keys.size();
  std::optional<FetchEnd> refusal = reason_to_refuse(event, session->second.size());
  if (!refusal && event.deadline <= now) refusal = FetchEnd::kDeadline;
  if (refusal) {
    ++counters_.ends[static_cast<std::size_t>(*refusal)];
    tell(event.session, FetchDone{event.request_id, 0, *refusal});
    return;
  }
  const FetchSerial serial = ++last_serial_;
  session->second.emplace(event.request_id, serial);
  keys_ += event.keys.size();
  ++open_fetches_;
  Fetch& fetch = fetches_[serial];
  fetch.asked = std::move(event);
  fetch.asked_at = now;
  fetch.limit = static_cast<std::uint32_t>(fetch.asked.keys.size());
  fetch.blocks.resize(fetch.limit);
  queue_.emplace(fetch.asked.priority, serial);
  settle(serial);
}

FetchCore::Fetch* FetchCore::find(SessionId session, RequestId request_id, FetchSerial& serial) {
  const auto of_session = sessions_.find(session);
  if (of_session == sessions_.end()) return nullptr;
  const auto found = of_session->second.find(request_id);
  if (found == of_session->second.end()) return nullptr;
  serial = found->second;
  return &fetches_.at(serial);
}

void FetchCore::apply(const Reprioritise& event, TimePoint) {
  FetchSerial serial = 0;
  Fetch* fetch = find(event.session, event.request_id, serial);
  if (fetch == nullptr) return;
  const bool is_queued = queue_.erase({fetch->asked.priority, serial}) > 0;
  fetch->asked.priority = event.priority;
  if (is_queued) queue_.emplace(event.priority, serial);
}

void FetchCore::apply(const CancelFetch& event, TimePoint now) {
  FetchSerial serial = 0;
  if (find(event.session, event.request_id, serial) != nullptr) cancel(serial, now);
}

void FetchCore::apply(const ReleaseBlocks& event, TimePoint) {
  FetchSerial serial = 0;
  Fetch* fetch = find(event.session, event.request_id, serial);
  if (fetch == nullptr) return;
  for (const std::uint32_t index : event.indices) {
    if (index < fetch->next_report) release_block(*fetch, fetch->blocks[index]);
  }
  settle(serial);
}

void FetchCore::cancel(FetchSerial serial, TimePoint now) {
  Fetch& fetch = fetches_.at(serial);
  for (std::uint32_t index = 0; index < fetch.next_report; ++index) {
    release_block(fetch, fetch.blocks[index]);
  }
  fetch.is_done ? settle(serial) : cut(serial, fetch.next_report, FetchEnd::kCancelled, now);
}

// ---- reading ------------------------------------------------------------------------------------

void FetchCore::issue(TimePoint now) {
  while (!queue_.empty() && reads_in_flight_ < limits_.max_reads_in_flight) {
    const FetchSerial serial = queue_.begin()->second;
    Fetch& fetch = fetches_.at(serial);
    while (fetch.next_issue < fetch.limit &&
           fetch.blocks[fetch.next_issue].state != BlockState::kQueued) {
      ++fetch.next_issue;
    }
    if (fetch.next_issue >= fetch.limit) {
      queue_.erase(queue_.begin());
    } else if (!issue_block(serial, fetch, fetch.next_issue, now)) {
      return;
    }
  }
  starved_.reset();
}

bool FetchCore::issue_block(FetchSerial serial, Fetch& fetch, std::uint32_t index, TimePoint now) {
  if (const auto slot = read_slots_.find(fetch.asked.keys[index])) {
    join(serial, fetch, index, *slot, now);
    return true;
  }
  if (read_slots_.has_free()) {
    start_read(serial, fetch, index, now);
    return true;
  }
  if (reads_in_flight_ > 0) {
    // What is under way ends soon, and may bring a slot: so far, nobody keeps us from one.
    starved_.reset();
    return false;
  }
  if (!starved_ || starved_->first != serial) {
    starved_ = {serial, now};
    ++counters_.slot_waits;
  }
  if (now - starved_->second < limits_.slot_wait) return false;
  cut(serial, index, FetchEnd::kBusy, now);
  return true;
}

void FetchCore::start_read(FetchSerial serial, Fetch& fetch, std::uint32_t index, TimePoint now) {
  // Getting a slot starts the wait for the next one anew.
  starved_.reset();
  const BlockKey& key = fetch.asked.keys[index];
  const std::uint32_t slot = read_slots_.take(key);
  const TimePoint full_time = now + limits_.longest_read;
  ReadSlot& taken = read_slots_.at(slot);
  taken.block_bytes = fetch.asked.block_bytes;
  taken.has_full_time = fetch.asked.deadline >= full_time;
  taken.waiters.push_back({serial, index});
  fetch.blocks[index].state = BlockState::kReading;
  fetch.blocks[index].slot = slot;
  ++reads_in_flight_;
  ++counters_.reads;
  actions_.emplace_back(StartRead{.ref = read_slots_.ref(slot),
                                  .key = key,
                                  .block_bytes = taken.block_bytes,
                                  .deadline = std::min(full_time, fetch.asked.deadline)});
}

void FetchCore::join(FetchSerial serial, Fetch& fetch, std::uint32_t index, std::uint32_t slot,
                     TimePoint now) {
  ReadSlot& shared = read_slots_.at(slot);
  if (shared.block_bytes != fetch.asked.block_bytes) {
    cut(serial, index, FetchEnd::kOtherSize, now);
    return;
  }
  ++counters_.shared_blocks;
  fetch.blocks[index].slot = slot;
  if (shared.state == SlotState::kFilling) {
    fetch.blocks[index].state = BlockState::kReading;
    shared.waiters.push_back({serial, index});
    return;
  }
  fetch.blocks[index].state = BlockState::kReady;
  ++shared.holders;
  report(serial, now);
}

void FetchCore::apply(const ReadFinished& event, TimePoint now) {
  ReadSlot* slot = read_slots_.find_use(event.ref);
  CHECK(slot != nullptr && slot->state == SlotState::kFilling, "a read finishes once");
  --reads_in_flight_;
  if (event.end == FetchEnd::kComplete) {
    on_block_there(event.ref.slot, now);
  } else {
    on_block_missed(event.ref.slot, event.end, now);
  }
}

void FetchCore::on_block_there(std::uint32_t slot_index, TimePoint now) {
  ReadSlot& slot = read_slots_.at(slot_index);
  if (slot.waiters.empty()) {
    ++counters_.unwanted_reads;
    release_slot(slot_index);
    return;
  }
  slot.state = SlotState::kReady;
  actions_.emplace_back(PublishSlot{read_slots_.ref(slot_index), slot.key, slot.block_bytes});
  const std::vector<BlockWaiter> waiters = std::exchange(slot.waiters, {});
  // All of them hold the block before the first is told: telling may give it back.
  for (const BlockWaiter& waiter : waiters) {
    fetches_.at(waiter.fetch).blocks[waiter.index].state = BlockState::kReady;
    ++slot.holders;
  }
  for (const BlockWaiter& waiter : waiters) report(waiter.fetch, now);
}

void FetchCore::on_block_missed(std::uint32_t slot_index, FetchEnd end, TimePoint now) {
  ReadSlot& slot = read_slots_.at(slot_index);
  const std::vector<BlockWaiter> waiters = std::exchange(slot.waiters, {});
  // The time of the fetch that started the read was over; another's may not be.
  const bool is_tried_again = end == FetchEnd::kDeadline && !slot.has_full_time;
  release_slot(slot_index);
  for (const BlockWaiter& waiter : waiters) {
    const auto found = fetches_.find(waiter.fetch);
    if (found == fetches_.end()) continue;  // cut short by a waiter before this one
    Fetch& fetch = found->second;
    Block& block = fetch.blocks[waiter.index];
    if (block.state != BlockState::kReading) continue;  // likewise
    if (is_tried_again && fetch.asked.deadline > now) {
      block.state = BlockState::kQueued;
      fetch.next_issue = std::min(fetch.next_issue, waiter.index);
      queue_.emplace(fetch.asked.priority, waiter.fetch);
    } else {
      cut(waiter.fetch, waiter.index, end, now);
    }
  }
}

/// Blocks from `at` on, which is not told yet, are not wanted any more.
void FetchCore::cut(FetchSerial serial, std::uint32_t at, FetchEnd end, TimePoint now) {
  Fetch& fetch = fetches_.at(serial);
  for (std::uint32_t index = at; index < fetch.limit; ++index) {
    Block& block = fetch.blocks[index];
    const BlockState state = std::exchange(block.state, BlockState::kGone);
    if (state == BlockState::kReading) {
      std::erase_if(read_slots_.at(block.slot).waiters, [&](const BlockWaiter& waiter) {
        return waiter.fetch == serial && waiter.index == index;
      });
    } else if (state == BlockState::kReady) {
      if (--read_slots_.at(block.slot).holders == 0) release_slot(block.slot);
    }
  }
  fetch.limit = at;
  fetch.end = end;
  report(serial, now);
}

/// Tells of blocks that are ready, and of the end.
void FetchCore::report(FetchSerial serial, TimePoint now) {
  Fetch& fetch = fetches_.at(serial);
  if (fetch.is_done) return;
  const SessionId session = fetch.asked.session;
  while (fetch.next_report < fetch.limit &&
         fetch.blocks[fetch.next_report].state == BlockState::kReady) {
    Block& block = fetch.blocks[fetch.next_report];
    block.state = BlockState::kLeased;
    block.leased_at = now;
    ++fetch.leases;
    ++counters_.ready_blocks;
    tell(session,
         BlockReady{fetch.asked.request_id, fetch.next_report, read_slots_.ref(block.slot)});
    ++fetch.next_report;
  }
  if (fetch.next_report == fetch.limit) {
    fetch.is_done = true;
    --open_fetches_;
    queue_.erase({fetch.asked.priority, serial});
    ++counters_.ends[static_cast<std::size_t>(fetch.end)];
    actions_.emplace_back(MeasureFetch{now - fetch.asked_at});
    tell(session, FetchDone{fetch.asked.request_id, fetch.next_report, fetch.end});
  }
  settle(serial);
}

// ---- giving back --------------------------------------------------------------------------------

void FetchCore::release_block(Fetch& fetch, Block& block) {
  if (block.state != BlockState::kLeased) return;
  block.state = BlockState::kGone;
  --fetch.leases;
  if (--read_slots_.at(block.slot).holders == 0) release_slot(block.slot);
}

void FetchCore::release_slot(std::uint32_t slot) {
  actions_.emplace_back(RetireSlot{ArenaKind::kRead, read_slots_.ref(slot)});
  read_slots_.give_back(slot);
}

void FetchCore::expire_leases(FetchSerial serial, TimePoint now) {
  Fetch& fetch = fetches_.at(serial);
  for (; fetch.next_expiry < fetch.next_report; ++fetch.next_expiry) {
    Block& block = fetch.blocks[fetch.next_expiry];
    if (block.state != BlockState::kLeased) continue;
    if (block.leased_at + limits_.lease > now) return;
    ++counters_.leases_lost;
    release_block(fetch, block);
  }
}

void FetchCore::settle(FetchSerial serial) {
  Fetch& fetch = fetches_.at(serial);
  if (fetch.timer) timers_.erase({*fetch.timer, serial});
  fetch.timer.reset();
  if (fetch.is_done && fetch.leases == 0) {
    keys_ -= fetch.asked.keys.size();
    const auto session = sessions_.find(fetch.asked.session);
    if (session != sessions_.end()) session->second.erase(fetch.asked.request_id);
    fetches_.erase(serial);
    return;
  }
  if (!fetch.is_done) fetch.timer = fetch.asked.deadline;
  while (fetch.next_expiry < fetch.next_report &&
         fetch.blocks[fetch.next_expiry].state != BlockState::kLeased) {
    ++fetch.next_expiry;
  }
  if (fetch.next_expiry < fetch.next_report) {
    const TimePoint expiry = fetch.blocks[fetch.next_expiry].leased_at + limits_.lease;
    fetch.timer = fetch.timer ? std::min(*fetch.timer, expiry) : expiry;
  }
  timers_.emplace(*fetch.timer, serial);
}

void FetchCore::apply(const TimerDue&, TimePoint now) {
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const FetchSerial serial = timers_.begin()->second;
    expire_leases(serial, now);
    Fetch& fetch = fetches_.at(serial);
    if (!fetch.is_done && fetch.asked.deadline <= now) {
      cut(serial, fetch.next_report, FetchEnd::kDeadline, now);
    } else {
      settle(serial);
    }
  }
  while (const std::optional<SlotRef> ref = write_table_.overdue(now)) {
    ++counters_.leases_lost;
    write_table_.give_back(*ref);
    actions_.emplace_back(RetireSlot{ArenaKind::kWrite, *ref});
  }
}

void FetchCore::apply(const BeginDrain&, TimePoint) { is_draining_ = true; }

// ---- writing ------------------------------------------------------------------------------------

void FetchCore::apply(const ReserveSlots& event, TimePoint now) {
  if (!sessions_.contains(event.session)) return;
  const std::uint32_t count = is_draining_ ? 0 : event.count;
  std::vector<SlotRef> slots = write_table_.reserve(event.session, count, now + limits_.lease);
  for (const SlotRef& ref : slots) actions_.emplace_back(OpenSlot{ref});
  tell(event.session, WriteSlots{event.request_id, std::move(slots)});
}

void FetchCore::apply(const ReturnSlot& event, TimePoint) {
  if (!write_table_.is_reserved(event.ref, event.session)) return;
  write_table_.give_back(event.ref);
  actions_.emplace_back(RetireSlot{ArenaKind::kWrite, event.ref});
}

void FetchCore::apply(const SealSlot& event, TimePoint now) {
  if (!sessions_.contains(event.session)) return;
  if (!write_table_.is_reserved(event.ref, event.session)) {
    ++counters_.stores[static_cast<std::size_t>(StoreEnd::kLeaseLost)];
    tell(event.session, BlockStored{event.ref, StoreEnd::kLeaseLost});
    return;
  }
  write_table_.seal(event.ref);
  if (event.block_bytes == 0 || event.block_bytes > capacity_.block_bytes) {
    end_store(event.ref, event.session, StoreEnd::kInvalid);
    return;
  }
  actions_.emplace_back(StartStore{.ref = event.ref,
                                   .key = event.key,
                                   .depth = event.depth,
                                   .ttl = event.ttl,
                                   .block_bytes = event.block_bytes,
                                   .crc = event.crc,
                                   .deadline = now + limits_.longest_write});
}

void FetchCore::apply(const StoreFinished& event, TimePoint) {
  const std::optional<SessionId> session = write_table_.sealed_by(event.ref);
  CHECK(session.has_value(), "a store finishes once");
  end_store(event.ref, *session, event.end);
}

void FetchCore::end_store(const SlotRef& ref, SessionId session, StoreEnd end) {
  ++counters_.stores[static_cast<std::size_t>(end)];
  write_table_.give_back(ref);
  actions_.emplace_back(RetireSlot{ArenaKind::kWrite, ref});
  tell(session, BlockStored{ref, end});
}

void FetchCore::tell(SessionId session, SessionEvent event) {
  if (sessions_.contains(session)) actions_.emplace_back(Tell{session, std::move(event)});
}

// ---- names --------------------------------------------------------------------------------------

const char* fetch_end_name(FetchEnd end) {
  switch (end) {
    case FetchEnd::kComplete:
      return "complete";
    case FetchEnd::kNotFound:
      return "not_found";
    case FetchEnd::kUnreadable:
      return "unreadable";
    case FetchEnd::kDeadline:
      return "deadline";
    case FetchEnd::kBusy:
      return "busy";
    case FetchEnd::kNoMap:
      return "no_map";
    case FetchEnd::kOtherSize:
      return "other_size";
    case FetchEnd::kInvalid:
      return "invalid";
    case FetchEnd::kCancelled:
      return "cancelled";
    case FetchEnd::kStopping:
      return "stopping";
  }
  CHECK(false, "no such end of a fetch");
}

const char* store_end_name(StoreEnd end) {
  switch (end) {
    case StoreEnd::kStored:
      return "stored";
    case StoreEnd::kAlreadyThere:
      return "already_there";
    case StoreEnd::kFailed:
      return "failed";
    case StoreEnd::kDeadline:
      return "deadline";
    case StoreEnd::kBusy:
      return "busy";
    case StoreEnd::kNoMap:
      return "no_map";
    case StoreEnd::kBadChecksum:
      return "bad_checksum";
    case StoreEnd::kLeaseLost:
      return "lease_lost";
    case StoreEnd::kInvalid:
      return "invalid";
    case StoreEnd::kStopping:
      return "stopping";
  }
  CHECK(false, "no such end of a store");
}

}  // namespace millrace::storage::fetch
