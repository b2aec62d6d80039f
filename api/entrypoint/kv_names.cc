#include "api/entrypoint/kv_names.h"

#include "common/hex.h"

namespace millrace::api::entrypoint {

using storage::TtlClass;

void KvNames::set_artifact(std::string_view digest_hex) {
  Sha256Digest digest{};
  const bool is_digest = from_hex(digest_hex, digest);
  const std::lock_guard lock(mutex_);
  artifact_ = is_digest ? std::optional(digest) : std::nullopt;
}

void KvNames::set_layout(std::string_view layout_id) {
  const std::lock_guard lock(mutex_);
  layout_id_ = layout_id;
}

std::optional<RequestBlocks> KvNames::name(const Caller& caller,
                                           const recipe::PreparedRequest& request) const {
  storage::kv::RootInputs inputs;
  {
    const std::lock_guard lock(mutex_);
    if (!artifact_ || layout_id_.empty()) return std::nullopt;
    inputs.artifact_digest = *artifact_;
    inputs.layout_id = layout_id_;
  }
  inputs.salt = storage::kv::account_salt(cluster_secret_, caller.account, request.user_id);
  const storage::BlockKey root = storage::kv::chain_root(inputs);
  RequestBlocks blocks{.salt = inputs.salt, .ttl = ttl_of(caller, request), .prompts = {}};
  const auto add = [&](const std::vector<TokenId>& prompt) {
    blocks.prompts.push_back(
        {static_cast<std::uint32_t>(prompt.size()), storage::kv::chain_keys(root, prompt)});
  };
  blocks.prompts.reserve(1 + request.further_prompts.size());
  add(request.prompt);
  for (const std::vector<TokenId>& prompt : request.further_prompts) add(prompt);
  return blocks;
}

TtlClass ttl_of(const Caller& caller, const recipe::PreparedRequest& request) {
  if (caller.ttl) return *caller.ttl;
  return request.has_tools ? TtlClass::kAgent : TtlClass::kChatbot;
}

}  // namespace millrace::api::entrypoint
