#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/sim/cluster/scenario.h"

namespace millrace::sim {

/// A row of a published trace, with what a prefix cache would have had of it.
struct TraceRow {
  SimTime at = 0;  ///< since the first row; never decreases
  std::int32_t input_tokens = 0;
  std::int32_t output_tokens = 0;
  std::int32_t cached_tokens = 0;  ///< of blocks that earlier rows made
  std::int32_t parent = -1;        ///< the row that used the last of these blocks last
};

/// At most `most` rows (0: all) of a trace that common/trace reads. Nothing is cached of one
/// without prefix blocks.
///
/// A cache of `cache_blocks` blocks (0: unbounded; the one used longest ago makes way) holds what
/// rows before used. Rows with no input or output count as one token. kNotFound: no such file;
/// kInvalidArgument names the line and what is wrong.
absl::StatusOr<std::vector<TraceRow>> read_trace_rows(const std::string& path, std::int64_t most,
                                                      std::int64_t cache_blocks);

/// Tokens that a prompt need not run when so many of its first ones are stored, by the engine's hit
/// policy (dataplane/kv) without any stored window.
std::int32_t cached_tokens_of(std::int64_t stored_tokens, std::int64_t input_tokens);

}  // namespace millrace::sim
