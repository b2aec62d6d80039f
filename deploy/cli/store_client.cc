#include "deploy/cli/store_client.h"

#include "common/log/log.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::deploy::cli {

using storage::client::StoreClient;

absl::StatusOr<std::unique_ptr<StoreClient>> open_store(
    const std::string& controller, const storage::store::StoreSettings& settings) {
  ASSIGN_OR_RETURN(
      std::unique_ptr<StoreClient> client,
      StoreClient::open({.controller_url = str_cat("http://", controller), .settings = settings},
                        Logger::to_stderr("kv", LogLevel::kError)));
  RETURN_IF_ERROR(client->fetch_map());
  if (client->map() == nullptr || client->map()->groups.empty()) {
    return absl::FailedPreconditionError(
        "no group of storage targets is formed yet: too few targets have reported");
  }
  return client;
}

}  // namespace millrace::deploy::cli
