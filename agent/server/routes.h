#pragma once

#include <functional>
#include <vector>

#include "api/admin/node.h"
#include "common/http/rest_server.h"
#include "common/metrics/metrics.h"

namespace millrace::agent::server {

/// The agent's REST interface: GET /api/v1/state, /metrics and /health. `state` is called on the
/// server's threads; both arguments must outlive the server.
std::vector<common::http::RestRoute> routes(std::function<api::admin::AgentState()> state,
                                            const Registry& registry);

}  // namespace millrace::agent::server
