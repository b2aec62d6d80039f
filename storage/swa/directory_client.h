#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/metrics/metrics.h"
#include "storage/swa/directory_entry.h"
#include "storage/swa/directory_service.h"

namespace millrace::storage::swa {

/// An entrypoint that keeps a shard.
struct DirectoryMember {
  std::string id;
  std::string address;            ///< host:port of its DirectoryService
  std::uint64_t incarnation = 0;  ///< another one: the process was started anew
};

struct DirectoryClientOptions {
  std::string own_id;  ///< among the members: that of this entrypoint
  /// Entries that wait for one other entrypoint; more are dropped.
  std::size_t max_waiting_entries = 8192;
  /// Lookups at other entrypoints under way; further keys of theirs are not known.
  std::size_t max_lookups = 4096;
  /// How long another entrypoint may take for a batch of entries before they count as lost.
  std::chrono::milliseconds put_timeout{2000};
};

/// The whole directory, as an entrypoint uses it: each key goes to its owner among the current
/// entrypoints (DirectoryRing over their ids), to this one's own shard without a network. Any
/// thread; nothing blocks but the destructor, for as long as calls take to be cancelled.
///
/// No failure is an error: entries that cannot be put are lost, keys whose owner does not answer in
/// time are not known. Counted: `millrace_swa_directory_lookups_total{outcome}` by key,
/// `millrace_swa_directory_lost_puts_total{reason}` by entry.
class DirectoryClient {
 public:
  /// One answer for each key, in their order; nullopt: not known, for whatever reason.
  using Done = std::function<void(std::vector<std::optional<WindowLocation>>)>;

  /// Without members until the first set_members(). `own` and `registry` must outlive it.
  static std::unique_ptr<DirectoryClient> create(const DirectoryClientOptions& options,
                                                 DirectoryService& own, Registry& registry);
  /// Every `done` has been called when it returns.
  virtual ~DirectoryClient() = default;

  /// The entrypoints as the routing view has them. Entries that wait for one that is no longer
  /// there are lost; a lookup under way goes on. Of two with one id the last counts.
  virtual void set_members(std::vector<DirectoryMember> members) = 0;

  /// Returns at once; batches go out one after the other to each entrypoint.
  virtual void put(std::vector<DirectoryEntry> entries) = 0;
  /// `done` is called exactly once: by this call, or later by another thread, at the timeout at the
  /// latest. It must not block, nor destroy the client.
  virtual void get(std::vector<BlockKey> keys, std::chrono::milliseconds timeout, Done done) = 0;
};

}  // namespace millrace::storage::swa
