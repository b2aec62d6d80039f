#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace millrace::dataplane::model {

/// A configuration that covers every role in eight small layers (model specification, section 8).
std::string tiny_config_json();

/// One tensor to be written.
struct FileTensor {
  std::string name;
  std::string type;
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> bytes;
};

/// The bytes of a safetensors file that holds these tensors in order.
std::vector<std::uint8_t> encode_safetensors(const std::vector<FileTensor>& tensors);

/// Writes a complete model folder with random weights of sensible size: for tests and load
/// experiments that need an architecture, not a model. Equal seeds give equal bytes. The tokenizer
/// is left out. Errors: an invalid configuration, or a file that cannot be written.
absl::Status write_random_checkpoint(const std::string& folder, std::string_view config_json,
                                     std::uint64_t seed, int shards = 2);

}  // namespace millrace::dataplane::model
