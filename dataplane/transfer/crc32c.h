#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace::dataplane::transfer {

/// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78; RFC 3720, appendix B.4) of the bytes.
/// Uses the processor's instruction where it has one; both ways give equal values.
std::uint32_t crc32c(std::span<const std::byte> bytes);

/// The table version, for processors without the instruction.
std::uint32_t crc32c_portable(std::span<const std::byte> bytes);

}  // namespace millrace::dataplane::transfer
