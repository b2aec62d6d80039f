#include "storage/ec/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <limits>

namespace millrace::storage::ec {

std::uint32_t crc32c(std::span<const std::byte> bytes) { return crc32c_extend(0, bytes); }

std::uint32_t crc32c_extend(std::uint32_t crc, std::span<const std::byte> bytes) {
  // ISA-L works on the register itself, which the usual value is the complement of, and takes int
  // lengths and a pointer that it does not write through.
  std::uint32_t state = ~crc;
  constexpr std::size_t kMost = std::numeric_limits<int>::max();
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kMost);
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
    state = crc32_iscsi(data, static_cast<int>(count), state);
    bytes = bytes.subspan(count);
  }
  return ~state;
}

}  // namespace millrace::storage::ec
