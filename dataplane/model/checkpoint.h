#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "dataplane/model/config.h"
#include "dataplane/model/inventory.h"

namespace millrace::dataplane::model {

/// A tensor of the mapped files; the bytes live as long as the checkpoint.
struct TensorView {
  DataType type = DataType::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::uint8_t> bytes;
};

/// A model folder: config.json, safetensors shards (memory-mapped, never copied),
/// engram_token_map.json.
///
/// Shards are those that model.safetensors.index.json names ({"weight_map": {tensor: file}}), or
/// the one file model.safetensors when there is no index. engram_token_map.json is {"token_map":
/// [id, …]}: the compressed id of every token id in order, ids 0 … engram_compressed_vocab_size − 1
/// all in use; it is required exactly when the configuration has Engram layers.
class Checkpoint {
 public:
  /// Errors: kNotFound (no such folder or file), kDataLoss (truncated or corrupt shard),
  /// kInvalidArgument: bad configuration or token map, an index that disagrees with the shards, or
  /// one error that lists every missing, extra, mis-typed and mis-shaped tensor (the first 50 by
  /// name, and how many there are).
  static absl::StatusOr<std::unique_ptr<Checkpoint>> open(const std::string& folder);

  virtual ~Checkpoint() = default;
  virtual const ModelConfig& config() const = 0;
  /// The tensor of that name; the name must be one of expected_tensors().
  virtual const TensorView& tensor(std::string_view name) const = 0;
  /// Compressed id of every token id, for Engram; empty when the model has no Engram layer.
  virtual std::span<const std::int32_t> engram_token_map() const = 0;
  /// SHA-256 over config.json, tokenizer.json, engram_token_map.json and every shard in order of
  /// names; computed at open. Each file counts as name, zero byte, SHA-256 of its content; a file
  /// that the folder does not have counts nothing.
  virtual const std::array<std::uint8_t, 32>& artifact_digest() const = 0;
};

}  // namespace millrace::dataplane::model
