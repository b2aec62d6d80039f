#pragma once

#include <cstddef>
#include <cstdint>

#include "dataplane/engine/cpu/row_kernels.h"
#include "dataplane/engine/ops.h"
#include "dataplane/model/number_formats.h"

namespace millrace::dataplane::engine::cpu {

/// Offset of row `row` in a tensor whose rows have `width` elements. Sizes are int in the contracts
/// and std::size_t in pointer arithmetic; this is the one place that converts.
inline std::size_t at(std::int64_t row, std::int64_t width) {
  return static_cast<std::size_t>(row * width);
}

/// Applies the rounding of a stored result.
inline float stored(float value, Rounding rounding) {
  return rounding == Rounding::kBf16 ? model::round_bf16(value) : value;
}

inline void store_all(float* values, std::size_t count, Rounding rounding) {
  if (rounding == Rounding::kNone) return;
  for (std::size_t i = 0; i < count; ++i) values[i] = model::round_bf16(values[i]);
}

/// The block that holds entry `index` of a sequence, and the entry's place in it.
inline std::byte* block_of(const KvPool& pool, const StepRows& rows, int sequence, int block) {
  const std::int32_t id =
      rows.block_table[at(sequence, rows.table_stride) + static_cast<std::size_t>(block)];
  return pool.base + static_cast<std::size_t>(id) * pool.block_bytes;
}

/// Sequence-relative entry count that a query at this position sees.
inline int visible_entries(int position, int ratio) { return (position + 1) / ratio; }

/// Decodes rows [first, first + count) of a plane, which may span blocks, to out [count, width].
void decode_rows(const RowKernels& kernels, const KvPool& pool, const StepRows& rows, int sequence,
                 const kv::SourceLayout& source, PlaneKind kind, int first, int count, float* out);

}  // namespace millrace::dataplane::engine::cpu
