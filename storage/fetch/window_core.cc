#include "storage/fetch/window_core.h"

#include <utility>

#include "common/check.h"
#include "common/str_cat.h"
#include "storage/ec/crc32c.h"

namespace millrace::storage::fetch {
namespace {

SlotRef ref_of(const swa::WindowSlot& use) { return {use.slot, use.generation}; }

}  // namespace

const char* window_put_end_name(WindowPutEnd end) {
  switch (end) {
    case WindowPutEnd::kStored:
      return "stored";
    case WindowPutEnd::kAlreadyThere:
      return "already_there";
    case WindowPutEnd::kNoSlot:
      return "no_slot";
    case WindowPutEnd::kBadChecksum:
      return "bad_checksum";
    case WindowPutEnd::kInvalid:
      return "invalid";
    case WindowPutEnd::kNoPool:
      return "no_pool";
    case WindowPutEnd::kStopping:
      return "stopping";
    case WindowPutEnd::kBusy:
      return "busy";
  }
  CHECK(false, "no such end of a put");
}

WindowCore::WindowCore(const WindowLimits& limits, WindowOwner owner)
    : limits_(limits), owner_(std::move(owner)), pool_(limits.pool) {}

WindowActions WindowCore::on_event(WindowEvent event, TimePoint now) {
  std::visit([&](auto& value) { apply(value, now); }, event);
  return take_actions(now);
}

WindowActions WindowCore::end_session(SessionId session, TimePoint now) {
  const auto ended = sessions_.extract(session);
  if (!ended.empty()) {
    for (const auto& [request_id, get] : ended.mapped()) give_back(get, now);
  }
  return take_actions(now);
}

WindowActions WindowCore::on_timer(TimePoint now) { return take_actions(now); }

WindowCounters WindowCore::counters() const {
  WindowCounters counters = counters_;
  counters.pool = pool_.counters();
  counters.peer_reads = peer_reads_.size();
  return counters;
}

WindowActions WindowCore::take_actions(TimePoint now) {
  for (const swa::WindowSlot& use : pool_.expire(now)) {
    actions_.emplace_back(RetireWindow{ref_of(use)});
  }
  return std::exchange(actions_, {});
}

// ---- putting ------------------------------------------------------------------------------------

void WindowCore::apply(PutWindow& event, TimePoint now) {
  WindowStored stored{.request_id = event.request_id, .at = {}};
  const WindowPutEnd end = put(event, now, stored.at);
  ++counters_.puts[static_cast<std::size_t>(end)];
  actions_.emplace_back(Tell{event.session, std::move(stored)});
}

WindowPutEnd WindowCore::put(PutWindow& event, TimePoint now,
                             std::optional<swa::WindowLocation>& at) {
  if (limits_.pool.slot_count == 0) return WindowPutEnd::kNoPool;
  if (is_draining_) return WindowPutEnd::kStopping;
  if (event.window.empty() || event.window.size() > limits_.window_bytes) {
    return WindowPutEnd::kInvalid;
  }
  if (ec::crc32c(event.window) != event.crc) return WindowPutEnd::kBadChecksum;
  const auto bytes = static_cast<std::uint32_t>(event.window.size());
  const auto placed = pool_.store(event.key, bytes, swa::WindowOrigin::kOwn, now);
  if (!placed) return WindowPutEnd::kNoSlot;
  at = swa::WindowLocation{.host_id = owner_.host_id,
                           .address = owner_.address,
                           .incarnation = owner_.incarnation,
                           .slot = placed->slot.slot,
                           .generation = placed->slot.generation,
                           .bytes = bytes};
  if (!placed->is_new) return WindowPutEnd::kAlreadyThere;
  actions_.emplace_back(FillWindow{ref_of(placed->slot), event.key, std::move(event.window)});
  return WindowPutEnd::kStored;
}

// ---- getting ------------------------------------------------------------------------------------

void WindowCore::apply(GetWindow& event, TimePoint now) {
  const auto& gets = sessions_[event.session];
  if (gets.contains(event.request_id)) {
    actions_.emplace_back(RefuseSession{
        event.session, str_cat("window ", event.request_id, " was asked for while it was there")});
    return;
  }
  if (gets.size() >= limits_.max_gets_per_session) {
    return miss(event.session, event.request_id, swa::WindowMiss::kBusy);
  }
  if (const auto lease = pool_.lease(event.key, now)) {
    if (lease->bytes == event.from.bytes) {
      ++counters_.local_hits;
      return give(event.session, event.request_id, *lease);
    }
    pool_.release(lease->id, now);
    return miss(event.session, event.request_id, swa::WindowMiss::kCorrupt);
  }
  if (const auto reason = reason_not_to_read(event, now)) {
    return miss(event.session, event.request_id, *reason);
  }
  start_peer_read(event);
}

std::optional<swa::WindowMiss> WindowCore::reason_not_to_read(const GetWindow& event,
                                                              TimePoint now) const {
  if (limits_.pool.slot_count == 0) return swa::WindowMiss::kNoPool;
  if (event.from.host_id == owner_.host_id) {
    if (event.from.incarnation != owner_.incarnation) return swa::WindowMiss::kOtherOwner;
    return pool_.reason_gone({event.from.slot, event.from.generation});
  }
  if (event.from.address.empty() || limits_.max_peer_reads == 0) {
    return swa::WindowMiss::kUnreachable;
  }
  if (event.from.bytes == 0 || event.from.bytes > limits_.window_bytes) {
    return swa::WindowMiss::kCorrupt;
  }
  if (event.deadline <= now) return swa::WindowMiss::kDeadline;
  if (is_draining_ || peer_reads_.size() >= limits_.max_peer_reads) return swa::WindowMiss::kBusy;
  return std::nullopt;
}

void WindowCore::start_peer_read(GetWindow& event) {
  const std::uint64_t serial = ++last_peer_read_;
  peer_reads_.emplace(
      serial, PeerRead{.session = event.session, .request_id = event.request_id, .key = event.key});
  sessions_[event.session].emplace(event.request_id, Get{.peer_read = serial});
  actions_.emplace_back(StartPeerRead{serial, std::move(event.from), event.key, event.deadline});
}

void WindowCore::apply(PeerReadFinished& event, TimePoint now) {
  const auto node = peer_reads_.extract(event.serial);
  CHECK(!node.empty(), "a read from another machine ends once");
  const PeerRead& read = node.mapped();
  if (!read.is_wanted) return;
  sessions_[read.session].erase(read.request_id);
  if (event.read.miss) return miss(read.session, read.request_id, *event.read.miss);
  const auto placed = pool_.store(read.key, static_cast<std::uint32_t>(event.read.window.size()),
                                  swa::WindowOrigin::kCopy, now);
  if (!placed) return miss(read.session, read.request_id, swa::WindowMiss::kBusy);
  if (placed->is_new) {
    actions_.emplace_back(FillWindow{ref_of(placed->slot), read.key, std::move(event.read.window)});
  }
  const auto lease = pool_.lease(read.key, now);
  CHECK(lease, "what was just stored is there");
  ++counters_.remote_hits;
  give(read.session, read.request_id, *lease);
}

// ---- answering and giving back ------------------------------------------------------------------

void WindowCore::give(SessionId session, RequestId request_id,
                      const swa::WindowPool::Lease& lease) {
  sessions_[session].emplace(request_id, Get{.peer_read = 0, .lease = lease.id});
  actions_.emplace_back(Tell{session, WindowReady{request_id, ref_of(lease.slot)}});
}

void WindowCore::miss(SessionId session, RequestId request_id, swa::WindowMiss reason) {
  ++counters_.misses[static_cast<std::size_t>(reason)];
  actions_.emplace_back(Tell{session, WindowMissed{request_id, reason}});
}

void WindowCore::apply(const ReleaseWindow& event, TimePoint now) {
  const auto session = sessions_.find(event.session);
  if (session == sessions_.end()) return;
  const auto get = session->second.extract(event.request_id);
  if (get.empty()) return;
  if (get.mapped().peer_read != 0) {
    miss(event.session, event.request_id, swa::WindowMiss::kCancelled);
  }
  give_back(get.mapped(), now);
}

/// A read from another machine cannot be taken back: what it brings is dropped.
void WindowCore::give_back(const Get& get, TimePoint now) {
  if (get.peer_read != 0) {
    peer_reads_.at(get.peer_read).is_wanted = false;
  } else {
    pool_.release(get.lease, now);
  }
}

}  // namespace millrace::storage::fetch
