#include <algorithm>

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

/// What one thread works with. Decoded entries stay from one row to the next: neighbours in a
/// sequence mostly select the same ones.
struct Workbench {
  Workbench(Scratch& scratch, const AttentionArgs& a) {
    const int most_entries = a.source != nullptr ? a.top_k : 0;
    most_keys = a.ring.window + most_entries;
    const std::size_t floats = at(a.heads, std::int64_t{most_keys} + 1) + at(most_entries, a.width);
    scores = reinterpret_cast<float*>(scratch.bytes(
        floats * sizeof(float) + at(std::int64_t{most_entries} + 2, 1) * sizeof(std::int32_t)));
    divisor = scores + at(a.heads, most_keys);
    entries = divisor + a.heads;
    decoded = reinterpret_cast<std::int32_t*>(scores + floats);
    decoded_sequence = decoded + most_entries;
    decoded_count = decoded_sequence + 1;
  }

  int most_keys;
  float* scores;                   ///< [heads, most_keys]
  float* divisor;                  ///< [heads]
  float* entries;                  ///< [top_k, width]
  std::int32_t* decoded;           ///< [top_k] index of the entry at each place
  std::int32_t* decoded_sequence;  ///< whose entries they are
  std::int32_t* decoded_count;     ///< how many places are in use
};

/// The selected entries of a row, decoded.
void decode_selected(const AttentionArgs& a, const RowKernels& kernels, int row,
                     const Workbench& bench) {
  const int sequence = a.rows.sequence[row];
  if (*bench.decoded_sequence != sequence) *bench.decoded_count = 0;
  *bench.decoded_sequence = sequence;
  const int count = a.selected_count[row];
  const std::int32_t* selected = a.selected + at(row, a.top_k);
  for (int i = 0; i < count; ++i) {
    if (i < *bench.decoded_count && bench.decoded[i] == selected[i]) continue;
    decode_rows(kernels, a.pool, a.rows, sequence, *a.source, PlaneKind::kEntries, selected[i], 1,
                bench.entries + at(i, a.width));
    bench.decoded[i] = selected[i];
  }
  *bench.decoded_count = std::max(*bench.decoded_count, count);
}

void attend_row(const AttentionArgs& a, const Kernels& kernels, int row, const Workbench& bench) {
  KeySet set;
  append_window(a, row, set);
  if (a.source != nullptr) {
    decode_selected(a, kernels.rows(), row, bench);
    set.append(bench.entries, a.selected_count[row]);
  }
  const std::size_t stride = at(1, bench.most_keys);
  float* out = a.out + at(std::int64_t{row} * a.heads, a.width);
  float* scores = bench.scores;
  for (const Segment* segment = set.segments; segment != set.segments + set.segment_count;
       ++segment) {
    kernels.matmul({.x = a.q + at(std::int64_t{row} * a.heads, a.width),
                    .x_stride = at(1, a.width),
                    .rows = a.heads,
                    .w = segment->keys,
                    .w_stride = at(1, a.width),
                    .outputs = segment->count,
                    .inputs = a.width,
                    .rounding = Rounding::kNone,
                    .y = scores,
                    .y_stride = stride});
    scores += segment->count;
  }
  for (int h = 0; h < a.heads; ++h) {
    bench.divisor[h] =
        kernels.rows().softmax(bench.scores + at(h, bench.most_keys), set.keys, a.scale, a.sink[h]);
  }
  std::fill_n(out, at(a.heads, a.width), 0.0f);
  scores = bench.scores;
  for (const Segment* segment = set.segments; segment != set.segments + set.segment_count;
       ++segment) {
    kernels.weighted_sum({.p = scores,
                          .p_stride = stride,
                          .heads = a.heads,
                          .v = segment->keys,
                          .v_stride = at(1, a.width),
                          .count = segment->count,
                          .width = a.width,
                          .out = out});
    scores += segment->count;
  }
  for (int h = 0; h < a.heads; ++h) {
    float* head = out + at(h, a.width);
    const float divisor = bench.divisor[h];
    for (int c = 0; c < a.width; ++c) head[c] = head[c] / divisor;
    store_all(head, at(1, a.width), a.rounding);
  }
}

}  // namespace

void CpuOps::attention(Stream&, const AttentionArgs& a) {
  for (int thread = 0; thread < pool_.threads(); ++thread) {
    *Workbench(scratch(thread), a).decoded_count = 0;
  }
  const int most_keys = a.ring.window + (a.source != nullptr ? a.top_k : 0);
  for_rows(a.rows.rows, 2.0 * a.heads * most_keys * a.width, [&](int row, int thread) {
    attend_row(a, kernels_, row, Workbench(scratch(thread), a));
  });
}

}  // namespace millrace::dataplane::engine::cpu
