#pragma once

#include "absl/status/statusor.h"
#include "deploy/cli/admin_client.h"
#include "deploy/cli/storage_commands.h"

namespace millrace::deploy::cli {

/// The admin API of the cluster that the options mean. kNotFound, with what to do, when none was
/// named and none was started from the data folder.
absl::StatusOr<AdminClient> admin_of(const StorageServer& server);

/// The controller of the options, as host:port; errors as above.
absl::StatusOr<std::string> controller_of(const StorageServer& server);

}  // namespace millrace::deploy::cli
