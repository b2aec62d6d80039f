#include <cstddef>
#include <cstdint>

#include "common/check.h"
#include "dataplane/model/safetensors.h"

/// Weight files: refused with a message, or tensors that lie inside the file.

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto tensors = millrace::dataplane::model::parse_safetensors({data, size}, "input");
  if (!tensors.ok()) {
    CHECK(!tensors.status().message().empty());
    return 0;
  }
  for (const auto& tensor : *tensors) {
    CHECK(tensor.bytes.data() >= data);
    CHECK(tensor.bytes.data() + tensor.bytes.size() <= data + size);
  }
  return 0;
}
