#pragma once

#include <cstdint>

#include "dataplane/kv/layout.h"

namespace millrace::dataplane::kv {

/// Which stored KV a prompt starts from. Pure.
///
/// L prompt tokens; L1 is the usable hit. Blocks below L1 are used as they are and never written.
/// What they do not hold is the sliding window of the encoder layers in front of the first row that
/// runs. It is stored apart, for minutes only, keyed by the anchor at which it ends; where it
/// cannot be had, the 128 tokens before L1 run once more, for their window alone.
///
/// Source: the architecture's hit policy; model specification, sections 6.2 and 6.3.

/// Positions of a window, as trained.
inline constexpr int kWindowTokens = 128;

/// A hit leaves at least that many prompt tokens to run: a full window for the decoder layers, and
/// the rows that a verification step may commit beyond a boundary. So a row of the decoder's tail
/// never lies below the hit, and rings hold whatever a hand-over needs.
inline constexpr int kLeastSuffix = kWindowTokens + 6;

/// The longest multiple of a block that is stored and leaves kLeastSuffix tokens to run.
int usable_hit(int prompt_tokens, int stored_tokens);

/// How the window before the first row comes about. Closed set, for metrics.
enum class ReplayKind : std::uint8_t {
  kCold,       ///< no hit: everything runs
  kWindow,     ///< the window at L1 was stored: nothing runs twice
  kExact,      ///< rows [L1 - 128, L1) run again, from the window stored at L1 - 128
  kTruncated,  ///< they run again and see no window keys before L1 - 128
};
inline constexpr int kReplayKinds = 4;
/// "cold", "window", "exact_replay", "truncated_replay".
const char* replay_kind_name(ReplayKind kind);

/// What a prefill starts from. All values in tokens.
struct HitPlan {
  ReplayKind kind = ReplayKind::kCold;
  int compute_start = 0;  ///< the first position that runs; the prompt's cached tokens
  int write_floor = 0;    ///< L1: global KV below it is used and never written
  int window_anchor = 0;  ///< the stored window to begin with ends here; 0: none

  friend bool operator==(const HitPlan&, const HitPlan&) = default;
};

/// The plan for a prompt of which the first `ready_tokens` can be had whole, perhaps fewer than
/// were promised. The flags say whether the windows anchored at L1 and L1 - 128 can be had, L1
/// being usable_hit() of the two numbers. A hit of one block without its window is none: the block
/// would be run again anyway.
HitPlan plan_hit(int prompt_tokens, int ready_tokens, bool has_window, bool has_earlier_window);

/// The anchor of the window that a sequence leaves after positions [0, end): the last block
/// boundary with a token behind it, so that the next turn, which is longer, can start there. 0:
/// none, the sequence is too short.
int anchor_after(int end);

}  // namespace millrace::dataplane::kv
