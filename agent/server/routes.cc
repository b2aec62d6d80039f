#include "agent/server/routes.h"

#include <utility>

namespace millrace::agent::server {

using common::http::RestRequest;
using common::http::RestResponse;

std::vector<common::http::RestRoute> routes(std::function<api::admin::AgentState()> state,
                                            const Registry& registry) {
  return {
      {"GET", "/api/v1/state",
       [state = std::move(state)](const RestRequest&) {
         return RestResponse{200, to_json(state()), "application/json"};
       }},
      {"GET", "/metrics",
       [&registry](const RestRequest&) {
         return RestResponse{200, registry.exposition(),
                             "text/plain; version=0.0.4; charset=utf-8"};
       }},
      {"GET", "/health",
       [](const RestRequest&) {
         return RestResponse{200, "{\"status\":\"ok\"}", "application/json"};
       }},
  };
}

}  // namespace millrace::agent::server
