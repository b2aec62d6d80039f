#include "controller/core/controller.h"

#include <algorithm>
#include <utility>

#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/types.h"
#include "controller/view/view.h"
#include "dataplane/routing/buckets.h"

namespace millrace::controller::core {
namespace {

using api::admin::AssignedProcess;
using api::admin::DesiredState;
using api::admin::HeartbeatReply;
using api::admin::ProcessReport;
using api::admin::ProcessRole;
using api::admin::ProcessState;
using membership::NodeRecord;

/// What a placed process should be.
AssignedProcess assigned_process(const Placement& placement, const DesiredState& desired) {
  AssignedProcess assigned;
  assigned.incarnation_floor = placement.incarnation;
  assigned.spec.worker_id = placement.worker_id;
  assigned.spec.instance_id = placement.worker_id;  // one rank per instance
  assigned.spec.role = placement.role;
  assigned.spec.model_dir = desired.model_dir;
  assigned.spec.model_id = desired.model_id;
  const bool moves_kv =
      placement.role == ProcessRole::kStorage || placement.role == ProcessRole::kKvFetch;
  if (moves_kv) {
    // It knows nothing of models, and so keeps running when the model changes.
    assigned.spec.model_dir.clear();
    assigned.spec.model_id.clear();
  }
  if (placement.role == ProcessRole::kKvFetch) {
    assigned.spec.fetch_bytes = desired.storage.fetch_bytes;
    assigned.spec.window_bytes = desired.storage.window_bytes;
    assigned.spec.window_pool_bytes = desired.storage.window_pool_bytes;
    return assigned;
  }
  if (placement.role == ProcessRole::kStorage) {
    assigned.spec.targets = desired.storage.targets_per_node;
    assigned.spec.target_bytes = desired.storage.target_bytes;
    return assigned;
  }
  if (placement.role == ProcessRole::kEntrypoint) {
    assigned.spec.listen = desired.entrypoint_listen;
    return assigned;
  }
  assigned.spec.uses_kv_store = desired.storage.nodes > 0;
  assigned.spec.engine = desired.engine;
  assigned.spec.kv_blocks = desired.kv_blocks;
  assigned.spec.max_sequences = desired.max_sequences;
  assigned.spec.step_rows = desired.step_rows;
  return assigned;
}

std::vector<view::PlacedWorker> engine_workers(const std::vector<Placement>& placements) {
  std::vector<view::PlacedWorker> placed;
  for (const Placement& placement : placements) {
    if (!api::admin::is_engine(placement.role)) continue;
    placed.push_back({placement.worker_id, placement.node_id,
                      placement.role == ProcessRole::kPrefill ? api::admin::WorkerRole::kPrefill
                                                              : api::admin::WorkerRole::kDecode,
                      placement.phase == PlacementPhase::kReleasing});
  }
  return placed;
}

std::vector<view::PlacedEntrypoint> placed_entrypoints(const std::vector<Placement>& placements) {
  std::vector<view::PlacedEntrypoint> placed;
  for (const Placement& placement : placements) {
    if (placement.role != ProcessRole::kEntrypoint) continue;
    if (placement.phase != PlacementPhase::kActive) continue;
    placed.push_back({placement.worker_id, placement.node_id});
  }
  return placed;
}

/// Whether some node is to run something else than before.
bool is_same_assignment(const std::vector<Placement>& a, const std::vector<Placement>& b) {
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(), [](const Placement& x, const Placement& y) {
        return x.worker_id == y.worker_id && x.node_id == y.node_id && x.phase == y.phase;
      });
}

/// The name of the event that a process's change of state is, empty when it is none.
std::string_view transition_kind(const ProcessReport* before, const ProcessReport& now) {
  const bool is_new_run = before == nullptr || before->incarnation != now.incarnation;
  if (!is_new_run && before->state == now.state) return "";
  switch (now.state) {
    case ProcessState::kStarting:
      return is_new_run ? "worker_starting" : "";
    case ProcessState::kReady:
      return "worker_ready";
    case ProcessState::kDraining:
      return "worker_draining";
    case ProcessState::kBackoff:
      return "worker_died";
    case ProcessState::kFailing:
      return "worker_failing";
  }
  return "";
}

std::string transition_detail(const std::string& node_id, const ProcessReport& report) {
  std::string detail = str_cat("on ", node_id, ", incarnation ", report.incarnation);
  const bool is_down =
      report.state == ProcessState::kBackoff || report.state == ProcessState::kFailing;
  if (is_down && !report.last_error.empty()) detail += str_cat(": ", report.last_error);
  return detail;
}

/// "from <16K to 16K-64K; instances by bucket now 1, 2, 0, 1".
std::string move_detail(const buckets::BucketMove& move, const std::vector<int>& instances,
                        const dataplane::routing::BucketEdges& edges) {
  std::string counts;
  for (const int count : instances) counts += str_cat(counts.empty() ? "" : ", ", count);
  return str_cat("from ", dataplane::routing::bucket_name(move.from, edges), " to ",
                 dataplane::routing::bucket_name(move.to, edges), "; instances by bucket now ",
                 counts);
}

kv_map::StorageOperatorOptions storage_options(const ControllerOptions& options,
                                               std::uint64_t epoch) {
  constexpr int kRequestBits = 20;  // wishes of one life of a controller
  kv_map::StorageOperatorOptions storage;
  storage.report_interval = options.heartbeat_interval;
  storage.node_timeout = options.node_timeout;
  storage.new_cluster_id = options.new_storage_cluster_id;
  storage.first_request = epoch << kRequestBits;
  return storage;
}

template <typename T>
Reply reply_of(absl::StatusOr<T> result) {
  if (!result.ok()) return std::move(result).status();
  return *std::move(result);
}

}  // namespace

Controller::Controller(const ControllerOptions& options, StoredState stored)
    : options_(options),
      state_(std::move(stored)),
      membership_(options.node_timeout),
      storage_(storage_options(options, state_.epoch + 1), state_.storage_map),
      balancer_(options.balance, state_.view) {}

Decision Controller::start(TimePoint now) {
  started_ = now;
  ++state_.epoch;
  is_state_changed_ = true;
  note("controller_started", "controller", str_cat("epoch ", state_.epoch));
  storage_.start(now);
  balancer_.start(now);
  if (state_.desired) storage_.set_desired(state_.desired->storage, now);
  observe_silence(now);
  rebuild_view(now);
  return take_decision(absl::OkStatus());
}

Decision Controller::on_event(const Event& event, TimePoint now) {
  Reply reply = std::visit([&](const auto& kind) { return apply(kind, now); }, event);
  return take_decision(std::move(reply));
}

Reply Controller::apply(const JoinEvent& event, TimePoint now) {
  const api::admin::NodeJoin& join = event.join;
  if (join.protocol_version != kProtocolVersion) {
    return absl::FailedPreconditionError(
        str_cat("node \"", join.node_id, "\" speaks protocol version ", join.protocol_version,
                ", this controller ", kProtocolVersion));
  }
  // A node first heard in this life may have obeyed another controller with our very epoch.
  const bool is_new = !membership_.nodes().contains(join.node_id);
  if (absl::Status status = membership_.join(join, now); !status.ok()) return status;
  if (join.epoch >= state_.epoch + (is_new ? 0 : 1)) raise_epoch(join.epoch);
  note("node_joined", join.node_id, str_cat("agent at ", join.address));
  reconcile_now(now);
  api::admin::NodeJoinReply reply;
  reply.epoch = state_.epoch;
  reply.heartbeat_interval = options_.heartbeat_interval;
  reply.node_timeout = options_.node_timeout;
  return reply;
}

Reply Controller::apply(const HeartbeatEvent& event, TimePoint now) {
  const auto known = membership_.nodes().find(event.node_id);
  const NodeRecord before = known == membership_.nodes().end() ? NodeRecord{} : known->second;
  const absl::StatusOr<bool> is_changed =
      membership_.heartbeat(event.node_id, event.heartbeat, now);
  if (!is_changed.ok()) return is_changed.status();
  if (event.heartbeat.epoch > state_.epoch) raise_epoch(event.heartbeat.epoch);
  if (*is_changed) note_transitions(before, event.heartbeat);
  if (*is_changed || is_state_changed_) reconcile_now(now);
  return heartbeat_reply(event.node_id);
}

Reply Controller::apply(const EntrypointReportEvent& event, TimePoint now) {
  const bool is_known = std::any_of(state_.placements.begin(), state_.placements.end(),
                                    [&](const Placement& placement) {
                                      return placement.role == ProcessRole::kEntrypoint &&
                                             placement.worker_id == event.entrypoint_id;
                                    });
  if (!is_known) {
    return absl::NotFoundError(
        str_cat("there is no entrypoint \"", event.entrypoint_id, "\" in this cluster"));
  }
  RETURN_IF_ERROR(balancer_.report(event.entrypoint_id, event.report, state_.view, now));
  if (balancer_.prefill_cost() != state_.view.prefill_cost) rebuild_view(now);
  return absl::OkStatus();
}

Reply Controller::apply(const SetDesiredEvent& event, TimePoint now) {
  if (state_.desired == event.desired) return absl::OkStatus();
  RETURN_IF_ERROR(storage_.check(event.desired.storage));
  state_.desired = event.desired;
  ++state_.revision;
  is_state_changed_ = true;
  note("desired_changed", "desired",
       str_cat("prefill ", event.desired.prefill, ", decode ", event.desired.decode,
               ", entrypoint ", event.desired.entrypoint, ", model ", event.desired.model_id,
               ", storage ", event.desired.storage.nodes));
  storage_.set_desired(event.desired.storage, now);
  reconcile_now(now);
  return absl::OkStatus();
}

Reply Controller::apply(const TimerEvent&, TimePoint now) {
  for (const std::string& node_id : membership_.expire(now)) {
    note("node_dead", node_id, str_cat("no heartbeat for ", options_.node_timeout.count(), " ms"));
  }
  if (!is_window_open(now)) has_closed_window_ = true;
  reconcile_now(now);
  end_due_round(now);
  storage_.on_timer(now);
  return absl::OkStatus();
}

Reply Controller::apply(const StorageReportEvent& event, TimePoint now) {
  return reply_of(storage_.report(event.node_id, event.report, now));
}

Reply Controller::apply(const StorageReplaceEvent& event, TimePoint) {
  return storage_.replace(event.replace);
}

Reply Controller::apply(const StorageScrubEvent&, TimePoint) { return reply_of(storage_.scrub()); }

Reply Controller::apply(const StorageEvictEvent& event, TimePoint) {
  return reply_of(storage_.evict(event.evict));
}

bool Controller::is_window_open(TimePoint now) const {
  return now < started_ + options_.node_timeout;
}

void Controller::raise_epoch(std::uint64_t reported) {
  state_.epoch = reported + 1;
  is_state_changed_ = true;
  note("epoch_raised", "controller", str_cat("to ", state_.epoch));
}

void Controller::note_transitions(const NodeRecord& before,
                                  const api::admin::Heartbeat& heartbeat) {
  if (!before.is_alive) note("node_returned", before.node_id);
  if (heartbeat.is_leaving) note("node_left", before.node_id);
  for (const ProcessReport& report : heartbeat.processes) {
    // The first report after a controller's start brings no news of processes it knew before.
    if (!before.has_reported && is_known_run(report)) continue;
    const auto old = std::find_if(
        before.processes.begin(), before.processes.end(),
        [&](const ProcessReport& candidate) { return candidate.worker_id == report.worker_id; });
    const std::string_view kind =
        transition_kind(old == before.processes.end() ? nullptr : &*old, report);
    if (!kind.empty()) {
      note(std::string(kind), report.worker_id, transition_detail(before.node_id, report));
    }
  }
}

bool Controller::is_known_run(const ProcessReport& report) const {
  return report.state == ProcessState::kReady &&
         std::any_of(state_.placements.begin(), state_.placements.end(),
                     [&](const Placement& placement) {
                       return placement.worker_id == report.worker_id &&
                              placement.incarnation == report.incarnation;
                     });
}

/// Keeps how long each node with placements has been away, and which are lost by that.
void Controller::observe_silence(TimePoint now) {
  std::map<std::string, TimePoint, std::less<>> silent;
  for (const Placement& placement : state_.placements) {
    const auto node = membership_.nodes().find(placement.node_id);
    if (node != membership_.nodes().end() && node->second.is_alive) continue;
    const auto since = silent_since_.find(placement.node_id);
    silent.emplace(placement.node_id, since == silent_since_.end() ? now : since->second);
  }
  silent_since_ = std::move(silent);
  lost_nodes_.clear();
  for (const auto& [node_id, since] : silent_since_) {
    if (now - since >= kLostAfterTimeouts * options_.node_timeout) lost_nodes_.insert(node_id);
  }
}

void Controller::reconcile_now(TimePoint now) {
  observe_silence(now);
  const ReconcileInputs inputs{.desired = state_.desired,
                               .nodes = membership_.nodes(),
                               .epoch = state_.epoch,
                               .next_revision = state_.revision + 1,
                               .is_window_open = is_window_open(now),
                               .lost_nodes = lost_nodes_};
  Reconciled result = reconcile({state_.placements, state_.retired_incarnation}, inputs, notes_);
  if (!is_same_assignment(result.placements, state_.placements)) ++state_.revision;
  if (result.placements != state_.placements) is_state_changed_ = true;
  state_.placements = std::move(result.placements);
  state_.retired_incarnation = result.retired_incarnation;
  observe_silence(now);  // what was just placed or forgotten changes who is waited for
  rebuild_view(now);
}

void Controller::end_due_round(TimePoint now) {
  round_ = balancer_.end_due_round(state_.view, now);
  if (!round_) return;
  for (const buckets::BucketMove& move : round_->moves) {
    note("buckets_split", move.instance_id,
         move_detail(move, round_->instances, options_.balance.edges));
  }
  rebuild_view(now);
}

void Controller::rebuild_view(TimePoint now) {
  const view::ViewInputs inputs{.epoch = state_.epoch,
                                .model_id = state_.desired ? state_.desired->model_id : "",
                                .placed = engine_workers(state_.placements),
                                .entrypoints = placed_entrypoints(state_.placements),
                                .nodes = membership_.nodes(),
                                .previous = state_.view,
                                .keep_unheard = is_window_open(now)};
  view::BuiltView built = view::build_view(inputs);
  std::map<std::string, std::string> left_out;
  for (const view::LeftOut& worker : built.left_out) {
    left_out[worker.worker_id] = worker.reason;
    const auto before = left_out_.find(worker.worker_id);
    if (before == left_out_.end() || before->second != worker.reason) {
      note("worker_left_out", worker.worker_id, worker.reason);
    }
  }
  left_out_ = std::move(left_out);
  balancer_.complete(state_.placements, built.view);
  if (built.view.prefill_cost != state_.view.prefill_cost) {
    note("prefill_cost_published", "prefill",
         str_cat("version ", built.view.prefill_cost->version));
  }
  if (view::is_same_content(built.view, state_.view)) return;
  built.view.version = state_.view.version + 1;
  state_.view = std::move(built.view);
  is_state_changed_ = true;
}

HeartbeatReply Controller::heartbeat_reply(std::string_view node_id) const {
  HeartbeatReply reply;
  reply.epoch = state_.epoch;
  reply.revision = state_.revision;
  if (!state_.desired) return reply;
  std::vector<AssignedProcess>& assignment = reply.assignment.emplace();
  for (const Placement& placement : state_.placements) {
    if (placement.node_id != node_id || placement.phase != PlacementPhase::kActive) continue;
    assignment.push_back(assigned_process(placement, *state_.desired));
  }
  return reply;
}

std::optional<TimePoint> Controller::next_timer() const {
  std::optional<TimePoint> next = membership_.next_expiry();
  const auto consider = [&](TimePoint due) {
    if (!next || due < *next) next = due;
  };
  for (const auto& [node_id, since] : silent_since_) {
    if (!lost_nodes_.contains(node_id)) {
      consider(since + kLostAfterTimeouts * options_.node_timeout);
    }
  }
  if (!has_closed_window_) consider(started_ + options_.node_timeout);
  if (const std::optional<TimePoint> due = storage_.next_timer()) consider(*due);
  consider(balancer_.next_round());
  return next;
}

void Controller::note(std::string kind, std::string subject, std::string detail) {
  notes_.push_back({std::move(kind), std::move(subject), std::move(detail)});
}

Decision Controller::take_decision(Reply reply) {
  Decision decision;
  decision.reply = std::move(reply);
  decision.round = std::exchange(round_, std::nullopt);
  for (kv_map::StorageNote& storage_note : storage_.take_notes()) {
    note(std::move(storage_note.kind), std::move(storage_note.subject),
         std::move(storage_note.detail));
  }
  if (storage_.map() &&
      (!state_.storage_map || state_.storage_map->epoch != storage_.map()->epoch)) {
    state_.storage_map = storage_.map();
    is_state_changed_ = true;
  }
  for (Note& note : notes_) {
    api::admin::ClusterEvent event;
    event.id = state_.next_event_id++;
    event.kind = std::move(note.kind);
    event.subject = std::move(note.subject);
    event.detail = std::move(note.detail);
    decision.events.push_back(std::move(event));
  }
  if (is_state_changed_ || !notes_.empty()) {
    ++state_.version;
    decision.state = state_;
  }
  notes_.clear();
  is_state_changed_ = false;
  return decision;
}

}  // namespace millrace::controller::core
