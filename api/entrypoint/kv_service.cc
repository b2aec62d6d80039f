#include "api/entrypoint/kv_service.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "common/status_macros.h"

namespace millrace::api::entrypoint {
namespace {

constexpr auto kBlockTokens = static_cast<std::uint32_t>(storage::kBlockTokens);
// A window saves the work of one block: not worth more time of the whole prompt.
constexpr std::chrono::milliseconds kDirectoryTimeout{20};

}  // namespace

absl::StatusOr<std::unique_ptr<KvService>> KvService::open(common::http::EventLoop& loop,
                                                           Logger log, Registry& registry,
                                                           const std::string& controller_url,
                                                           const KvOptions& options) {
  std::unique_ptr<KvService> service(new KvService(loop, registry, options));
  ASSIGN_OR_RETURN(service->store_,
                   storage::client::StoreClient::open(
                       {.controller_url = controller_url, .map_path = {}, .registry = &registry},
                       std::move(log)));
  service->lookup_ =
      std::make_unique<KvLookup>(loop, service->store_->blocks(), service->metrics_,
                                 KvLookupOptions{.timeout = options.check_timeout, .cache = {}});
  ASSIGN_OR_RETURN(service->directory_,
                   storage::swa::DirectoryService::start(
                       {.listen_address = options.directory_listen, .limits = {}}, registry));
  storage::swa::DirectoryClientOptions client;
  client.own_id = options.entrypoint_id;
  service->windows_ = storage::swa::DirectoryClient::create(client, *service->directory_, registry);
  return service;
}

KvService::KvService(common::http::EventLoop& loop, Registry& registry, const KvOptions& options)
    : loop_(loop), metrics_(registry), names_(options.cluster_secret) {}

void KvService::apply_view(const admin::RoutingView& view) {
  names_.set_artifact(view.artifact_digest_hex);
  std::vector<storage::swa::DirectoryMember> members;
  members.reserve(view.entrypoints.size());
  for (const admin::ViewEntrypoint& entrypoint : view.entrypoints) {
    members.push_back(
        {entrypoint.entrypoint_id, entrypoint.directory_address, entrypoint.incarnation});
  }
  windows_->set_members(std::move(members));
}

void KvService::add_windows(std::vector<storage::swa::DirectoryEntry> windows) {
  if (!windows.empty()) windows_->put(std::move(windows));
}

KvService::Blocks KvService::name(const Caller& caller,
                                  const recipe::PreparedRequest& request) const {
  std::optional<RequestBlocks> blocks = names_.name(caller, request);
  if (!blocks) return nullptr;
  return std::make_shared<const RequestBlocks>(*std::move(blocks));
}

void KvService::look_up(const Blocks& blocks, KvLookup::Done done) {
  if (blocks == nullptr || store_->map() == nullptr) {
    done({});
    return;
  }
  lookup_->start(blocks, [this, blocks, done = std::move(done)](std::vector<KvFinding> findings) {
    find_windows(blocks, std::move(findings), done);
  });
}

/// Asks the directory for the windows that a prefill behind these hits could begin with: the one at
/// the hit's end, with which nothing runs twice, and the one a block before it.
void KvService::find_windows(const Blocks& blocks, std::vector<KvFinding> findings,
                             const KvLookup::Done& done) {
  std::vector<storage::BlockKey> keys;
  std::vector<std::pair<std::size_t, std::uint32_t>> wanted;  // of which finding, at which anchor
  for (std::size_t index = 0; index < findings.size(); ++index) {
    const std::uint32_t hit = findings[index].scope.hit_tokens;
    for (const std::uint32_t anchor : {hit, hit - std::min(hit, kBlockTokens)}) {
      if (anchor == 0) continue;
      keys.push_back(blocks->prompts[index].keys[anchor / kBlockTokens - 1]);
      wanted.emplace_back(index, anchor);
    }
  }
  if (keys.empty()) {
    done(std::move(findings));
    return;
  }
  using Found = std::vector<std::optional<storage::swa::WindowLocation>>;
  auto kept = std::make_shared<std::vector<KvFinding>>(std::move(findings));
  windows_->get(std::move(keys), kDirectoryTimeout,
                [this, kept, wanted = std::move(wanted), done](Found found) {
                  loop_.post([kept, wanted, done, found = std::move(found)] {
                    for (std::size_t i = 0; i < found.size(); ++i) {
                      const auto& [index, anchor] = wanted[i];
                      if (found[i]) (*kept)[index].scope.windows.push_back({anchor, *found[i]});
                    }
                    done(std::move(*kept));
                  });
                });
}

void KvService::touch(const RequestBlocks& blocks, const std::vector<KvFinding>& findings) {
  for (std::size_t index = 0; index < findings.size(); ++index) {
    const std::size_t used = findings[index].scope.hit_tokens / storage::kBlockTokens;
    if (used == 0) continue;
    const std::vector<storage::BlockKey>& keys = blocks.prompts[index].keys;
    store_->blocks().touch({keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(used)},
                           blocks.ttl);
  }
}

}  // namespace millrace::api::entrypoint
