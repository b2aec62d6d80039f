#include "deploy/cli/store_client.h"

#include <random>

#include "common/annotate.h"
#include "common/http/http_client.h"
#include "common/log/log.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "storage/store/grpc_transport.h"

namespace millrace::deploy::cli {

absl::StatusOr<std::unique_ptr<StoreClient>> StoreClient::open(const std::string& controller) {
  std::unique_ptr<StoreClient> client(new StoreClient());
  ASSIGN_OR_RETURN(client->map_, storage::MapCell::open(""));
  const std::string url = str_cat("http://", controller);
  common::http::HttpClientOptions http_options;
  http_options.max_body_bytes = storage::kMaxMapBytes;
  common::http::HttpClient http(http_options);
  RETURN_IF_ERROR(annotate(storage::link::fetch_map(http, url, *client->map_),
                           str_cat("the controller at ", controller)));
  if (client->map_->current() == nullptr || client->map().groups.empty()) {
    return absl::FailedPreconditionError(
        "no group of storage targets is formed yet: too few targets have reported");
  }
  client->poller_ = std::make_unique<storage::link::MapPoller>(
      storage::link::MapPollerOptions{.controller_url = url}, *client->map_,
      Logger::to_stderr("kv", LogLevel::kError));
  client->transport_ = storage::store::make_grpc_transport();
  std::random_device random;
  storage::store::BlockStoreOptions options;
  options.seed = (std::uint64_t{random()} << 32) | random();
  options.fetch_map = [poller = client->poller_.get()](std::uint64_t) { poller->refresh(); };
  client->store_ =
      std::make_unique<storage::store::BlockStore>(options, *client->transport_, *client->map_);
  client->listener_ = std::make_unique<storage::link::MapListener>(
      *client->poller_, [store = client->store_.get()] { store->map_changed(); });
  return client;
}

StoreClient::~StoreClient() = default;

}  // namespace millrace::deploy::cli
