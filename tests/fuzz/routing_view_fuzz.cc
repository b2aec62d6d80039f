#include <cstddef>
#include <cstdint>
#include <string_view>

#include "api/admin/entrypoint_report.h"
#include "api/admin/node.h"
#include "api/admin/view.h"
#include "common/check.h"

/// Messages of the control plane: a view or a report that is accepted survives a round trip;
/// heartbeats are refused or accepted, never worse.

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto view = millrace::api::admin::parse_routing_view(json);
  if (view.ok()) {
    const auto again =
        millrace::api::admin::parse_routing_view(millrace::api::admin::to_json(*view));
    CHECK(again.ok() && again->workers.size() == view->workers.size());
  }
  const auto report = millrace::api::admin::parse_entrypoint_report(json);
  if (report.ok()) {
    const auto again = millrace::api::admin::parse_entrypoint_report(to_json(*report));
    CHECK(again.ok());
  }
  (void)millrace::api::admin::parse_heartbeat(json);
  (void)millrace::api::admin::parse_heartbeat_reply(json);
  return 0;
}
