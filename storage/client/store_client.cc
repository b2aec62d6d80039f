#include "storage/client/store_client.h"

#include <cstdint>
#include <random>
#include <utility>

#include "common/annotate.h"
#include "common/http/http_client.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "storage/link/map_poller.h"
#include "storage/map/map_cell.h"
#include "storage/store/grpc_transport.h"

namespace millrace::storage::client {
namespace {

std::uint64_t random_bits() {
  std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
}

}  // namespace

/// Each ends before those above it, which it uses.
struct StoreClient::Parts {
  std::string controller_url;
  std::unique_ptr<MapCell> cell;
  std::unique_ptr<link::MapPoller> poller;
  std::unique_ptr<ShardTransport> transport;
  std::unique_ptr<store::BlockStore> store;
  std::unique_ptr<link::MapListener> listener;
};

StoreClient::StoreClient(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
StoreClient::~StoreClient() = default;

absl::StatusOr<std::unique_ptr<StoreClient>> StoreClient::open(const StoreClientOptions& options,
                                                               Logger log) {
  const bool has_controller = !options.controller_url.empty();
  if (has_controller && !options.controller_url.starts_with("http://")) {
    return absl::InvalidArgumentError(
        str_cat("\"", options.controller_url, "\" is no URL like http://127.0.0.1:8080"));
  }
  auto parts = std::make_unique<Parts>();
  parts->controller_url = options.controller_url;
  ASSIGN_OR_RETURN(parts->cell, MapCell::open(options.map_path));
  parts->transport = store::make_grpc_transport();
  store::BlockStoreOptions store_options;
  store_options.settings = options.settings;
  store_options.seed = random_bits();
  store_options.registry = options.registry;
  if (has_controller) {
    parts->poller = std::make_unique<link::MapPoller>(
        link::MapPollerOptions{.controller_url = options.controller_url}, *parts->cell,
        std::move(log));
    store_options.fetch_map = [poller = parts->poller.get()](std::uint64_t) { poller->refresh(); };
  }
  parts->store =
      std::make_unique<store::BlockStore>(store_options, *parts->transport, *parts->cell);
  if (has_controller) {
    parts->listener = std::make_unique<link::MapListener>(
        *parts->poller, [store = parts->store.get()] { store->map_changed(); });
  }
  return std::unique_ptr<StoreClient>(new StoreClient(std::move(parts)));
}

absl::Status StoreClient::fetch_map() {
  common::http::HttpClientOptions http_options;
  http_options.max_body_bytes = kMaxMapBytes;
  common::http::HttpClient http(http_options);
  return annotate(link::fetch_map(http, parts_->controller_url, *parts_->cell),
                  str_cat("the controller at ", parts_->controller_url));
}

store::BlockStore& StoreClient::blocks() { return *parts_->store; }

std::shared_ptr<const StorageMap> StoreClient::map() const { return parts_->cell->current(); }

}  // namespace millrace::storage::client
