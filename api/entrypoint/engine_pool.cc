#include "api/entrypoint/engine_pool.h"

#include <algorithm>
#include <utility>

#include "api/proto/engine.pb.h"
#include "common/check.h"

namespace millrace::api::entrypoint {

using admin::WorkerRole;
using dataplane::routing::RequestSize;
using dataplane::routing::WorkerSnapshot;

/// One worker of the view.
struct EnginePool::Slot {
  admin::ViewWorker worker;
  bool is_listed = true;  ///< in the latest view
  std::unique_ptr<EngineLink> link;
  bool is_up = false;  ///< the worker has answered our greeting
  proto::v1::EngineLoad load;
  ChargeBook charges;
  std::chrono::milliseconds next_reconnect{0};
  common::http::EventLoop::Timer timer;  ///< of the next try, or of silence
  bool has_spoken = false;               ///< since the silence timer was set

  bool is_accepting() const {
    return is_up && is_listed && worker.state == admin::WorkerState::kReady && !load.draining();
  }

  WorkerSnapshot snapshot() const {
    WorkerSnapshot snapshot{.is_accepting = is_accepting(),
                            .running = load.running(),
                            .waiting = load.waiting(),
                            .waiting_tokens = load.waiting_tokens(),
                            .kv_tokens = load.kv_tokens(),
                            .kv_blocks_used = load.kv_blocks_used(),
                            .kv_blocks_total = load.kv_blocks_total()};
    charges.add_to(snapshot);
    return snapshot;
  }
};

namespace {

/// Raw bytes of hexadecimal text; what is no hexadecimal gives nothing, which no worker accepts.
std::string from_hex(const std::string& text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  };
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    const int high = digit(text[i]);
    const int low = digit(text[i + 1]);
    if (high < 0 || low < 0) return "";
    bytes.push_back(static_cast<char>(high << 4 | low));
  }
  return bytes;
}

bool is_same_process(const admin::ViewWorker& a, const admin::ViewWorker& b) {
  return a.address == b.address && a.incarnation == b.incarnation && a.role == b.role;
}

}  // namespace

EnginePool::EnginePool(common::http::EventLoop& loop, Logger log, std::string model_id,
                       std::string entrypoint_id, const EnginePoolLimits& limits,
                       Callbacks callbacks)
    : loop_(loop),
      log_(std::move(log)),
      model_id_(std::move(model_id)),
      entrypoint_id_(std::move(entrypoint_id)),
      limits_(limits),
      callbacks_(std::move(callbacks)) {}

EnginePool::~EnginePool() = default;

bool EnginePool::apply_view(const admin::RoutingView& view) {
  if (view.model_id != model_id_) return false;
  const std::string digest = from_hex(view.artifact_digest_hex);
  const bool is_new_artifact = digest != artifact_digest_;
  artifact_digest_ = digest;
  for (auto& [id, slot] : slots_) slot->is_listed = false;
  for (const admin::ViewWorker& worker : view.workers) {
    if (worker.address.empty()) continue;
    auto it = slots_.find(worker.worker_id);
    if (it != slots_.end() && (is_new_artifact || !is_same_process(it->second->worker, worker))) {
      drop(worker.worker_id);
      it = slots_.end();
    }
    if (it == slots_.end()) {
      it = slots_.emplace(worker.worker_id, std::make_unique<Slot>()).first;
      it->second->worker = worker;
      connect(*it->second);
    }
    it->second->worker = worker;
    it->second->is_listed = true;
  }
  // Without a stream there is nothing to wait for.
  std::erase_if(slots_, [](const auto& entry) {
    return !entry.second->is_listed && entry.second->link == nullptr;
  });
  callbacks_.on_capacity();
  return true;
}

void EnginePool::connect(Slot& slot) {
  const std::string id = slot.worker.worker_id;
  slot.charges = ChargeBook();
  slot.link = std::make_unique<EngineLink>(
      loop_, slot.worker.address, LinkIdentity{model_id_, artifact_digest_, entrypoint_id_},
      EngineLink::Callbacks{
          .on_events = [this, id](const proto::v1::EngineEvents& events) { on_events(id, events); },
          .on_down = [this, id](const absl::Status& reason) { on_down(id, reason); }});
  watch(slot);
}

/// Ends the stream when a whole period passes without a message.
void EnginePool::watch(Slot& slot) {
  slot.has_spoken = false;
  slot.timer = loop_.after(limits_.silence, [this, &slot] {
    if (slot.has_spoken) {
      watch(slot);
    } else {
      log_.warn("worker_silent", {{"worker", slot.worker.worker_id}});
      slot.link->cancel();
    }
  });
}

void EnginePool::on_events(const std::string& worker_id, const proto::v1::EngineEvents& events) {
  const auto it = slots_.find(worker_id);
  CHECK(it != slots_.end());
  Slot& slot = *it->second;
  slot.has_spoken = true;
  if (!slot.is_up) {
    slot.is_up = true;
    slot.next_reconnect = std::chrono::milliseconds(0);
    log_.info("worker_up", {{"worker", worker_id}, {"address", slot.worker.address}});
  }
  if (events.has_load()) {
    slot.load = events.load();
    slot.charges.settle(events.load().started_requests());
  }
  callbacks_.on_events(worker_id, events);
  callbacks_.on_capacity();
}

void EnginePool::on_down(const std::string& worker_id, const absl::Status& reason) {
  const auto it = slots_.find(worker_id);
  CHECK(it != slots_.end());
  Slot& slot = *it->second;
  const bool was_up = std::exchange(slot.is_up, false);
  slot.link = nullptr;
  slot.timer = {};
  if (was_up) {
    log_.warn("worker_lost", {{"worker", worker_id}, {"reason", reason.ToString()}});
  } else if (slot.next_reconnect.count() == 0) {
    log_.warn("worker_unreachable", {{"worker", worker_id}, {"reason", reason.ToString()}});
  }
  if (slot.is_listed) {
    slot.next_reconnect =
        std::clamp(slot.next_reconnect * 2, limits_.first_reconnect, limits_.longest_reconnect);
    slot.timer = loop_.after(slot.next_reconnect, [this, &slot] { connect(slot); });
  } else {
    slots_.erase(it);
  }
  if (was_up) callbacks_.on_lost(worker_id);
}

void EnginePool::drop(const std::string& worker_id) {
  const auto it = slots_.find(worker_id);
  const bool was_up = it->second->is_up;
  slots_.erase(it);
  log_.info("worker_replaced", {{"worker", worker_id}});
  if (was_up) callbacks_.on_lost(worker_id);
}

std::vector<const EnginePool::Slot*> EnginePool::slots_of(WorkerRole role) const {
  std::vector<const Slot*> found;
  for (const auto& [id, slot] : slots_) {
    if (slot->worker.role == role) found.push_back(slot.get());
  }
  return found;
}

std::size_t EnginePool::accepting(WorkerRole role) const {
  const std::vector<const Slot*> slots = slots_of(role);
  return static_cast<std::size_t>(
      std::count_if(slots.begin(), slots.end(), [](const Slot* s) { return s->is_accepting(); }));
}

bool EnginePool::is_serving() const {
  return accepting(WorkerRole::kPrefill) > 0 && accepting(WorkerRole::kDecode) > 0;
}

EnginePool::Choice EnginePool::choose(WorkerRole role, const RequestSize& size,
                                      std::uint64_t pending_tokens) const {
  const std::vector<const Slot*> slots = slots_of(role);
  std::vector<WorkerSnapshot> all;
  std::vector<WorkerSnapshot> free;
  for (const Slot* slot : slots) {
    all.push_back(slot->snapshot());
    free.push_back(all.back());
    const std::uint64_t waiting = all.back().waiting + all.back().charged_requests;
    if (role == WorkerRole::kPrefill && waiting >= limits_.waiting_per_prefill_worker) {
      free.back().is_accepting = false;
    }
  }
  const auto pick = [&](const std::vector<WorkerSnapshot>& workers) {
    return role == WorkerRole::kPrefill
               ? dataplane::routing::pick_prefill_worker(size, workers)
               : dataplane::routing::pick_decode_worker(size, pending_tokens, workers);
  };
  if (const auto index = pick(free)) {
    return {Capacity::kNow, slots[*index]->worker.worker_id};
  }
  if (accepting(role) == 0) return {Capacity::kNoEngine, {}};
  return {pick(all) ? Capacity::kLater : Capacity::kNever, {}};
}

void EnginePool::start(const std::string& worker_id, proto::v1::EngineCommand command,
                       const RequestSize& size) {
  const auto it = slots_.find(worker_id);
  CHECK(it != slots_.end() && it->second->link != nullptr, "chosen in this very event");
  it->second->charges.charge(size);
  it->second->link->send(std::move(command));
}

void EnginePool::send(const std::string& worker_id, proto::v1::EngineCommand command) {
  const auto it = slots_.find(worker_id);
  if (it == slots_.end() || it->second->link == nullptr) return;
  it->second->link->send(std::move(command));
}

}  // namespace millrace::api::entrypoint
