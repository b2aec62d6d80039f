#include "dataplane/kv/hit_policy.h"

#include <algorithm>

namespace millrace::dataplane::kv {
namespace {

constexpr int round_down(int tokens) { return tokens / kBlockTokens * kBlockTokens; }

}  // namespace

int usable_hit(int prompt_tokens, int stored_tokens) {
  return std::max(0, round_down(std::min(stored_tokens, prompt_tokens - kLeastSuffix)));
}

const char* replay_kind_name(ReplayKind kind) {
  switch (kind) {
    case ReplayKind::kCold:
      return "cold";
    case ReplayKind::kWindow:
      return "window";
    case ReplayKind::kExact:
      return "exact_replay";
    case ReplayKind::kTruncated:
      return "truncated_replay";
  }
  return "unknown";
}

HitPlan plan_hit(int prompt_tokens, int ready_tokens, bool has_window, bool has_earlier_window) {
  const int hit = usable_hit(prompt_tokens, ready_tokens);
  if (hit == 0 || (hit == kBlockTokens && !has_window)) return {};
  if (has_window) {
    return {.kind = ReplayKind::kWindow,
            .compute_start = hit,
            .write_floor = hit,
            .window_anchor = hit};
  }
  const int start = hit - kBlockTokens;
  return {.kind = has_earlier_window ? ReplayKind::kExact : ReplayKind::kTruncated,
          .compute_start = start,
          .write_floor = hit,
          .window_anchor = has_earlier_window ? start : 0};
}

int anchor_after(int end) { return round_down(std::max(0, end - 1)); }

}  // namespace millrace::dataplane::kv
