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

FetchLoop::FetchLoop(const FetchLoopConfig& config, FetchArenas arenas, std::unique_ptr<BlockIo> io,
                     std::unique_ptr<WindowPeers> peers, EventQueue& queue, SessionSink& sink,
                     Registry& registry)
    : queue_(queue),
      sink_(sink),
      arenas_(std::move(arenas)),
      io_(std::move(io)),
      peers_(std::move(peers)),
      core_(config.limits, {.read_slots = arenas_.read.slot_count(),
                            .write_slots = arenas_.write.slot_count(),
                            .block_bytes = config.block_bytes}),
      windows_(config.windows, config.owner),
      metrics_(registry, arenas_.read.slot_count(), arenas_.write.slot_count()),
      window_metrics_(registry, config.windows.pool.slot_count),
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
    if (const auto timer = next_timer()) until = std::min(until, *timer);
    std::vector<LoopEvent> events = queue_.pop_all(until - Clock::now());
    const TimePoint now = Clock::now();
    for (LoopEvent& event : events) {
      std::visit([&](auto& value) { handle(std::move(value), now); }, event);
    }
    if (const auto timer = next_timer(); timer && *timer <= now) handle(TimerDue{}, now);
    // Before the words go out: whoever acts on an answer finds the loop as it says.
    is_idle_.store(core_.is_idle() && windows_.is_idle(), std::memory_order_release);
    deliver();
    if (now < metrics_due) continue;
    publish_metrics();
    metrics_due = now + kMetricsInterval;
  }
  publish_metrics();
}

void FetchLoop::publish_metrics() {
  metrics_.publish(core_.counters());
  WindowCounters windows = windows_.counters();
  windows.puts[static_cast<std::size_t>(WindowPutEnd::kBusy)] = queue_.refused_windows();
  window_metrics_.publish(windows);
}

std::optional<TimePoint> FetchLoop::next_timer() const {
  const std::optional<TimePoint> windows = windows_.next_timer();
  const std::optional<TimePoint> blocks = core_.next_timer();
  return windows && blocks ? std::min(*windows, *blocks) : windows ? windows : blocks;
}

void FetchLoop::handle(FetchEvent event, TimePoint now) {
  const auto* ended = std::get_if<SessionEnded>(&event);
  const std::optional<SessionId> closed =
      ended == nullptr ? std::nullopt : std::optional(ended->session);
  if (std::holds_alternative<BeginDrain>(event)) windows_.begin_drain();
  if (std::holds_alternative<TimerDue>(event)) perform_all(windows_.on_timer(now), now);
  if (closed) perform_all(windows_.end_session(*closed, now), now);
  for (FetchAction& action : core_.on_event(std::move(event), now)) {
    std::visit([&](auto& value) { perform(value, now); }, action);
  }
  if (closed) sink_.on_closed(*closed);
}

void FetchLoop::handle(WindowEvent event, TimePoint now) {
  perform_all(windows_.on_event(std::move(event), now), now);
}

void FetchLoop::perform_all(WindowActions actions, TimePoint now) {
  for (WindowAction& action : actions) {
    std::visit([&](auto& value) { perform(value, now); }, action);
  }
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

void FetchLoop::perform(const FillWindow& action, TimePoint) {
  arenas_.window->begin(action.ref, SlotState::kFilling);
  const auto bytes = static_cast<std::uint32_t>(action.window.size());
  std::ranges::copy(action.window, arenas_.window->data(action.ref, bytes).begin());
  arenas_.window->publish(action.ref, action.key, bytes);
}

void FetchLoop::perform(const RetireWindow& action, TimePoint) {
  arenas_.window->retire(action.ref);
}

void FetchLoop::perform(const StartPeerRead& action, TimePoint now) {
  peers_->read(action.from, action.key, time_left(action.deadline, now),
               [this, serial = action.serial](PeerWindow read) {
                 queue_.push(WindowEvent(PeerReadFinished{serial, std::move(read)}));
               });
}

void FetchLoop::deliver() {
  for (auto& [session, events] : outbox_) sink_.deliver(session, std::move(events));
  outbox_.clear();
}

}  // namespace millrace::storage::fetch
