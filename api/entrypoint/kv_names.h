#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/entrypoint/caller.h"
#include "api/recipe/prepared_request.h"
#include "common/crypto/secret_file.h"
#include "common/crypto/sha256.h"
#include "storage/kv/block_key.h"
#include "storage/kv/hash_chain.h"
#include "storage/kv/ttl_class.h"

namespace millrace::api::entrypoint {

/// The blocks of one prompt by name.
struct PromptBlocks {
  std::uint32_t prompt_tokens = 0;
  std::vector<storage::BlockKey> keys;  ///< of its full blocks
};

/// The blocks of a request's prompts, and what goes with them.
struct RequestBlocks {
  storage::kv::Salt salt{};
  storage::TtlClass ttl = storage::TtlClass::kChatbot;
  std::vector<PromptBlocks> prompts;  ///< in the request's order
};

/// Names the KV blocks of requests, for the model and the KV layout of the cluster's engines.
/// Nobody who does not have the cluster's secret can make a name of a text; and two accounts share
/// no name.
class KvNames {
 public:
  explicit KvNames(const Secret& cluster_secret) : cluster_secret_(cluster_secret) {}

  /// The model that the cluster's engines have loaded, in hexadecimal digits; what is no digest
  /// (there is no engine yet) names no blocks. Any thread.
  void set_artifact(std::string_view digest_hex);

  /// How these engines lay stored KV out, as one of them says when its stream opens: it follows
  /// from their switches, which an entrypoint does not know. Any thread.
  void set_layout(std::string_view layout_id);

  /// nullopt while model or layout is not known. Hashes every token of the prompts: for the
  /// decoding thread.
  std::optional<RequestBlocks> name(const Caller& caller,
                                    const recipe::PreparedRequest& request) const;

 private:
  const Secret cluster_secret_;
  mutable std::mutex mutex_;  // guards what follows
  std::optional<Sha256Digest> artifact_;
  std::string layout_id_;
};

/// How long the request's KV is kept: as its caller's key says; else as agents need it when it has
/// tools, and as chats do when it has none. (A block that both use is kept for the longer time.)
storage::TtlClass ttl_of(const Caller& caller, const recipe::PreparedRequest& request);

}  // namespace millrace::api::entrypoint
