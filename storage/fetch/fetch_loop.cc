#include "storage/fetch/fetch_loop.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

namespace millrace::storage::fetch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kMetricsInterval{200};

std::chrono::milliseconds time_left(TimePoint deadline, TimePoint now) {
  return std::max(std::chrono::milliseconds(1),
                  std::chrono::ceil<std::chrono::milliseconds>(deadline - now));
}

}  // namespace

FetchLoop::FetchLoop(const FetchLimits& limits, std::uint32_t block_bytes, FetchArenas arenas,
                     std::unique_ptr<BlockIo> io, EventQueue& queue, SessionSink& sink,
                     Registry& registry)
    : queue_(queue),
      sink_(sink),
      arenas_(std::move(arenas)),
      io_(std::move(io)),
      core_(limits, {.read_slots = arenas_.read.slot_count(),
                     .write_slots = arenas_.write.slot_count(),
                     .block_bytes = block_bytes}),
      metrics_(registry, arenas_.read.slot_count(), arenas_.write.slot_count()),
      thread_([this] { run(); }) {
  pthread_setname_np(thread_.native_handle(), "kv-fetch");
}

FetchLoop::~FetchLoop() {
  is_stopping_ = true;
  queue_.wake();
  thread_.join();
}

void FetchLoop::run() {
  TimePoint metrics_due = Clock::now();
  while (!is_stopping_) {
    TimePoint until = metrics_due;
    if (const auto timer = core_.next_timer()) until = std::min(until, *timer);
    std::vector<FetchEvent> events = queue_.pop_all(until - Clock::now());
    const TimePoint now = Clock::now();
    for (FetchEvent& event : events) handle(std::move(event), now);
    if (const auto timer = core_.next_timer(); timer && *timer <= now) handle(TimerDue{}, now);
    // Before the words go out: whoever acts on an answer finds the loop as it says.
    is_idle_.store(core_.is_idle(), std::memory_order_release);
    deliver();
    if (now < metrics_due) continue;
    metrics_.publish(core_.counters());
    metrics_due = now + kMetricsInterval;
  }
  metrics_.publish(core_.counters());
}

void FetchLoop::handle(FetchEvent event, TimePoint now) {
  const auto* ended = std::get_if<SessionEnded>(&event);
  const std::optional<SessionId> closed =
      ended == nullptr ? std::nullopt : std::optional(ended->session);
  for (FetchAction& action : core_.on_event(std::move(event), now)) {
    std::visit([&](auto& value) { perform(value, now); }, action);
  }
  if (closed) sink_.on_closed(*closed);
}

void FetchLoop::perform(const StartRead& action, TimePoint now) {
  arenas_.read.begin(action.ref, SlotState::kFilling);
  io_->read(action.key, arenas_.read.data(action.ref, action.block_bytes),
            time_left(action.deadline, now), [this, ref = action.ref](FetchEnd end) {
              queue_.push(ReadFinished{ref, end});
            });
}

void FetchLoop::perform(const PublishSlot& action, TimePoint) {
  arenas_.read.publish(action.ref, action.key, action.block_bytes);
}

void FetchLoop::perform(const RetireSlot& action, TimePoint) {
  (action.arena == ArenaKind::kRead ? arenas_.read : arenas_.write).retire(action.ref);
}

void FetchLoop::perform(const OpenSlot& action, TimePoint) {
  arenas_.write.begin(action.ref, SlotState::kWriting);
}

void FetchLoop::perform(const StartStore& action, TimePoint now) {
  absl::StatusOr<std::vector<std::byte>> block =
      arenas_.write.take_sealed(action.ref, action.block_bytes, action.crc);
  if (!block.ok()) {
    queue_.push(StoreFinished{action.ref, StoreEnd::kBadChecksum});
    return;
  }
  io_->store(
      {.key = action.key, .bytes = *std::move(block), .depth = action.depth, .ttl = action.ttl},
      time_left(action.deadline, now), [this, ref = action.ref](StoreEnd end) {
        queue_.push(StoreFinished{ref, end});
      });
}

void FetchLoop::perform(Tell& action, TimePoint) {
  outbox_[action.session].push_back(std::move(action.event));
}

void FetchLoop::perform(const RefuseSession& action, TimePoint) {
  sink_.refuse(action.session, action.reason);
}

void FetchLoop::perform(const MeasureFetch& action, TimePoint) {
  metrics_.observe_fetch(std::chrono::duration<double>(action.time).count());
}

void FetchLoop::deliver() {
  for (auto& [session, events] : outbox_) sink_.deliver(session, std::move(events));
  outbox_.clear();
}

}  // namespace millrace::storage::fetch
