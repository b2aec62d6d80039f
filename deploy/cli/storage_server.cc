#include "deploy/cli/storage_server.h"

#include "common/status_macros.h"
#include "deploy/cli/cluster_record.h"

namespace millrace::deploy::cli {

absl::StatusOr<std::string> controller_of(const StorageServer& server) {
  if (!server.controller.empty()) return server.controller;
  ASSIGN_OR_RETURN(const ClusterRecord record, read_record(server.data_dir));
  return record.controller;
}

absl::StatusOr<AdminClient> admin_of(const StorageServer& server) {
  ASSIGN_OR_RETURN(std::string controller, controller_of(server));
  return AdminClient(std::move(controller));
}

}  // namespace millrace::deploy::cli
