#include "storage/kv/block_key.h"

#include "common/hex.h"

namespace millrace::storage {

std::string BlockKey::hex() const { return to_hex(bytes); }

std::uint64_t BlockKey::prefix() const {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) value |= std::uint64_t{bytes[i]} << (8 * i);
  return value;
}

}  // namespace millrace::storage
