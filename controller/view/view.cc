#include "controller/view/view.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/str_cat.h"

namespace millrace::controller::view {
namespace {

using api::admin::ProcessReport;
using api::admin::ProcessState;
using api::admin::RoutingView;
using api::admin::ViewEntrypoint;
using api::admin::ViewWorker;
using api::admin::WorkerState;
using membership::NodeRecord;

const ProcessReport* find_report(const NodeRecord& node, const std::string& worker_id) {
  for (const ProcessReport& report : node.processes) {
    if (report.worker_id == worker_id) return &report;
  }
  return nullptr;
}

const ViewWorker* find_worker(const RoutingView& view, const std::string& worker_id) {
  for (const ViewWorker& worker : view.workers) {
    if (worker.worker_id == worker_id) return &worker;
  }
  return nullptr;
}

bool is_running(const ProcessReport& report) {
  return report.pid != 0 &&
         (report.state == ProcessState::kStarting || report.state == ProcessState::kReady ||
          report.state == ProcessState::kDraining);
}

WorkerState view_state(const ProcessReport& report, bool is_leaving) {
  if (report.state == ProcessState::kStarting) return WorkerState::kStarting;
  if (report.state == ProcessState::kDraining || is_leaving) return WorkerState::kDraining;
  return WorkerState::kReady;
}

/// A worker that runs, with what is needed to judge it.
struct Candidate {
  ViewWorker worker;
  std::string model_id;
  std::string digest;
};

std::vector<Candidate> running_workers(const ViewInputs& inputs) {
  std::vector<Candidate> candidates;
  for (const PlacedWorker& placed : inputs.placed) {
    const auto node = inputs.nodes.find(placed.node_id);
    const bool is_heard = node != inputs.nodes.end() && node->second.has_reported;
    if (!is_heard) {
      const ViewWorker* before = find_worker(inputs.previous, placed.worker_id);
      if (inputs.keep_unheard && before != nullptr && before->node_id == placed.node_id) {
        candidates.push_back(
            {*before, inputs.previous.model_id,
             before->state == WorkerState::kStarting ? "" : inputs.previous.artifact_digest_hex});
      }
      continue;
    }
    if (!node->second.is_alive) continue;
    const ProcessReport* report = find_report(node->second, placed.worker_id);
    if (report == nullptr || !is_running(*report)) continue;
    ViewWorker worker;
    worker.worker_id = placed.worker_id;
    worker.instance_id = placed.worker_id;  // one rank per instance
    worker.node_id = placed.node_id;
    worker.host_id = node->second.host_id;
    worker.role = placed.role;
    worker.state = view_state(*report, placed.is_leaving);
    worker.incarnation = report->incarnation;
    worker.address = report->address;
    candidates.push_back({std::move(worker), report->model_id, report->artifact_digest_hex});
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.worker.worker_id < b.worker.worker_id;
  });
  return candidates;
}

/// Those that run on nodes that are alive, and of nodes not heard yet those that were there before.
std::vector<ViewEntrypoint> ready_entrypoints(const ViewInputs& inputs) {
  std::vector<ViewEntrypoint> found;
  for (const PlacedEntrypoint& placed : inputs.entrypoints) {
    const auto node = inputs.nodes.find(placed.node_id);
    const bool is_heard = node != inputs.nodes.end() && node->second.has_reported;
    if (!is_heard) {
      for (const ViewEntrypoint& before : inputs.previous.entrypoints) {
        const bool is_kept = inputs.keep_unheard && before.entrypoint_id == placed.entrypoint_id;
        if (is_kept) found.push_back(before);
      }
      continue;
    }
    const ProcessReport* report =
        node->second.is_alive ? find_report(node->second, placed.entrypoint_id) : nullptr;
    if (report == nullptr || report->state != ProcessState::kReady) continue;
    if (report->directory_address.empty()) continue;
    found.push_back({placed.entrypoint_id, report->incarnation, report->directory_address});
  }
  std::sort(found.begin(), found.end(), [](const ViewEntrypoint& a, const ViewEntrypoint& b) {
    return a.entrypoint_id < b.entrypoint_id;
  });
  return found;
}

bool has_started(const Candidate& candidate) {
  return candidate.worker.state != WorkerState::kStarting;
}

/// The digest all routed workers must share: the one published so far as long as a worker has it
/// (or none has started), else that of the first worker by id.
std::string common_digest(const std::vector<Candidate>& candidates, const std::string& model_id,
                          const RoutingView& previous) {
  const std::string& published = previous.artifact_digest_hex;
  std::optional<std::string> first;
  for (const Candidate& candidate : candidates) {
    if (!has_started(candidate) || candidate.model_id != model_id) continue;
    if (candidate.digest == published) return published;
    if (!first) first = candidate.digest;
  }
  if (first) return *first;
  return model_id == previous.model_id ? published : "";
}

/// Why a worker must not be routed to; empty = it may.
std::string objection(const Candidate& candidate, const RoutingView& view) {
  if (!has_started(candidate)) return "";
  if (candidate.model_id != view.model_id) {
    return str_cat("it serves model \"", candidate.model_id, "\", not \"", view.model_id, "\"");
  }
  if (candidate.digest != view.artifact_digest_hex) {
    return str_cat("its artifact digest is ", candidate.digest, ", not ", view.artifact_digest_hex);
  }
  return "";
}

}  // namespace

BuiltView build_view(const ViewInputs& inputs) {
  const std::vector<Candidate> candidates = running_workers(inputs);
  BuiltView built;
  RoutingView& view = built.view;
  view.version = inputs.previous.version;
  view.epoch = inputs.epoch;
  view.model_id = inputs.model_id;
  if (view.model_id.empty()) {
    const auto first = std::find_if(candidates.begin(), candidates.end(), has_started);
    if (first != candidates.end()) view.model_id = first->model_id;
  }
  view.artifact_digest_hex = common_digest(candidates, view.model_id, inputs.previous);
  for (const Candidate& candidate : candidates) {
    const std::string reason = objection(candidate, view);
    if (reason.empty()) {
      view.workers.push_back(candidate.worker);
    } else {
      built.left_out.push_back({candidate.worker.worker_id, reason});
    }
  }
  view.entrypoints = ready_entrypoints(inputs);
  return built;
}

bool is_same_content(const RoutingView& a, const RoutingView& b) {
  const auto is_same_worker = [](const ViewWorker& x, const ViewWorker& y) {
    return x.worker_id == y.worker_id && x.instance_id == y.instance_id && x.node_id == y.node_id &&
           x.host_id == y.host_id && x.role == y.role && x.state == y.state &&
           x.incarnation == y.incarnation && x.address == y.address && x.bucket == y.bucket;
  };
  return a.epoch == b.epoch && a.model_id == b.model_id &&
         a.artifact_digest_hex == b.artifact_digest_hex && a.entrypoints == b.entrypoints &&
         a.prefill_cost == b.prefill_cost && a.bucket_edges == b.bucket_edges &&
         std::equal(a.workers.begin(), a.workers.end(), b.workers.begin(), b.workers.end(),
                    is_same_worker);
}

}  // namespace millrace::controller::view
