#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "api/entrypoint/caller.h"
#include "common/crypto/sha256.h"
#include "common/http/http_server.h"
#include "storage/kv/block_key.h"

namespace millrace::api::entrypoint {

/// Who may send requests, by their key. Keys themselves are nowhere kept: a file of theirs holds
/// SHA-256 digests, in TOML,
///
///     [[key]]
///     sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
///     account = "acme"
///     class = "agent"      # or "chatbot"; optional
///
/// of which `printf %s "$KEY" | sha256sum` makes one. Immutable; any thread.
class ApiKeys {
 public:
  /// Reads a file like that. Errors name the file, and the line and what is allowed there.
  static absl::StatusOr<ApiKeys> open(const std::string& path);
  static absl::StatusOr<ApiKeys> parse(std::string_view text);

  /// Whose key this is; nullopt when it is nobody's. Takes as long for a key that is nearly right
  /// as for any other: what is looked up is its digest.
  std::optional<Caller> find(std::string_view key) const;

  std::size_t size() const { return callers_.size(); }

 private:
  std::unordered_map<storage::BlockKey, Caller, storage::BlockKeyHash> callers_;  // by digest
};

/// The key that a request carries: `Authorization: Bearer KEY`, or `x-api-key: KEY`; empty when it
/// carries none.
std::string_view key_of(const common::http::ServerRequest& request);

/// What its caller is told: kUnauthenticated, with the words of OpenAI's API.
absl::Status unknown_key_error(std::string_view key);

}  // namespace millrace::api::entrypoint
