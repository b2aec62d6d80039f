#include "deploy/cli/store_client.h"

#include <random>

#include "common/annotate.h"
#include "common/http/http_client.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "storage/link/map_poller.h"
#include "storage/store/grpc_transport.h"

namespace millrace::deploy::cli {

absl::StatusOr<std::unique_ptr<StoreClient>> StoreClient::open(const std::string& controller) {
  std::unique_ptr<StoreClient> client(new StoreClient());
  ASSIGN_OR_RETURN(client->map_, storage::MapCell::open(""));
  common::http::HttpClientOptions http_options;
  http_options.max_body_bytes = storage::kMaxMapBytes;
  common::http::HttpClient http(http_options);
  RETURN_IF_ERROR(
      annotate(storage::link::fetch_map(http, str_cat("http://", controller), *client->map_),
               str_cat("the controller at ", controller)));
  if (client->map_->current() == nullptr || client->map().groups.empty()) {
    return absl::FailedPreconditionError(
        "no group of storage targets is formed yet: too few targets have reported");
  }
  client->transport_ = storage::store::make_grpc_transport();
  std::random_device random;
  storage::store::BlockStoreOptions options;
  options.seed = (std::uint64_t{random()} << 32) | random();
  client->store_ =
      std::make_unique<storage::store::BlockStore>(options, *client->transport_, *client->map_);
  return client;
}

StoreClient::~StoreClient() = default;

}  // namespace millrace::deploy::cli
