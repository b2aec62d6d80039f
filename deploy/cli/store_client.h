#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "storage/client/store_client.h"

namespace millrace::deploy::cli {

/// A client of a cluster's storage nodes for as long as a command runs. Asks the controller at
/// host:port for the map. kNotFound: the cluster stores no KV; kUnavailable: no controller;
/// kFailedPrecondition: there is no group yet.
absl::StatusOr<std::unique_ptr<storage::client::StoreClient>> open_store(
    const std::string& controller, const storage::store::StoreSettings& settings = {});

}  // namespace millrace::deploy::cli
