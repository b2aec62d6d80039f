// The compressor's groups and everything that writes KV (model specification, sections 2.3 to 2.4,
// 5).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "common/check.h"
#include "dataplane/engine/cpu/cpu_ops.h"
#include "dataplane/engine/cpu/indexing.h"

namespace millrace::dataplane::engine::cpu {
namespace {

constexpr int kMaxRatio = kv::kBlockTokens;

const kv::Plane& plane_of(const kv::SourceLayout& source, PlaneKind kind) {
  return kind == PlaneKind::kEntries ? source.entries : source.index_keys;
}

std::size_t carry_offset(int slot, int place, int ratio, int width) {
  return at((std::int64_t{slot} * (ratio - 1) + place) * 2, width);
}

/// Softmax of the gates over the group's tokens, channel by channel, applied to the values.
void combine_group(std::span<const float* const> values, std::span<const float* const> gates,
                   int width, float* out) {
  float weight[kMaxRatio] = {};
  for (int c = 0; c < width; ++c) {
    float largest = -std::numeric_limits<float>::infinity();
    for (const float* gate : gates) largest = std::max(largest, gate[c]);
    float total = 0;
    for (std::size_t k = 0; k < gates.size(); ++k) {
      weight[k] = std::exp(gates[k][c] - largest);
      total += weight[k];
    }
    float sum = 0;
    for (std::size_t k = 0; k < gates.size(); ++k) sum += weight[k] / total * values[k][c];
    out[c] = sum;
  }
}

}  // namespace

void decode_rows(const RowKernels& kernels, const KvPool& pool, const StepRows& rows, int sequence,
                 const kv::SourceLayout& source, PlaneKind kind, int first, int count, float* out) {
  const kv::Plane& plane = plane_of(source, kind);
  for (int i = 0; i < count; ++i) {
    const int entry = first + i;
    const std::byte* block = block_of(pool, rows, sequence, entry / source.entries_per_block);
    const int row = entry % source.entries_per_block;
    const std::span<float> target(out + at(i, plane.width), at(1, plane.width));
    if (pool.encoding == kv::Encoding::kFloat32) {
      std::memcpy(target.data(), block + plane.row(row), target.size_bytes());
      continue;
    }
    const auto* codes = reinterpret_cast<const std::uint8_t*>(block + plane.row(row));
    const auto* scales = reinterpret_cast<const std::uint8_t*>(block + plane.scale_row(row));
    kernels.unpack_q4({.kind = kind == PlaneKind::kEntries ? Q4Kind::kQ4g : Q4Kind::kQ4i,
                       .codes = codes,
                       .scales = scales,
                       .width = plane.width,
                       .out = target.data()});
  }
}

void CpuOps::compress(Stream&, const CompressArgs& a) {
  CHECK(a.ratio <= kMaxRatio);
  const float* values[kMaxRatio] = {};
  const float* gates[kMaxRatio] = {};
  const auto ratio = static_cast<std::size_t>(a.ratio);
  for (int e = 0; e < a.entries.entries; ++e) {
    const int last = a.entries.last_row[e];
    float* out = a.out + at(e, a.width);
    if (a.ratio == 1) {
      std::copy_n(a.values + at(last, a.width), a.width, out);
    } else {
      const int sequence = a.rows.sequence[last];
      for (int k = 0; k < a.ratio; ++k) {
        const int row = last - (a.ratio - 1) + k;
        if (row >= a.rows.first_row[sequence]) {
          values[k] = a.values + at(row, a.width);
          gates[k] = a.gates + at(row, a.width);
        } else {
          values[k] = a.carry + carry_offset(a.rows.slot[sequence], k, a.ratio, a.width);
          gates[k] = values[k] + a.width;
        }
      }
      combine_group({values, ratio}, {gates, ratio}, a.width, out);
    }
    store_all(out, at(1, a.width), a.rounding);
  }
}

void CpuOps::store_carry(Stream&, const StoreCarryArgs& a) {
  for (int s = 0; s < a.rows.sequences; ++s) {
    const int end = a.rows.first_row[s + 1];
    if (end == a.rows.first_row[s]) continue;
    const int pending = (a.rows.position[end - 1] + 1) % a.ratio;
    for (int row = std::max(a.rows.first_row[s], end - pending); row < end; ++row) {
      const int place = a.rows.position[row] % a.ratio;
      float* target = a.carry + carry_offset(a.rows.slot[s], place, a.ratio, a.width);
      std::copy_n(a.values + at(row, a.width), a.width, target);
      std::copy_n(a.gates + at(row, a.width), a.width, target + a.width);
    }
  }
}

void CpuOps::store_entries(Stream&, const StoreEntriesArgs& a) {
  const kv::Plane& plane = plane_of(*a.source, a.plane);
  for (int e = 0; e < a.entries.entries; ++e) {
    const int sequence = a.rows.sequence[a.entries.last_row[e]];
    const int index = a.entries.index[e];
    std::byte* block = block_of(a.pool, a.rows, sequence, index / a.source->entries_per_block);
    const int row = index % a.source->entries_per_block;
    const std::span<const float> values(a.values + at(e, plane.width), at(1, plane.width));
    if (a.pool.encoding == kv::Encoding::kFloat32) {
      std::memcpy(block + plane.row(row), values.data(), values.size_bytes());
      continue;
    }
    auto* codes = reinterpret_cast<std::uint8_t*>(block + plane.row(row));
    auto* scales = reinterpret_cast<std::uint8_t*>(block + plane.scale_row(row));
    if (a.plane == PlaneKind::kEntries) {
      model::pack_q4g(values, codes, scales);
    } else {
      model::pack_q4i(values, codes, scales);
    }
  }
}

void CpuOps::store_window(Stream&, const StoreWindowArgs& a) {
  for (int s = 0; s < a.rows.sequences; ++s) {
    const int end = a.rows.first_row[s + 1];
    float* ring = a.rings + at(std::int64_t{a.rows.slot[s]} * a.ring.slots(), a.width);
    for (int row = std::max(a.rows.first_row[s], end - a.ring.slots()); row < end; ++row) {
      std::copy_n(a.latents + at(row, a.width), a.width,
                  ring + at(a.ring.slot(a.rows.position[row]), a.width));
    }
  }
}

void CpuOps::keep_window(Stream&, const KeepWindowArgs& a) {
  for (int s = 0; s < a.rows.sequences; ++s) {
    const int anchor = a.rows.keep_anchor[s];
    const int first_row = a.rows.first_row[s];
    const int rows = a.rows.first_row[s + 1] - first_row;
    if (anchor == 0 || rows == 0) continue;
    const int start = a.rows.position[first_row];
    const float* ring = a.rings + at(std::int64_t{a.rows.slot[s]} * a.ring.slots(), a.width);
    float* kept = a.kept + at(std::int64_t{a.rows.slot[s]} * a.ring.window, a.width);
    const int end = std::min(anchor, start + rows);
    for (int p = std::max(a.rows.keep_from[s], anchor - a.ring.window); p < end; ++p) {
      const float* latent = p >= start ? a.latents + at(first_row + p - start, a.width)
                                       : ring + at(a.ring.slot(p), a.width);
      std::copy_n(latent, a.width, kept + at(p % a.ring.window, a.width));
    }
  }
}

}  // namespace millrace::dataplane::engine::cpu
