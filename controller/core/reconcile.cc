#include "controller/core/reconcile.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/str_cat.h"

namespace millrace::controller::core {
namespace {

using api::admin::DesiredState;
using api::admin::ProcessReport;
using api::admin::ProcessRole;
using membership::NodeRecord;

/// One pass over the placements; the member functions are the steps of reconcile().
class Pass {
 public:
  Pass(Reconciled current, const ReconcileInputs& inputs, std::vector<Note>& notes)
      : placements_(std::move(current.placements)),
        retired_incarnation_(current.retired_incarnation),
        inputs_(inputs),
        notes_(notes) {}

  void take_over_unknown();
  void note_incarnations();
  void forget_released();
  void replace_lost();
  void match_counts();
  void match_fetchers();
  Reconciled finish();

 private:
  Placement* find(std::string_view worker_id);
  bool is_alive(const std::string& node_id) const;
  std::vector<Placement*> active(ProcessRole role);
  void set_phase(Placement& placement, PlacementPhase phase, std::string_view kind,
                 std::string detail);
  void match_count(ProcessRole role, int wanted);
  void release_surplus(std::vector<Placement*> active, int wanted);
  bool revive_one(ProcessRole role);
  bool place_one(ProcessRole role);
  void place(ProcessRole role, const std::string& node_id);
  void provide_fetcher(const std::string& node_id);
  std::optional<std::string> best_node(ProcessRole role) const;

  std::vector<Placement> placements_;
  std::uint64_t retired_incarnation_;
  const ReconcileInputs& inputs_;
  std::vector<Note>& notes_;
};

Placement* Pass::find(std::string_view worker_id) {
  for (Placement& placement : placements_) {
    if (placement.worker_id == worker_id) return &placement;
  }
  return nullptr;
}

bool Pass::is_alive(const std::string& node_id) const {
  const auto it = inputs_.nodes.find(node_id);
  return it != inputs_.nodes.end() && it->second.is_alive;
}

void Pass::take_over_unknown() {
  if (!inputs_.is_window_open && inputs_.desired) return;
  for (const auto& [node_id, node] : inputs_.nodes) {
    if (!node.is_alive) continue;
    for (const ProcessReport& report : node.processes) {
      const std::optional<int> index = parse_worker_index(report.worker_id, report.role);
      if (!index || find(report.worker_id) != nullptr) continue;
      Placement placement;
      placement.worker_id = report.worker_id;
      placement.role = report.role;
      placement.index = *index;
      placement.node_id = node_id;
      placement.changed_revision = inputs_.next_revision;
      placements_.push_back(std::move(placement));
      notes_.push_back({"worker_taken_over", report.worker_id, str_cat("found on ", node_id)});
    }
  }
}

void Pass::note_incarnations() {
  std::map<std::string_view, Placement*> by_id;
  for (Placement& placement : placements_) by_id[placement.worker_id] = &placement;
  for (const auto& [node_id, node] : inputs_.nodes) {
    for (const ProcessReport& report : node.processes) {
      const auto it = by_id.find(report.worker_id);
      if (it == by_id.end() || it->second->node_id != node_id) continue;
      it->second->incarnation = std::max(it->second->incarnation, report.incarnation);
    }
  }
}

void Pass::forget_released() {
  const auto is_gone = [this](const Placement& placement) {
    if (placement.phase != PlacementPhase::kReleasing) return false;
    const auto it = inputs_.nodes.find(placement.node_id);
    if (it == inputs_.nodes.end() || !it->second.has_reported) return false;
    const NodeRecord& node = it->second;
    // An agent that left has stopped everything. Any other, dead or alive, must have heard of the
    // release: a report from before may not show a process that it is about to start.
    const bool has_heard =
        node.applied_epoch == inputs_.epoch && node.applied_revision >= placement.changed_revision;
    if (!node.has_left && !has_heard) return false;
    return std::none_of(
        node.processes.begin(), node.processes.end(),
        [&](const ProcessReport& report) { return report.worker_id == placement.worker_id; });
  };
  for (const Placement& placement : placements_) {
    if (is_gone(placement)) {
      retired_incarnation_ = std::max(retired_incarnation_, placement.incarnation);
      notes_.push_back(
          {"worker_removed", placement.worker_id, str_cat("from ", placement.node_id)});
    }
  }
  std::erase_if(placements_, is_gone);
}

void Pass::set_phase(Placement& placement, PlacementPhase phase, std::string_view kind,
                     std::string detail) {
  placement.phase = phase;
  placement.changed_revision = inputs_.next_revision;
  notes_.push_back({std::string(kind), placement.worker_id, std::move(detail)});
}

void Pass::replace_lost() {
  const bool has_other = std::any_of(inputs_.nodes.begin(), inputs_.nodes.end(),
                                     [](const auto& entry) { return entry.second.is_alive; });
  if (!has_other) return;  // nowhere to go: keep them for the node's return
  for (Placement& placement : placements_) {
    if (placement.phase != PlacementPhase::kActive) continue;
    if (!inputs_.lost_nodes.contains(placement.node_id)) continue;
    // What it stores is on that machine: elsewhere it would be another, empty one.
    if (placement.role == ProcessRole::kStorage) continue;
    set_phase(placement, PlacementPhase::kReleasing, "worker_released",
              str_cat("node ", placement.node_id, " is lost"));
  }
}

std::vector<Placement*> Pass::active(ProcessRole role) {
  std::vector<Placement*> found;
  for (Placement& placement : placements_) {
    if (placement.role == role && placement.phase == PlacementPhase::kActive) {
      found.push_back(&placement);
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Placement* a, const Placement* b) { return a->index < b->index; });
  return found;
}

void Pass::match_counts() {
  for (ProcessRole role : kAllRoles) {
    if (role == ProcessRole::kKvFetch) continue;  // their number follows from where engines are
    match_count(role, wanted_count(*inputs_.desired, placements_, role));
  }
}

void Pass::match_count(ProcessRole role, int wanted) {
  std::vector<Placement*> present = active(role);
  int missing = wanted - static_cast<int>(present.size());
  if (missing < 0) return release_surplus(std::move(present), wanted);
  while (missing > 0 && (revive_one(role) || place_one(role))) --missing;
}

void Pass::release_surplus(std::vector<Placement*> present, int wanted) {
  if (inputs_.is_window_open) return;
  while (static_cast<int>(present.size()) > wanted) {
    set_phase(*present.back(), PlacementPhase::kReleasing, "worker_released",
              str_cat("more than the desired ", wanted));
    present.pop_back();
  }
}

bool Pass::revive_one(ProcessRole role) {
  Placement* lowest = nullptr;
  for (Placement& placement : placements_) {
    if (placement.role != role || placement.phase != PlacementPhase::kReleasing) continue;
    if (!is_alive(placement.node_id)) continue;
    if (lowest == nullptr || placement.index < lowest->index) lowest = &placement;
  }
  if (lowest == nullptr) return false;
  set_phase(*lowest, PlacementPhase::kActive, "worker_placed",
            str_cat("again on ", lowest->node_id));
  return true;
}

bool Pass::place_one(ProcessRole role) {
  const std::optional<std::string> node = best_node(role);
  if (!node) return false;
  place(role, *node);
  return true;
}

void Pass::place(ProcessRole role, const std::string& node_id) {
  Placement placement;
  placement.worker_id = free_worker_name(placements_, role);
  placement.role = role;
  placement.index = *parse_worker_index(placement.worker_id, role);
  placement.node_id = node_id;
  placement.incarnation = retired_incarnation_;
  placement.changed_revision = inputs_.next_revision;
  notes_.push_back({"worker_placed", placement.worker_id, str_cat("on ", node_id)});
  placements_.push_back(std::move(placement));
}

void Pass::match_fetchers() {
  std::set<std::string> without = fetcher_nodes(*inputs_.desired, placements_);
  for (Placement* fetcher : active(ProcessRole::kKvFetch)) {
    const bool is_needed = without.erase(fetcher->node_id) > 0;  // the first of its node
    if (is_needed || inputs_.is_window_open) continue;
    set_phase(*fetcher, PlacementPhase::kReleasing, "worker_released",
              str_cat("node ", fetcher->node_id, " needs no fetcher"));
  }
  for (const std::string& node_id : without) {
    if (is_alive(node_id)) provide_fetcher(node_id);
  }
}

void Pass::provide_fetcher(const std::string& node_id) {
  for (Placement& placement : placements_) {
    if (placement.role != ProcessRole::kKvFetch || placement.node_id != node_id) continue;
    set_phase(placement, PlacementPhase::kActive, "worker_placed", str_cat("again on ", node_id));
    return;
  }
  place(ProcessRole::kKvFetch, node_id);
}

std::optional<std::string> Pass::best_node(ProcessRole role) const {
  std::map<std::string_view, std::pair<int, int>> load;  // of this role, of all roles
  for (const Placement& placement : placements_) {
    auto& [same_role, all] = load[placement.node_id];
    same_role += placement.role == role ? 1 : 0;
    ++all;
  }
  std::optional<std::string> best;
  for (const auto& [node_id, node] : inputs_.nodes) {
    if (!node.is_alive) continue;
    // Two storage processes of one machine would die together; two entrypoints cannot have one
    // port.
    const bool is_single = role == ProcessRole::kStorage || role == ProcessRole::kEntrypoint;
    if (is_single && load[node_id].first > 0) continue;
    if (!best || load[node_id] < load[*best]) best = node_id;
  }
  return best;
}

Reconciled Pass::finish() {
  std::sort(placements_.begin(), placements_.end(), [](const Placement& a, const Placement& b) {
    return std::tie(a.role, a.index) < std::tie(b.role, b.index);
  });
  return {std::move(placements_), retired_incarnation_};
}

}  // namespace

std::string worker_name(ProcessRole role, int index) {
  return str_cat(api::admin::process_role_name(role), "-", index);
}

std::optional<int> parse_worker_index(std::string_view worker_id, ProcessRole role) {
  constexpr std::size_t kMostDigits = 6;
  const std::string prefix = str_cat(api::admin::process_role_name(role), "-");
  if (!worker_id.starts_with(prefix)) return std::nullopt;
  const std::string_view digits = worker_id.substr(prefix.size());
  if (digits.empty() || digits.size() > kMostDigits) return std::nullopt;
  int index = 0;
  for (char c : digits) {
    if (c < '0' || c > '9') return std::nullopt;
    index = index * 10 + (c - '0');
  }
  if (worker_name(role, index) != worker_id) return std::nullopt;  // leading zeros
  return index;
}

std::set<std::string> fetcher_nodes(const DesiredState& desired,
                                    const std::vector<Placement>& placements) {
  std::set<std::string> nodes;
  if (desired.storage.nodes == 0) return nodes;
  for (const Placement& placement : placements) {
    const bool is_active = placement.phase == PlacementPhase::kActive;
    if (is_active && api::admin::is_engine(placement.role)) nodes.insert(placement.node_id);
  }
  return nodes;
}

int wanted_count(const DesiredState& desired, const std::vector<Placement>& placements,
                 ProcessRole role) {
  switch (role) {
    case ProcessRole::kPrefill:
      return desired.prefill;
    case ProcessRole::kDecode:
      return desired.decode;
    case ProcessRole::kEntrypoint:
      return desired.entrypoint;
    case ProcessRole::kStorage:
      return desired.storage.nodes;
    case ProcessRole::kKvFetch:
      return static_cast<int>(fetcher_nodes(desired, placements).size());
  }
  return 0;
}

std::string free_worker_name(const std::vector<Placement>& placements, ProcessRole role,
                             const std::set<int>& taken) {
  std::set<int> used = taken;
  for (const Placement& placement : placements) {
    if (placement.role == role) used.insert(placement.index);
  }
  int index = 0;
  while (used.contains(index)) ++index;
  return worker_name(role, index);
}

Reconciled reconcile(Reconciled current, const ReconcileInputs& inputs, std::vector<Note>& notes) {
  Pass pass(std::move(current), inputs, notes);
  pass.take_over_unknown();
  pass.note_incarnations();
  pass.forget_released();
  pass.replace_lost();
  if (inputs.desired) {
    pass.match_counts();
    pass.match_fetchers();
  }
  pass.note_incarnations();  // of what was placed just now under a name that runs already
  return pass.finish();
}

}  // namespace millrace::controller::core
