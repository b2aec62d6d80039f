#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "api/admin/cluster.h"
#include "api/admin/node.h"
#include "api/admin/storage.h"
#include "api/admin/view.h"

namespace millrace::deploy::cli {

/// The controller's admin API. One call at a time per object.
/// Errors: kUnavailable names the controller when it cannot be reached; else its own message.
class AdminClient {
 public:
  /// `address` is host:port.
  explicit AdminClient(std::string address);
  AdminClient(AdminClient&&) noexcept;
  ~AdminClient();

  absl::Status put_desired(const api::admin::DesiredState& desired);
  absl::StatusOr<api::admin::DesiredState> desired();
  absl::StatusOr<std::vector<api::admin::NodeInfo>> nodes();
  absl::StatusOr<std::vector<api::admin::InstanceInfo>> instances();
  absl::StatusOr<api::admin::RoutingView> view();

  absl::StatusOr<api::admin::StorageStatus> storage();
  absl::StatusOr<api::admin::StorageStatus> replace_target(
      const api::admin::StorageReplace& replace);
  absl::StatusOr<api::admin::StorageWish> scrub();
  absl::StatusOr<api::admin::StorageWish> evict(const api::admin::StorageEvict& evict);

  /// Whether GET /ready of the server at host:port answers 200.
  bool is_ready(const std::string& server_address);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::deploy::cli
