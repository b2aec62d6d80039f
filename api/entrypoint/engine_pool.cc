#include "api/entrypoint/engine_pool.h"

#include <algorithm>
#include <utility>

#include "api/proto/engine.pb.h"
#include "common/check.h"
#include "common/str_cat.h"
#include "dataplane/cost/cost_wire.h"

namespace millrace::api::entrypoint {

using admin::WorkerRole;
using dataplane::routing::Charge;
using dataplane::routing::ChargeKey;
using dataplane::routing::ChargeLedger;

/// One worker of the view.
struct EnginePool::Slot {
  admin::ViewWorker worker;
  bool is_listed = true;  ///< in the latest view
  std::unique_ptr<EngineLink> link;
  bool is_up = false;       ///< the worker has answered our greeting
  bool is_counted = false;  ///< among those that accept requests
  bool has_load = false;    ///< a report that makes sense has come: else its pool looks like none
  proto::v1::EngineLoad load;
  std::optional<dataplane::cost::CostModel> cost;  ///< as it measured
  ChargeLedger charges{0};                         ///< of this stream
  std::chrono::milliseconds next_reconnect{0};
  common::http::EventLoop::Timer timer;  ///< of the next try, or of silence
  bool has_spoken = false;               ///< since the silence timer was set

  bool is_accepting() const {
    return is_up && has_load && is_listed && worker.state == admin::WorkerState::kReady &&
           !load.draining();
  }

  WorkerState state() const {
    return {.role = worker.role,
            .is_accepting = is_accepting(),
            .wants_more = load.wants_more(),
            .has_queue = load.waiting() > 0,
            .load = charges.load(),
            .kv_blocks_total = static_cast<std::int64_t>(load.kv_blocks_total())};
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

/// A worker's own measure of its load; numbers beyond what there can be count as nothing, and the
/// report as invalid.
dataplane::routing::LoadReport to_report(std::uint64_t incarnation,
                                         const proto::v1::EngineLoad& load) {
  const auto number = [](std::uint64_t value) {
    return value >> 60 == 0 ? static_cast<std::int64_t>(value) : -1;
  };
  return {.incarnation = incarnation,
          .sequence = load.sequence(),
          .included_charge = load.started_requests(),
          .load = {.requests = std::int64_t{load.running()} + load.waiting(),
                   .quota_ns = number(load.queued_ns()),
                   .kv_tokens = number(load.kv_tokens()),
                   .rows = number(load.waiting_tokens()),
                   .kv_blocks = number(load.kv_blocks_used())}};
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
  published_cost_ = view.prefill_cost ? std::optional(view.prefill_cost->cost) : std::nullopt;
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
  for (const auto& [id, slot] : slots_) show(*slot);
  // Without a stream there is nothing to wait for.
  std::erase_if(slots_, [](const auto& entry) {
    return !entry.second->is_listed && entry.second->link == nullptr;
  });
  callbacks_.on_capacity();
  return true;
}

void EnginePool::connect(Slot& slot) {
  const std::string id = slot.worker.worker_id;
  drop_charges(slot);
  slot.load.Clear();
  slot.has_load = false;
  slot.link = std::make_unique<EngineLink>(
      loop_, slot.worker.address,
      LinkIdentity{model_id_, artifact_digest_, entrypoint_id_, published_cost_},
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
    callbacks_.on_up(worker_id);
    slot.next_reconnect = std::chrono::milliseconds(0);
    log_.info("worker_up", {{"worker", worker_id}, {"address", slot.worker.address}});
  }
  if (events.has_prefill_cost()) take_cost(slot, events.prefill_cost());
  if (events.has_load() && slot.charges.report(to_report(slot.worker.incarnation, events.load()))) {
    slot.load = events.load();
    slot.has_load = true;
    show(slot);
  }
  callbacks_.on_events(worker_id, events);
  callbacks_.on_capacity();
}

/// One that makes no sense is passed over: the controller would refuse the report that names it.
void EnginePool::take_cost(Slot& slot, const proto::v1::PrefillCost& cost) {
  const absl::StatusOr<dataplane::cost::CostModel> measured = dataplane::cost::from_wire(cost);
  if (measured.ok()) {
    slot.cost = *measured;
  } else {
    log_.warn("worker_cost_ignored",
              {{"worker", slot.worker.worker_id}, {"reason", message_of(measured.status())}});
  }
}

void EnginePool::on_down(const std::string& worker_id, const absl::Status& reason) {
  const auto it = slots_.find(worker_id);
  CHECK(it != slots_.end());
  Slot& slot = *it->second;
  const bool was_up = std::exchange(slot.is_up, false);
  drop_charges(slot);
  show(slot);
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
  const bool was_up = std::exchange(it->second->is_up, false);
  drop_charges(*it->second);
  show(*it->second);
  slots_.erase(it);
  log_.info("worker_replaced", {{"worker", worker_id}});
  if (was_up) callbacks_.on_lost(worker_id);
}

/// Tells what is known of a worker now; after every change of it.
void EnginePool::show(Slot& slot) {
  const bool was_accepting = std::exchange(slot.is_counted, slot.is_accepting());
  std::size_t& accepting = accepting_[static_cast<std::size_t>(slot.worker.role)];
  if (was_accepting && !slot.is_counted) --accepting;
  if (!was_accepting && slot.is_counted) ++accepting;
  callbacks_.on_worker(slot.worker.worker_id, slot.state());
}

/// What was sent over the last stream is gone with it.
void EnginePool::drop_charges(Slot& slot) {
  open_charges_ -= slot.charges.size();
  slot.charges = ChargeLedger(slot.worker.incarnation);
}

std::vector<admin::WorkerCost> EnginePool::worker_costs() const {
  std::vector<admin::WorkerCost> costs;
  for (const auto& [id, slot] : slots_) {
    if (slot->is_up && slot->cost) costs.push_back({id, slot->worker.incarnation, *slot->cost});
  }
  return costs;
}

bool EnginePool::is_serving() const {
  return accepting(WorkerRole::kPrefill) > 0 && accepting(WorkerRole::kDecode) > 0;
}

void EnginePool::start(const std::string& worker_id, proto::v1::EngineCommand command,
                       const ChargeKey& key, const Charge& charge) {
  const auto it = slots_.find(worker_id);
  CHECK(it != slots_.end() && it->second->link != nullptr, "chosen in this very event");
  it->second->charges.charge(key, charge);
  ++open_charges_;
  it->second->link->send(std::move(command));
  show(*it->second);
}

void EnginePool::release(const std::string& worker_id, const ChargeKey& key) {
  const auto it = slots_.find(worker_id);
  if (it == slots_.end() || !it->second->charges.release(key)) return;
  --open_charges_;
  show(*it->second);
}

void EnginePool::send(const std::string& worker_id, proto::v1::EngineCommand command) {
  const auto it = slots_.find(worker_id);
  if (it == slots_.end() || it->second->link == nullptr) return;
  it->second->link->send(std::move(command));
}

}  // namespace millrace::api::entrypoint
