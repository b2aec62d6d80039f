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
  int window_floor = 0;         ///< encoder layers have window latents from here on
  int write_floor = 0;          ///< entries of groups that end below it are not written
  int decoder_floor = 0;        ///< decoder layers run from here on
  std::vector<TokenId> tokens;  ///< positions [0, length)
  std::vector<kv::BlockHandle> blocks;

  // The window that is put aside (kept_window.h); anchors are positions at which windows end, 0 is
  // none.
  int planned_anchor = 0;  ///< to be kept as its rows are computed, until that is done
  int last_anchor = 0;     ///< anchors up to this one are not kept any more
  int kept_anchor = 0;     ///< complete
  int keep_anchor = 0;     ///< of the step under way
  int keep_from = 0;       ///< of the step under way: the first position that is copied

  int length() const { return static_cast<int>(tokens.size()); }
};

}  // namespace millrace::dataplane::engine
