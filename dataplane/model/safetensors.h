#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "dataplane/model/inventory.h"

namespace millrace::dataplane::model {

/// Of one file and of a checkpoint's index, metadata included: the release has 96,085.
inline constexpr std::size_t kMaxTensors = std::size_t{1} << 20;

/// One tensor of a safetensors file; the bytes belong to the file.
struct StoredTensor {
  std::string name;
  std::string type;  ///< as spelled in the file; not necessarily a DataType
  std::vector<std::int64_t> shape;
  std::span<const std::uint8_t> bytes;
};

/// Reads the header of a safetensors file and checks everything it says.
///
///   0   u64 LE   length n of the header, at most 100,000,000
///   8   n bytes  JSON object: name → {"dtype", "shape", "data_offsets": [begin, end)},
///   "__metadata__" 8+n          data; the tensors cover it without gaps or overlaps
///
/// label names the file in messages. Errors: kDataLoss, naming the file, and the tensor where there
/// is one: truncated, header that is no such object, extents that overflow, offsets outside the
/// data, sizes that disagree with type and shape, overlaps, gaps. Types that the model does not use
/// pass when the file format knows their size. The result is ordered by offset. Source:
/// https://huggingface.co/docs/safetensors, section "Format".
absl::StatusOr<std::vector<StoredTensor>> parse_safetensors(std::span<const std::uint8_t> file,
                                                            std::string_view label);

/// The DataType of a spelling; false when the model uses no such type.
bool parse_data_type(std::string_view spelling, DataType& type);

}  // namespace millrace::dataplane::model
