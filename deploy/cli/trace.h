#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace::deploy::cli {

/// The size of one request of a load, and when it comes.
struct RequestShape {
  int input_tokens = 0;
  int output_tokens = 0;
  std::chrono::nanoseconds arrival{0};  ///< since the first request; never decreases
};

/// Reads at most `most` requests of a published trace, plain or gzip-compressed:
///   CSV with the columns TIMESTAMP ("2023-11-16 18:15:46.6805900"), ContextTokens, GeneratedTokens
///     (the Azure LLM inference traces of 2023);
///   JSON lines with timestamp (milliseconds), input_length, output_length (the Mooncake traces).
/// kNotFound: no such file; kInvalidArgument: names the line and what is wrong with it.
absl::StatusOr<std::vector<RequestShape>> read_trace(const std::string& path, std::size_t most);

/// `count` equal requests that all come at once.
std::vector<RequestShape> equal_requests(std::size_t count, int input_tokens, int output_tokens);

}  // namespace millrace::deploy::cli
