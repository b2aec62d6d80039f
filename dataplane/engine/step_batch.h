#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "dataplane/engine/ops.h"
#include "dataplane/engine/sequence.h"
#include "dataplane/engine/weights.h"

namespace millrace::dataplane::engine {

/// The new rows of one sequence: its tokens already hold them.
struct StepPart {
  const Sequence* sequence = nullptr;
  int rows = 0;
  int logits_rows = 0;
};

/// Owns the arrays that StepRows points to.
struct RowArrays {
  std::vector<std::int32_t> position, sequence, first_row, slot, window_floor, keep_anchor,
      keep_from, block_table;
  int table_stride = 0;

  StepRows view() const;
};

struct EntryArrays {
  std::vector<std::int32_t> last_row, index;

  StepEntries view() const;
};

/// Everything about a step that follows from tokens and positions alone; computed before the first
/// layer. Reused from step to step, so that its vectors keep their memory.
class StepBatch {
 public:
  explicit StepBatch(const model::ModelConfig& config) : config_(config) {}

  /// Sums to at least one row; every part has at least one.
  void build(std::span<const StepPart> parts);

  std::vector<std::int32_t> tokens;         ///< [rows]
  RowArrays encoder;                        ///< all rows
  RowArrays decoder;                        ///< those at or above their decoder floor
  std::vector<std::int32_t> decoder_index;  ///< [decoder rows] row among all rows
  std::map<int, EntryArrays> entries;       ///< by compress ratio
  std::vector<std::int32_t> logits_index;   ///< row among the decoder rows

  /// Rows of one Engram layer's table, [rows, columns].
  void engram_rows(std::span<const StepPart> parts, const model::EngramHash& hash,
                   std::span<const std::int32_t> token_map, std::vector<std::int64_t>& out);

 private:
  void add_part(const StepPart& part);
  void add_entries(const StepPart& part, int first_row);

  const model::ModelConfig& config_;
  std::vector<std::int32_t> lookback_;  ///< compressed ids of one row's n-gram
};

}  // namespace millrace::dataplane::engine
