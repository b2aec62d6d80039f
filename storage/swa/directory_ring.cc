#include "storage/swa/directory_ring.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::storage::swa {
namespace {

/// The finaliser of SplitMix64: every bit of the input moves about half of the output's.
std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

/// FNV-1a, then mixed: ids differ in a digit at the end more often than not.
std::uint64_t hash_of(const std::string& id) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char character : id) {
    hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001b3u;
  }
  return mix(hash);
}

}  // namespace

DirectoryRing::DirectoryRing(std::vector<std::string> ids) {
  std::sort(ids.begin(), ids.end());
  CHECK(std::adjacent_find(ids.begin(), ids.end()) == ids.end(), "an entrypoint counts once");
  members_.reserve(ids.size());
  for (std::string& id : ids) {
    const std::uint64_t hash = hash_of(id);
    members_.emplace_back(std::move(id), hash);
  }
}

const std::string& DirectoryRing::owner_of(const BlockKey& key) const {
  CHECK(!members_.empty());
  const std::uint64_t prefix = key.prefix();
  // The first of equal scores wins, and members are sorted: the same one everywhere.
  const auto best =
      std::max_element(members_.begin(), members_.end(), [&](const auto& left, const auto& right) {
        return mix(prefix ^ left.second) < mix(prefix ^ right.second);
      });
  return best->first;
}

}  // namespace millrace::storage::swa
