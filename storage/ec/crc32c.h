#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace::storage::ec {

/// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78; RFC 3720, appendix B.4) of the bytes, by
/// ISA-L: tens of gigabytes a second where the CPU has carry-less multiplication.
std::uint32_t crc32c(std::span<const std::byte> bytes);

/// The same, going on: `crc` is that of the bytes before.
std::uint32_t crc32c_extend(std::uint32_t crc, std::span<const std::byte> bytes);

}  // namespace millrace::storage::ec
