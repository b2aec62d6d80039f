#include "api/entrypoint/api_keys.h"

#include <utility>
#include <vector>

#include "api/recipe/request_error.h"
#include "common/annotate.h"
#include "common/config/toml_records.h"
#include "common/hex.h"
#include "common/mapped_file.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::entrypoint {
namespace {

constexpr std::size_t kMostFileBytes = std::size_t{32} << 20;
constexpr std::size_t kMostAccountBytes = 256;
// Longer ones are nobody's; so nothing long is hashed for a stranger.
constexpr std::size_t kMostKeyBytes = 1024;
constexpr std::string_view kBearer = "Bearer ";

absl::Status at_line(int line, std::string_view problem) {
  return absl::InvalidArgumentError(str_cat("line ", line, ": ", problem));
}

storage::BlockKey digest_of(std::string_view key) {
  Sha256 hash;
  hash.update(key);
  return {hash.finish()};
}

absl::StatusOr<Caller> read_caller(const common::config::TomlRecord& record) {
  Caller caller;
  caller.account = record.members.at("account");
  if (caller.account.empty() || caller.account.size() > kMostAccountBytes) {
    return at_line(record.lines.at("account"),
                   str_cat("\"account\" must have 1 to ", kMostAccountBytes, " bytes"));
  }
  const auto traffic = record.members.find("class");
  if (traffic == record.members.end()) return caller;
  if (traffic->second == "agent") {
    caller.ttl = storage::TtlClass::kAgent;
  } else if (traffic->second == "chatbot") {
    caller.ttl = storage::TtlClass::kChatbot;
  } else {
    return at_line(record.lines.at("class"), "\"class\" must be \"agent\" or \"chatbot\"");
  }
  return caller;
}

/// Letters of a scheme count as equal in both cases.
bool has_bearer(std::string_view value) {
  if (value.size() < kBearer.size()) return false;
  for (std::size_t i = 0; i < kBearer.size(); ++i) {
    const char c = value[i];
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    const char wanted = kBearer[i] == 'B' ? 'b' : kBearer[i];
    if (lower != wanted) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<ApiKeys> ApiKeys::open(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_file(path, kMostFileBytes));
  absl::StatusOr<ApiKeys> keys = parse(text);
  if (!keys.ok()) return annotate(keys.status(), path);
  return keys;
}

absl::StatusOr<ApiKeys> ApiKeys::parse(std::string_view text) {
  ASSIGN_OR_RETURN(
      const std::vector<common::config::TomlRecord> records,
      common::config::parse_toml_records(
          text, {.name = "key", .required = {"sha256", "account"}, .optional = {"class"}}));
  ApiKeys keys;
  for (const common::config::TomlRecord& record : records) {
    storage::BlockKey digest;
    const int line = record.lines.at("sha256");
    if (!from_hex(record.members.at("sha256"), digest.bytes)) {
      return at_line(line, "\"sha256\" must have 64 hexadecimal digits, those of a key's SHA-256");
    }
    ASSIGN_OR_RETURN(Caller caller, read_caller(record));
    if (!keys.callers_.emplace(digest, std::move(caller)).second) {
      return at_line(line, "this key is in the file already");
    }
  }
  return keys;
}

std::optional<Caller> ApiKeys::find(std::string_view key) const {
  if (key.empty() || key.size() > kMostKeyBytes) return std::nullopt;
  const auto it = callers_.find(digest_of(key));
  if (it == callers_.end()) return std::nullopt;
  return it->second;
}

std::string_view key_of(const common::http::ServerRequest& request) {
  const std::string_view authorization = request.header("authorization");
  if (has_bearer(authorization)) return authorization.substr(kBearer.size());
  return request.header("x-api-key");
}

absl::Status unknown_key_error(std::string_view key) {
  if (key.empty()) {
    return recipe::authentication_error(
        "You didn't provide an API key. Send it as `Authorization: Bearer KEY` or as `x-api-key`.",
        "");
  }
  return recipe::authentication_error("Incorrect API key provided.", "invalid_api_key");
}

}  // namespace millrace::api::entrypoint
