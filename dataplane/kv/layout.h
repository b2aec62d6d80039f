#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "dataplane/model/config.h"

namespace millrace::dataplane::kv {

/// Tokens of one block, the unit in which global KV is pooled, stored and moved.
inline constexpr int kBlockTokens = 128;

/// How an entry is kept: kQuantized is the format the model is trained with, kFloat32 serves runs
/// with rounding switched off.
enum class Encoding { kQuantized, kFloat32 };

/// One run of equal rows inside a block: `rows` data rows, then `rows` scale rows.
struct Plane {
  std::size_t offset = 0;        ///< of the first data row, from the start of the block
  std::size_t scale_offset = 0;  ///< of the first scale row
  int width = 0;                 ///< channels of a row
  int data_bytes = 0;            ///< of one row
  int scale_bytes = 0;           ///< of one row; 0 for float32

  std::size_t row(int index) const {
    return offset + static_cast<std::size_t>(index) * static_cast<std::size_t>(data_bytes);
  }
  std::size_t scale_row(int index) const {
    return scale_offset + static_cast<std::size_t>(index) * static_cast<std::size_t>(scale_bytes);
  }
};

/// What one KV source layer keeps in a block.
struct SourceLayout {
  int layer = 0;
  int ratio = 1;              ///< tokens of one entry
  int entries_per_block = 0;  ///< kBlockTokens / ratio
  Plane entries;              ///< global entries, [head_dim]
  Plane index_keys;           ///< index keys, [index_head_dim]
};

/// The bytes of one block of global KV. For every KV source in ascending order:
///
///   data rows of the entries    [entries_per_block][head_dim / 2]        E2M1, even channel low
///   scale rows of the entries   [entries_per_block][head_dim / 16]       E4M3
///   data rows of the index keys [entries_per_block][index_head_dim / 2]  E2M1
///   scale rows                  [entries_per_block][index_head_dim / 32] E8M0
///
/// As float32 the data rows hold 4 bytes a channel and there are no scale rows. Official
/// configuration: 113,920 bytes. Source: model specification, section 5.1.
class BlockLayout {
 public:
  BlockLayout(const model::ModelConfig& config, Encoding encoding);

  Encoding encoding() const { return encoding_; }
  std::size_t block_bytes() const { return block_bytes_; }
  const std::vector<SourceLayout>& sources() const { return sources_; }
  /// The part of a KV source layer.
  const SourceLayout& source(int layer) const;

  /// Names everything that the bytes of blocks and rings depend on, for example
  /// "v41/quantized/b128/w128/h512/i128/l40/s2r2,8r2,14r2,20r1".
  const std::string& id() const { return id_; }

 private:
  Encoding encoding_;
  std::size_t block_bytes_ = 0;
  std::vector<SourceLayout> sources_;
  std::string id_;
};

/// Bytes of one window latent outside the engine: Q8 codes and scales, or float32.
std::size_t window_row_bytes(const model::ModelConfig& config, Encoding encoding);

/// Bytes of a sliding window outside the engine: its rows of every encoder layer.
std::size_t window_bytes(const model::ModelConfig& config, Encoding encoding);

/// Blocks that hold `tokens` positions.
constexpr int blocks_for(int tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

}  // namespace millrace::dataplane::kv
