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

namespace millrace::dataplane::model {

/// Element types of a safetensors file that the model uses.
enum class DataType { kF32, kBF16, kF8E4M3, kF8E8M0, kI8 };

/// Bytes of one element.
int element_bytes(DataType type);
/// The safetensors spelling: "F32", "BF16", "F8_E4M3", "F8_E8M0", "I8".
std::string_view data_type_name(DataType type);

/// A tensor of the mapped files; the bytes live as long as the checkpoint.
struct TensorView {
  DataType type = DataType::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::uint8_t> bytes;
};

/// A tensor that a configuration calls for.
struct TensorSpec {
  std::string name;
  DataType type = DataType::kF32;
  std::vector<std::int64_t> shape;
};

/// Every tensor of a checkpoint with this configuration, in name order of the layers.
/// The official configuration expands to 96,085 (facts: model specification, section 7).
std::vector<TensorSpec> expected_tensors(const ModelConfig& config);

/// A model folder: config.json, safetensors shards (memory-mapped, never copied),
/// engram_token_map.json.
class Checkpoint {
 public:
  /// Errors: kNotFound (no such folder or file), kDataLoss (truncated or corrupt shard),
  /// kInvalidArgument: one error that lists every missing, extra, mis-typed and mis-shaped tensor.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> open(const std::string& folder);

  virtual ~Checkpoint() = default;
  virtual const ModelConfig& config() const = 0;
  /// The tensor of that name; the name must be one of expected_tensors().
  virtual const TensorView& tensor(std::string_view name) const = 0;
  /// Compressed id of every token id, for Engram; empty when the model has no Engram layer.
  virtual std::span<const std::int32_t> engram_token_map() const = 0;
  /// SHA-256 over config.json, tokenizer.json and every shard, in this order of names; computed at
  /// open.
  virtual const std::array<std::uint8_t, 32>& artifact_digest() const = 0;
};

}  // namespace millrace::dataplane::model
