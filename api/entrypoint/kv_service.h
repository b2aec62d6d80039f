#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "api/admin/view.h"
#include "api/entrypoint/caller.h"
#include "api/entrypoint/kv_lookup.h"
#include "api/entrypoint/kv_metrics.h"
#include "api/entrypoint/kv_names.h"
#include "api/recipe/prepared_request.h"
#include "common/http/event_loop.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "storage/client/store_client.h"
#include "storage/swa/directory_client.h"
#include "storage/swa/directory_service.h"

namespace millrace::api::entrypoint {

struct KvOptions {
  Secret cluster_secret{};                       ///< what the names of blocks are made of
  std::string entrypoint_id;                     ///< as the routing view lists it
  std::string directory_listen = "127.0.0.1:0";  ///< host:port, for other entrypoints
  /// How long a request waits at most for what is known of its KV.
  std::chrono::milliseconds check_timeout{50};
};

/// What an entrypoint knows of stored KV: the names of a request's blocks, and how many of them can
/// be had. Belongs to the loop's thread, but for name().
class KvService {
 public:
  using Blocks = std::shared_ptr<const RequestBlocks>;

  /// Loop and registry are borrowed. Does not wait for controller or storage nodes. Errors: those
  /// of StoreClient::open() and DirectoryService::start().
  static absl::StatusOr<std::unique_ptr<KvService>> open(common::http::EventLoop& loop, Logger log,
                                                         Registry& registry,
                                                         const std::string& controller_url,
                                                         const KvOptions& options);
  /// Call when the loop does not run any more.
  ~KvService() = default;

  /// A newer routing view: says which model the engines have loaded, and who keeps the directory.
  void apply_view(const admin::RoutingView& view);

  /// How engines lay stored KV out; see KvNames.
  void set_layout(std::string_view layout_id) { names_.set_layout(layout_id); }

  /// host:port of this entrypoint's shard of the window directory.
  const std::string& directory_address() const { return directory_->address(); }

  /// Where engines left windows: for the directory.
  void add_windows(std::vector<storage::swa::DirectoryEntry> windows);

  /// Names a request's blocks; nullptr while no model or layout is known. For the decoding thread.
  Blocks name(const Caller& caller, const recipe::PreparedRequest& request) const;

  /// Calls `done` once, on the loop or within the call, with one finding for each prompt; with none
  /// when the cluster stores no KV (or has not said so yet), or when `blocks` is null.
  void look_up(const Blocks& blocks, KvLookup::Done done);

  /// The stored blocks that these findings name are used: they live on.
  void touch(const RequestBlocks& blocks, const std::vector<KvFinding>& findings);

 private:
  KvService(common::http::EventLoop& loop, Registry& registry, const KvOptions& options);
  void find_windows(const Blocks& blocks, std::vector<KvFinding> findings,
                    const KvLookup::Done& done);

  common::http::EventLoop& loop_;
  const KvMetrics metrics_;
  KvNames names_;
  std::unique_ptr<KvLookup> lookup_;
  // These call back from threads of their own: they end first.
  std::unique_ptr<storage::client::StoreClient> store_;
  std::unique_ptr<storage::swa::DirectoryService> directory_;
  std::unique_ptr<storage::swa::DirectoryClient> windows_;
};

}  // namespace millrace::api::entrypoint
