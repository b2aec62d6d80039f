#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "common/time_point.h"
#include "storage/kv/block_key.h"
#include "storage/swa/window_location.h"

namespace millrace::storage::swa {

struct WindowDirectoryLimits {
  std::size_t max_entries = std::size_t{1} << 18;
  /// How long an entry is kept after it was put: as long as the pool keeps the window.
  std::chrono::milliseconds ttl{180'000};
  /// Owners that are known to be gone, whose late entries are refused.
  std::size_t max_gone_owners = 4096;
};

/// Longest texts of a location.
inline constexpr std::size_t kMaxHostIdBytes = 64;
inline constexpr std::size_t kMaxAddressBytes = 256;

/// What became of an entry. Closed set, for metrics.
enum class DirectoryPut : std::uint8_t {
  kStored,
  kStaleOwner,  ///< of a pool that another one has replaced
  kInvalid,     ///< no host id, or a text that is too long
};
inline constexpr int kDirectoryPuts = 3;
/// "stored", "stale_owner", "invalid"
const char* directory_put_name(DirectoryPut put);

/// Where windows are: one shard of the directory. Pure; one thread.
///
/// The newest entry of a key wins. An entry whose owner (host id and incarnation) is replaced by
/// another incarnation of that host goes, and entries of the old one that come late are refused.
/// When full, the oldest entry makes room. Time never runs backwards: an earlier `now` counts as
/// the latest one seen.
class WindowDirectory {
 public:
  explicit WindowDirectory(const WindowDirectoryLimits& limits) : limits_(limits) {}

  DirectoryPut put(const BlockKey& key, const WindowLocation& at, TimePoint now);
  std::optional<WindowLocation> get(const BlockKey& key, TimePoint now);

  std::size_t size() const { return entries_.size(); }

 private:
  using Serial = std::uint64_t;  ///< order of the puts, and so of the expiries
  struct Entry {
    BlockKey key;
    WindowLocation at;
    TimePoint expires_at{};
  };
  struct Owner {
    std::uint64_t incarnation = 0;
    std::set<Serial> entries;
  };
  using Incarnation = std::pair<std::string, std::uint64_t>;  ///< of a host

  void advance(TimePoint now);
  void replace_owner(const std::string& host_id, std::uint64_t incarnation);
  void drop(Serial serial);

  const WindowDirectoryLimits limits_;
  TimePoint now_{};
  std::map<Serial, Entry> entries_;
  std::unordered_map<BlockKey, Serial, BlockKeyHash> by_key_;
  std::map<std::string, Owner> owners_;  ///< those with entries
  std::set<Incarnation> gone_;
  std::deque<std::pair<TimePoint, Incarnation>> gone_until_;
  Serial last_serial_ = 0;
};

}  // namespace millrace::storage::swa
