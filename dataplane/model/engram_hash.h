#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dataplane/model/config.h"

namespace millrace::dataplane::model {

/// Bucket sizes of every Engram layer, in order of engram_layer_ids; within a layer n-gram size
/// outer (2, 3, …), head inner. Successive primes from engram_vocab_size on, none handed out twice.
/// Source: model specification, section 2.6, items 3 and 4.
std::vector<std::vector<std::int64_t>> engram_primes(const ModelConfig& config);

/// The odd 64-bit multipliers of look-back 0, 1, … for one Engram layer: NumPy's
/// default_rng(10007 · layer), drawn as 64-bit bounded integers. Section 2.6, item 2.
std::vector<std::int64_t> engram_multipliers(int layer, int ngram_size, int compressed_vocab_size);

/// Turns the last tokens at a position into rows of one Engram layer's table. Immutable.
class EngramHash {
 public:
  /// `layer` must be one of config.engram_layer_ids.
  EngramHash(const ModelConfig& config, int layer);

  /// Rows of one position: (n-gram sizes × heads).
  int columns() const { return static_cast<int>(primes_.size()); }

  /// lookback [n-gram size] compressed ids of the tokens at t, t−1, …; a blocked slot (before the
  ///   start, or a dead token at or after it) holds the pad token's compressed id
  /// rows     [columns()], out
  void rows(std::span<const std::int32_t> lookback, std::span<std::int64_t> rows) const;

 private:
  int heads_;
  std::vector<std::int64_t> multipliers_;
  std::vector<std::int64_t> primes_;
  std::vector<std::int64_t> offsets_;
};

}  // namespace millrace::dataplane::model
