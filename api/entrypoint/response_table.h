#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/sqlite/sqlite.h"

namespace millrace::api::entrypoint {

/// A response that is over, as it is kept.
struct StoredResponse {
  std::string id;
  std::string response;      ///< JSON object
  std::string input_items;   ///< JSON list: everything that it continued
  std::string output_items;  ///< JSON list
  std::string events;        ///< of a background stream: all of them; otherwise empty
  std::string account;       ///< of whoever may see it
};

/// A response, and whose it must be.
struct ResponseName {
  std::string id;
  std::string account;
};

/// What a store may hold.
struct StoreBounds {
  std::chrono::seconds time_to_live{30 * 24 * 3600};
  std::size_t bytes = 256u << 20;
};

/// Responses in an SQLite file, for one thread. What is older than its time to live is not found
/// any more; what is too much goes, oldest first. The file stays within the bound, but for what
/// SQLite keeps beside it (indices, and a write-ahead log of a few MiB).
///
/// Errors: kNotFound; kResourceExhausted when one response is larger than the bound; kUnavailable
/// when the file is locked by another process or the disk is full; kDataLoss when it is damaged.
class ResponseTable {
 public:
  /// Opens or creates the file; an empty path is a table in memory. kFailedPrecondition when
  /// another version wrote it.
  static absl::StatusOr<ResponseTable> open(const std::string& path, const StoreBounds& bounds);

  absl::Status put(const StoredResponse& response, std::int64_t now_seconds);
  /// A response of another account is not found.
  absl::StatusOr<StoredResponse> get(const ResponseName& name, std::int64_t now_seconds);
  absl::Status erase(const ResponseName& name, std::int64_t now_seconds);

 private:
  ResponseTable(common::sqlite::Database database, const StoreBounds& bounds)
      : database_(std::move(database)), bounds_(bounds) {}

  absl::Status insert(const StoredResponse& response, std::int64_t bytes, std::int64_t now_seconds);
  absl::Status make_room(std::int64_t bytes, std::int64_t now_seconds);
  absl::Status erase_row(const ResponseName& name, std::int64_t oldest);

  common::sqlite::Database database_;
  StoreBounds bounds_;
};

}  // namespace millrace::api::entrypoint
