#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "api/admin/cluster.h"
#include "common/types.h"
#include "deploy/cli/cluster_secret.h"
#include "storage/kv/block_key.h"

namespace millrace::deploy::cli {

/// What a file for `kv check` holds: the tokens of a prompt, or keys.
struct CheckedPrompt {
  std::vector<TokenId> tokens;
  std::vector<storage::BlockKey> keys;  ///< used when there are no tokens
};

/// A JSON list of token ids, or lines of 64 hexadecimal digits. kInvalidArgument names the line or
/// the item.
absl::StatusOr<CheckedPrompt> parse_checked_prompt(std::string_view text);

/// Keys of the prompt's full blocks, as this cluster names them for that account and user. Reads
/// the model (its digest covers every weight). Errors: those of opening it.
absl::StatusOr<std::vector<storage::BlockKey>> block_keys(const api::admin::DesiredState& desired,
                                                          const ClusterSecret& secret,
                                                          std::string_view account,
                                                          std::string_view user_id,
                                                          const std::vector<TokenId>& tokens);

/// What the KV store must know of a model with these engine switches, in bytes.
struct KvSizes {
  std::size_t block = 0;
  std::size_t window = 0;
};
absl::StatusOr<KvSizes> kv_sizes(const std::string& model_dir, std::string_view engine);

}  // namespace millrace::deploy::cli
