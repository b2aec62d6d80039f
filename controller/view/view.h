#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "api/admin/view.h"
#include "controller/membership/membership.h"

namespace millrace::controller::view {

/// An engine worker that the controller has placed on a node.
struct PlacedWorker {
  std::string worker_id;
  std::string node_id;
  api::admin::WorkerRole role = api::admin::WorkerRole::kPrefill;
  bool is_leaving = false;  ///< it is being removed: nothing new should go there
};

struct PlacedEntrypoint {
  std::string entrypoint_id;
  std::string node_id;
};

struct ViewInputs {
  std::uint64_t epoch = 0;
  std::string model_id;  ///< the desired one; empty = none was ever wanted
  std::vector<PlacedWorker> placed;
  std::vector<PlacedEntrypoint> entrypoints;
  const std::map<std::string, membership::NodeRecord, std::less<>>& nodes;
  const api::admin::RoutingView& previous;
  /// Soon after a start the controller has not heard every agent yet: workers of the silent nodes
  /// stay as the previous view had them, so that a restart stops no traffic.
  bool keep_unheard = false;
};

/// A ready worker that must not be routed to, and why.
struct LeftOut {
  std::string worker_id;
  std::string reason;
  bool operator==(const LeftOut&) const = default;
};

struct BuiltView {
  api::admin::RoutingView view;  ///< its version is the previous one's
  std::vector<LeftOut> left_out;
};

/// What entrypoints should see: placed workers that run on nodes that are alive. A ready worker
/// whose model or artifact digest is another than the others' is left out: its KV and its tokens
/// would not be theirs. Entrypoints are listed while they are ready. Buckets, their
/// edges and the prefill cost are filled in by others (core/balancer.h). Pure.
BuiltView build_view(const ViewInputs& inputs);

/// Whether two views say the same, versions aside.
bool is_same_content(const api::admin::RoutingView& a, const api::admin::RoutingView& b);

}  // namespace millrace::controller::view
