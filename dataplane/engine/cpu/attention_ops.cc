#include <algorithm>
#include <cmath>

#include "dataplane/engine/cpu/cpu_ops.h"
#include "dataplane/engine/cpu/indexing.h"

namespace millrace::dataplane::engine::cpu {
namespace {

/// Keys that lie behind each other in memory.
struct Segment {
  const float* keys;
  int count;
};

/// A window that wraps around the ring, this step's rows, and the selected entries.
constexpr int kMaxSegments = 4;

struct KeySet {
  Segment segments[kMaxSegments];
  int segment_count = 0;
  int keys = 0;

  void append(const float* first, int count) {
    if (count <= 0) return;
    segments[segment_count++] = {first, count};
    keys += count;
  }
};

/// Window keys of one row: earlier steps' from the ring, the others from this step's rows.
void append_window(const AttentionArgs& a, int row, KeySet& set) {
  const int sequence = a.rows.sequence[row];
  const int position = a.rows.position[row];
  const int first_row = a.rows.first_row[sequence];
  const int step_start = a.rows.position[first_row];
  const int first = a.ring.first_visible(position, a.rows.window_floor[sequence]);
  if (first < step_start) {
    const float* ring = a.rings + at(std::int64_t{a.rows.slot[sequence]} * a.ring.slots(), a.width);
    const int slot = a.ring.slot(first);
    const int count = step_start - first;
    const int before_wrap = std::min(count, a.ring.slots() - slot);
    set.append(ring + at(slot, a.width), before_wrap);
    set.append(ring, count - before_wrap);
  }
  const int start = std::max(first, step_start);
  set.append(a.latents + at(first_row + (start - step_start), a.width), position - start + 1);
}

/// Turns scores into weights in place; returns what the weighted sum has to be divided by.
float softmax_weights(float* scores, int count, float scale, float sink) {
  float largest = -1e30f;
  for (int t = 0; t < count; ++t) {
    scores[t] *= scale;
    largest = std::max(largest, scores[t]);
  }
  float total = 0;
  for (int t = 0; t < count; ++t) total += scores[t] = std::exp(scores[t] - largest);
  return total + std::exp(sink - largest);
}

}  // namespace

void CpuOps::attention(Stream& stream, const AttentionArgs& a) {
  const int most_keys = a.ring.window + (a.source != nullptr ? a.top_k : 0);
  const std::size_t floats =
      at(a.heads, most_keys) + at(a.source != nullptr ? a.top_k : 0, a.width);
  auto* scores = reinterpret_cast<float*>(stream.workspace(floats * sizeof(float)));
  float* entries = scores + at(a.heads, most_keys);
  const std::size_t stride = at(1, most_keys);

  for (int row = 0; row < a.rows.rows; ++row) {
    KeySet set;
    append_window(a, row, set);
    if (a.source != nullptr) {
      const int count = a.selected_count[row];
      const std::int32_t* selected = a.selected + at(row, a.top_k);
      for (int i = 0; i < count; ++i) {
        decode_rows(a.pool, a.rows, a.rows.sequence[row], *a.source, PlaneKind::kEntries,
                    selected[i], 1, entries + at(i, a.width));
      }
      set.append(entries, count);
    }
    const float* q = a.q + at(std::int64_t{row} * a.heads, a.width);
    float* out = a.out + at(std::int64_t{row} * a.heads, a.width);
    int offset = 0;
    for (int i = 0; i < set.segment_count; ++i) {
      kernels_.matmul({.x = q,
                       .x_stride = at(1, a.width),
                       .rows = a.heads,
                       .w = set.segments[i].keys,
                       .w_stride = at(1, a.width),
                       .outputs = set.segments[i].count,
                       .inputs = a.width,
                       .rounding = Rounding::kNone,
                       .y = scores + offset,
                       .y_stride = stride});
      offset += set.segments[i].count;
    }
    std::fill_n(out, at(a.heads, a.width), 0.0f);
    float divisor[4096];  // the configuration's bound on heads
    for (int h = 0; h < a.heads; ++h) {
      divisor[h] = softmax_weights(scores + at(h, most_keys), set.keys, a.scale, a.sink[h]);
    }
    offset = 0;
    for (int i = 0; i < set.segment_count; ++i) {
      kernels_.weighted_sum({.p = scores + offset,
                             .p_stride = stride,
                             .heads = a.heads,
                             .v = set.segments[i].keys,
                             .v_stride = at(1, a.width),
                             .count = set.segments[i].count,
                             .width = a.width,
                             .out = out});
      offset += set.segments[i].count;
    }
    for (int h = 0; h < a.heads; ++h) {
      float* head = out + at(h, a.width);
      for (int c = 0; c < a.width; ++c) head[c] = stored(head[c] / divisor[h], a.rounding);
    }
  }
}

}  // namespace millrace::dataplane::engine::cpu
