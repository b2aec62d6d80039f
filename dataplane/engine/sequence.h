#pragma once

#include <cstdint>
#include <vector>

#include "dataplane/engine/engine.h"
#include "dataplane/kv/block_pool.h"

namespace millrace::dataplane::engine {

/// One sequence of an engine: its tokens, its blocks, and the limits that its plan set.
struct Sequence {
  std::int32_t slot = 0;  ///< place in rings and carries
  int prompt_tokens = 0;
  int capacity_tokens = 0;
  int compute_start = 0;        ///< encoder layers have window latents from here on
  int write_floor = 0;          ///< entries of groups that end below it are not written
  int decoder_floor = 0;        ///< decoder layers run from here on
  std::vector<TokenId> tokens;  ///< positions [0, length)
  std::vector<kv::BlockHandle> blocks;

  int length() const { return static_cast<int>(tokens.size()); }
};

}  // namespace millrace::dataplane::engine
