#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace millrace {

/// 256 secret bits.
using Secret = std::array<std::uint8_t, 32>;

/// Reads a file that holds a secret and nothing else. Every error names the file: kNotFound and
/// others of the disk; kDataLoss when it is not 32 bytes long; kFailedPrecondition when others than
/// its owner may read or write it.
absl::StatusOr<Secret> read_secret_file(const std::string& path);

}  // namespace millrace
