#pragma once

#include <map>
#include <string>
#include <vector>

#include "api/admin/cluster.h"
#include "api/admin/node.h"
#include "common/time_point.h"
#include "controller/core/stored_state.h"
#include "controller/membership/membership.h"

namespace millrace::controller::core {

/// GET /api/v1/nodes, ordered by node id.
std::vector<api::admin::NodeInfo> list_nodes(
    const std::map<std::string, membership::NodeRecord, std::less<>>& nodes, TimePoint now);

/// GET /api/v1/instances: every placement with what its node last said of it, then the ones that
/// are desired but have no node yet ("pending"). Ordered by role, then index.
std::vector<api::admin::InstanceInfo> list_instances(
    const StoredState& state,
    const std::map<std::string, membership::NodeRecord, std::less<>>& nodes);

}  // namespace millrace::controller::core
