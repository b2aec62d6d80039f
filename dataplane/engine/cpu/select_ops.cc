// Index scores, candidate blocks and top-k (model specification, section 2.4).
#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "dataplane/engine/cpu/cpu_ops.h"
#include "dataplane/engine/cpu/indexing.h"

namespace millrace::dataplane::engine::cpu {
namespace {

/// Keys that are decoded at a time; bounds the scratch for any context length.
constexpr int kKeyTile = 256;

/// A number that orders like (score descending, index ascending) when larger is better.
std::uint64_t rank_key(float score, int index) {
  if (score == 0) score = 0;  // −0 and +0 tie
  const auto bits = std::bit_cast<std::uint32_t>(score);
  const std::uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return std::uint64_t{ordered} << 32 | (0xFFFFFFFFu - static_cast<std::uint32_t>(index));
}

int index_of(std::uint64_t key) {
  return static_cast<int>(0xFFFFFFFFu - static_cast<std::uint32_t>(key));
}

/// Keeps the best `count` of keys and writes their indices in ascending order; returns how many.
int take_best(std::uint64_t* keys, int available, int count, std::int32_t* out) {
  const int taken = std::min(available, count);
  if (taken < available) {
    std::nth_element(keys, keys + taken, keys + available, std::greater<>());
  }
  for (int i = 0; i < taken; ++i) out[i] = index_of(keys[i]);
  std::sort(out, out + taken);
  return taken;
}

/// What the selection of one row works on.
struct RowScores {
  const float* scores;  ///< [visible]
  int visible;
  std::uint64_t* keys;  ///< scratch [visible]
};

/// The best blocks of consecutive entries by their best score; the newest block always stays.
int choose_candidates(const RowScores& row, int block_size, int top_blocks, std::int32_t* out) {
  const int blocks = (row.visible + block_size - 1) / block_size;
  if (blocks <= top_blocks) return -1;
  for (int b = 0; b < blocks; ++b) {
    const float* first = row.scores + at(b, block_size);
    const float* last = std::min(row.scores + row.visible, first + block_size);
    row.keys[b] = b == blocks - 1
                      ? std::numeric_limits<std::uint64_t>::max() - static_cast<std::uint32_t>(b)
                      : rank_key(*std::max_element(first, last), b);
  }
  return take_best(row.keys, blocks, top_blocks, out);
}

int choose_entries(const RowScores& row, int top_k, std::int32_t* out) {
  for (int j = 0; j < row.visible; ++j) row.keys[j] = rank_key(row.scores[j], j);
  return take_best(row.keys, row.visible, top_k, out);
}

/// Entries outside the candidate blocks do not take part, however few remain.
int choose_within(const RowScores& row, const std::int32_t* blocks, int block_count, int block_size,
                  int top_k, std::int32_t* out) {
  int available = 0;
  for (int b = 0; b < block_count; ++b) {
    const int end = std::min(row.visible, (blocks[b] + 1) * block_size);
    for (int j = blocks[b] * block_size; j < end; ++j)
      row.keys[available++] = rank_key(row.scores[j], j);
  }
  return take_best(row.keys, available, top_k, out);
}

/// Rows of one sequence that are scored together, so that every decoded key serves all of them.
struct RowGroup {
  int first, count;
  int visible;  ///< entries that the last row sees, which is the most
};

constexpr int kGroupRows = 16;

RowGroup group_at(const StepRows& rows, int first, int ratio) {
  RowGroup group{.first = first, .count = 0, .visible = 0};
  while (group.count < kGroupRows && first + group.count < rows.rows &&
         rows.sequence[first + group.count] == rows.sequence[first]) {
    ++group.count;
  }
  group.visible = visible_entries(rows.position[first + group.count - 1], ratio);
  return group;
}

bool makes_blocks(const SelectArgs& a, int visible) {
  return a.role == CandidateRole::kSource && visible > std::int64_t{a.top_blocks} * a.block_size;
}

bool is_restricted(const SelectArgs& a, int row) {
  return a.role == CandidateRole::kRestricted && a.candidate_count[row] >= 0;
}

/// Whether the scores of a row decide anything: otherwise everything visible is taken.
bool needs_scores(const SelectArgs& a, int row) {
  const int visible = visible_entries(a.rows.position[row], a.source->ratio);
  return visible > a.top_k || makes_blocks(a, visible) || is_restricted(a, row);
}

void choose(const SelectArgs& a, int row, const float* scores, std::uint64_t* keys) {
  const RowScores row_scores{scores, visible_entries(a.rows.position[row], a.source->ratio), keys};
  std::int32_t* out = a.selected + at(row, a.top_k);
  std::int32_t* candidates =
      a.role == CandidateRole::kNone ? nullptr : a.candidates + at(row, a.top_blocks);
  if (a.role == CandidateRole::kSource) a.candidate_count[row] = -1;
  if (!needs_scores(a, row)) {
    std::iota(out, out + row_scores.visible, 0);
    a.selected_count[row] = row_scores.visible;
    return;
  }
  if (makes_blocks(a, row_scores.visible)) {
    a.candidate_count[row] = choose_candidates(row_scores, a.block_size, a.top_blocks, candidates);
  }
  a.selected_count[row] = is_restricted(a, row)
                              ? choose_within(row_scores, candidates, a.candidate_count[row],
                                              a.block_size, a.top_k, out)
                              : choose_entries(row_scores, a.top_k, out);
}

/// What one thread works with.
struct Workbench {
  Workbench(Scratch& scratch, const SelectArgs& a, int most_entries) : most(most_entries) {
    const auto count = static_cast<std::size_t>(most);
    const std::size_t floats = at(kGroupRows, most) + at(kKeyTile, a.width) +
                               at(std::int64_t{kKeyTile} * kGroupRows, a.heads);
    std::byte* memory = scratch.bytes(count * sizeof(std::uint64_t) + floats * sizeof(float));
    keys = reinterpret_cast<std::uint64_t*>(memory);
    scores = reinterpret_cast<float*>(memory + count * sizeof(std::uint64_t));
    tile = scores + at(kGroupRows, most);
    products = tile + at(kKeyTile, a.width);
  }

  int most;             ///< entries that any row sees
  std::uint64_t* keys;  ///< [most] ranking of one row
  float* scores;        ///< [kGroupRows, most]
  float* tile;          ///< [kKeyTile, width] decoded keys
  float* products;      ///< [kGroupRows, heads, kKeyTile]
};

/// Scores of a group's rows for every entry that the last of them sees.
void score(const SelectArgs& a, const Kernels& kernels, const RowGroup& group,
           const Workbench& bench) {
  for (int first = 0; first < group.visible; first += kKeyTile) {
    const int count = std::min(kKeyTile, group.visible - first);
    decode_rows(kernels.rows(), a.pool, a.rows, a.rows.sequence[group.first], *a.source,
                PlaneKind::kIndexKeys, first, count, bench.tile);
    kernels.matmul({.x = a.q + at(std::int64_t{group.first} * a.heads, a.width),
                    .x_stride = at(1, a.width),
                    .rows = group.count * a.heads,
                    .w = bench.tile,
                    .w_stride = at(1, a.width),
                    .outputs = count,
                    .inputs = a.width,
                    .rounding = Rounding::kNone,
                    .y = bench.products,
                    .y_stride = kKeyTile});
    for (int row = 0; row < group.count; ++row) {
      float* target = bench.scores + at(row, bench.most) + first;
      std::fill_n(target, count, 0.0f);
      for (int h = 0; h < a.heads; ++h) {
        const float weight =
            a.weights[at(group.first + row, a.heads) + static_cast<std::size_t>(h)];
        const float* product = bench.products + at(std::int64_t{row} * a.heads + h, kKeyTile);
        for (int j = 0; j < count; ++j) target[j] += weight * std::max(product[j], 0.0f);
      }
    }
  }
}

void select_for(const SelectArgs& a, const Kernels& kernels, const RowGroup& group,
                const Workbench& bench) {
  bool scored = false;
  for (int i = 0; i < group.count; ++i) scored |= needs_scores(a, group.first + i);
  if (scored) score(a, kernels, group, bench);
  for (int i = 0; i < group.count; ++i) {
    choose(a, group.first + i, bench.scores + at(i, bench.most), bench.keys);
  }
}

}  // namespace

void CpuOps::select(Stream& stream, const SelectArgs& a) {
  int most = 0;
  for (int row = 0; row < a.rows.rows; ++row) {
    most = std::max(most, visible_entries(a.rows.position[row], a.source->ratio));
  }
  auto* groups =
      reinterpret_cast<RowGroup*>(stream.workspace(at(a.rows.rows, 1) * sizeof(RowGroup)));
  int count = 0;
  for (int first = 0; first < a.rows.rows; first += groups[count++].count) {
    groups[count] = group_at(a.rows, first, a.source->ratio);
  }
  for (int thread = 0; thread < pool_.threads(); ++thread) Workbench(scratch(thread), a, most);
  for_rows(count, double{kGroupRows} * a.heads * a.width * most, [&](int group, int thread) {
    select_for(a, kernels_, groups[group], Workbench(scratch(thread), a, most));
  });
}

}  // namespace millrace::dataplane::engine::cpu
