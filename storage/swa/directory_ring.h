#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "storage/kv/block_key.h"

namespace millrace::storage::swa {

/// Which entrypoint keeps the directory's entry of a key: the one with the highest score for it
/// (rendezvous hashing). So everybody who knows the same entrypoints agrees without asking, and one
/// that joins or leaves moves only the keys that it gets or had. A value; any thread.
class DirectoryRing {
 public:
  /// `ids` of the entrypoints: distinct (CHECK), in any order.
  explicit DirectoryRing(std::vector<std::string> ids);

  bool is_empty() const { return members_.empty(); }
  /// The id of the key's owner. The ring is not empty (CHECK).
  const std::string& owner_of(const BlockKey& key) const;

 private:
  std::vector<std::pair<std::string, std::uint64_t>> members_;  ///< with their hashes; by id
};

}  // namespace millrace::storage::swa
