#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dataplane/model/config.h"

namespace millrace::dataplane::model {

/// Element types of a safetensors file that the model uses.
enum class DataType { kF32, kBF16, kF8E4M3, kF8E8M0, kI8 };

/// Bytes of one element.
int element_bytes(DataType type);
/// The safetensors spelling: "F32", "BF16", "F8_E4M3", "F8_E8M0", "I8".
std::string_view data_type_name(DataType type);

/// A tensor that a configuration calls for.
struct TensorSpec {
  std::string name;
  DataType type = DataType::kF32;
  std::vector<std::int64_t> shape;
};

/// Bytes of a tensor of this type and shape.
std::int64_t tensor_bytes(DataType type, const std::vector<std::int64_t>& shape);
/// "BF16 [129280, 5120]", for messages.
std::string describe(DataType type, const std::vector<std::int64_t>& shape);

/// Every tensor of a checkpoint with this configuration: global ones, vision when configured,
/// layers, draft layers. The official configuration expands to 96,085 tensors of 510,286,023,000
/// bytes. Source: model specification, section 7.
std::vector<TensorSpec> expected_tensors(const ModelConfig& config);

}  // namespace millrace::dataplane::model
