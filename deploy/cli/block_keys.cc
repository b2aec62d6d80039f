#include "deploy/cli/block_keys.h"

#include <limits>
#include <memory>

#include "common/annotate.h"
#include "common/hex.h"
#include "common/json.h"
#include "common/mapped_file.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "dataplane/engine/engine.h"
#include "dataplane/kv/layout.h"
#include "dataplane/model/checkpoint.h"
#include "dataplane/model/config.h"
#include "storage/kv/hash_chain.h"

namespace millrace::deploy::cli {
namespace {

constexpr std::size_t kKeyDigits = 64;

absl::StatusOr<dataplane::kv::Encoding> encoding_of(std::string_view engine) {
  ASSIGN_OR_RETURN(const dataplane::engine::EngineSwitches switches,
                   dataplane::engine::parse_engine_switches(engine));
  return switches.rounding == dataplane::engine::Switch::kOn ? dataplane::kv::Encoding::kQuantized
                                                             : dataplane::kv::Encoding::kFloat32;
}

absl::StatusOr<std::vector<TokenId>> parse_tokens(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  if (!json.is_array()) return absl::InvalidArgumentError("must be a JSON list of token ids");
  std::vector<TokenId> tokens;
  tokens.reserve(json.size());
  for (const Json& item : json) {
    if (!item.is_number_unsigned() ||
        item.get<std::uint64_t>() > std::numeric_limits<TokenId>::max()) {
      return absl::InvalidArgumentError(
          str_cat("item ", tokens.size(), " is no token id: ", dump_json(item).substr(0, 40)));
    }
    tokens.push_back(item.get<TokenId>());
  }
  return tokens;
}

absl::StatusOr<storage::BlockKey> parse_key(std::string_view line, std::size_t number) {
  storage::BlockKey key;
  if (line.size() != kKeyDigits) {
    return absl::InvalidArgumentError(str_cat("line ", number, " has ", line.size(),
                                              " characters; a key has ", kKeyDigits,
                                              " hexadecimal digits"));
  }
  if (from_hex(line, key.bytes)) return key;
  return absl::InvalidArgumentError(
      str_cat("line ", number, " is no key: only hexadecimal digits are allowed"));
}

}  // namespace

absl::StatusOr<CheckedPrompt> parse_checked_prompt(std::string_view text) {
  CheckedPrompt prompt;
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) {
    return absl::InvalidArgumentError("is empty: a JSON list of token ids, or keys, are wanted");
  }
  if (text[first] == '[') {
    ASSIGN_OR_RETURN(prompt.tokens, parse_tokens(text));
    return prompt;
  }
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    ASSIGN_OR_RETURN(const storage::BlockKey key, parse_key(line, number));
    prompt.keys.push_back(key);
  }
  return prompt;
}

absl::StatusOr<std::vector<storage::BlockKey>> block_keys(const api::admin::DesiredState& desired,
                                                          const ClusterSecret& secret,
                                                          std::string_view account,
                                                          std::string_view user_id,
                                                          const std::vector<TokenId>& tokens) {
  ASSIGN_OR_RETURN(const std::unique_ptr<dataplane::model::Checkpoint> checkpoint,
                   dataplane::model::Checkpoint::open(desired.model_dir));
  ASSIGN_OR_RETURN(const dataplane::kv::Encoding encoding, encoding_of(desired.engine));
  storage::kv::RootInputs inputs;
  inputs.artifact_digest = checkpoint->artifact_digest();
  inputs.layout_id = dataplane::kv::BlockLayout(checkpoint->config(), encoding).id();
  inputs.salt = storage::kv::account_salt(secret, account, user_id);
  return storage::kv::chain_keys(storage::kv::chain_root(inputs), tokens);
}

absl::StatusOr<KvSizes> kv_sizes(const std::string& model_dir, std::string_view engine) {
  const std::string path = model_dir + "/config.json";
  ASSIGN_OR_RETURN(const std::string text, read_file(path));
  absl::StatusOr<dataplane::model::ModelConfig> config = dataplane::model::parse_model_config(text);
  if (!config.ok()) return annotate(config.status(), path);
  ASSIGN_OR_RETURN(const dataplane::kv::Encoding encoding, encoding_of(engine));
  return KvSizes{.block = dataplane::kv::BlockLayout(*config, encoding).block_bytes(),
                 .window = dataplane::kv::window_bytes(*config, encoding)};
}

}  // namespace millrace::deploy::cli
