#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace::common::trace {

/// The size of one request of a load, and when it comes.
struct RequestShape {
  int input_tokens = 0;
  int output_tokens = 0;
  std::chrono::nanoseconds arrival{0};  ///< since the first request; never decreases
  /// Names of the prompt's leading blocks of 512 tokens: equal names are equal prefixes. Empty
  /// where the trace has none.
  std::vector<std::int64_t> prefix_blocks = {};
};

/// Reads at most `most` requests of a published trace, plain or gzip-compressed:
///   CSV with the columns TIMESTAMP ("2023-11-16 18:15:46.6805900"), ContextTokens, GeneratedTokens
///     (the Azure LLM inference traces of 2023);
///   JSON lines with timestamp (milliseconds), input_length, output_length and, if prefixes are to
///     be known, hash_ids (the Mooncake traces).
/// A line has at most a mebibyte, a request at most 2^24 tokens of each kind. kNotFound: no such
/// file; kInvalidArgument: names the line and what is wrong with it.
absl::StatusOr<std::vector<RequestShape>> read_trace(const std::string& path, std::size_t most);

}  // namespace millrace::common::trace
