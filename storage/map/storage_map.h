#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/kv/block_key.h"

namespace millrace::storage {

struct StorageNodeEntry {
  std::string id;
  std::string address;  ///< host:port of its shard service
  bool operator==(const StorageNodeEntry&) const = default;
};

/// One disk (or one lane of 3FS) of a node.
struct TargetEntry {
  std::string id;
  std::string node_id;
  bool operator==(const TargetEntry&) const = default;
};

enum class MemberState {
  kUp,          ///< has what it should have
  kRebuilding,  ///< takes writes, serves what it has, is being filled
  kDown,        ///< not asked for anything
};

/// A place in a group. Its index in the group is the shard index, for good; the target that fills
/// it may be replaced.
struct Member {
  std::string target_id;
  MemberState state = MemberState::kUp;
  bool operator==(const Member&) const = default;
};

struct Group {
  std::uint32_t id = 0;  ///< for good: placement depends on it
  std::vector<Member> members;
  bool operator==(const Group&) const = default;
};

/// Who stores which shard. Owned by the controller, cached on disk by every storage process and
/// client; its epoch travels in every request, and a node refuses one that is older than its own.
struct StorageMap {
  std::string cluster_id;
  std::uint64_t epoch = 0;        ///< grows with every change
  int data_shards = 10;           ///< k
  int parity_shards = 2;          ///< m
  std::uint32_t block_bytes = 0;  ///< largest block; slots are sized for it
  std::vector<StorageNodeEntry> nodes;
  std::vector<TargetEntry> targets;  ///< those of groups, and spares
  std::vector<Group> groups;

  int group_shards() const { return data_shards + parity_shards; }
  const StorageNodeEntry* find_node(std::string_view node_id) const;
  const TargetEntry* find_target(std::string_view target_id) const;
  /// The address to send to for a target; empty when map or target do not know it.
  std::string_view address_of(std::string_view target_id) const;
  /// Where a target is a member; nullopt for a spare.
  struct Place {
    std::uint32_t group_id = 0;
    std::uint8_t shard_index = 0;
  };
  std::optional<Place> place_of(std::string_view target_id) const;

  bool operator==(const StorageMap&) const = default;
};

/// Largest map that is read; beyond it a file or message is refused.
inline constexpr std::size_t kMaxMapBytes = std::size_t{64} << 20;

/// Names the first rule that the map breaks: ids unique and known, groups of k + m different
/// targets, 1 <= k, 0 <= m, k + m <= kMaxGroupShards, a block size.
absl::Status validate(const StorageMap& map);

/// The group of a block: rendezvous hashing over group ids, so that a new group takes its share
/// from all and nothing else moves. CHECKs that there is a group.
const Group& group_of(const StorageMap& map, const BlockKey& key);

/// The same from the ids of a map's groups alone, for whoever asks often and keeps no map.
class Placement {
 public:
  explicit Placement(const StorageMap& map);
  /// nullopt: the map had no group.
  std::optional<std::uint32_t> group_id_of(const BlockKey& key) const;

 private:
  struct Candidate {
    std::uint32_t group_id;
    std::uint64_t hash;
  };
  std::vector<Candidate> candidates_;
};

/// Who owns eviction of a group's blocks: the first member that is up; nullopt when none is.
std::optional<std::uint8_t> owner_of(const Group& group);

/// The map as JSON text (what the controller serves and the caches hold), and back.
/// kInvalidArgument names the field.
std::string encode_map(const StorageMap& map);
absl::StatusOr<StorageMap> decode_map(std::string_view text);

/// Reads a cached map. kNotFound, or what decode_map and validate say, with the file's name.
absl::StatusOr<StorageMap> load_map(const std::string& path);
/// Replaces a cached map atomically and durably (temporary file, fsync, rename, fsync of the
/// folder).
absl::Status save_map(const std::string& path, const StorageMap& map);

}  // namespace millrace::storage
