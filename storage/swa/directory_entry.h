#pragma once

#include <cstddef>

#include "storage/kv/block_key.h"
#include "storage/swa/window_location.h"

namespace millrace::storage::swa {

/// What the directory knows of a window.
struct DirectoryEntry {
  BlockKey key;  ///< of the block that ends where the window ends
  WindowLocation at;
};

/// Bounds of one message.
inline constexpr std::size_t kMaxPutEntries = 1024;
inline constexpr std::size_t kMaxGetKeys = 256;
/// A message of kMaxPutEntries entries with the longest texts is smaller.
inline constexpr int kMaxDirectoryMessageBytes = 1 << 20;

}  // namespace millrace::storage::swa
