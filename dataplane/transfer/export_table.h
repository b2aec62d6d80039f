#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "api/admin/shared_memory.h"
#include "common/process/shared_region.h"
#include "common/time_point.h"

namespace millrace::dataplane::transfer {

struct ExportLimits {
  std::size_t max_bytes = std::size_t{1} << 30;  ///< of all exports together
  int max_exports = 256;
  std::chrono::nanoseconds time_to_live = std::chrono::seconds(60);
};

/// Whom an export was made for.
struct ExportOwner {
  std::uint64_t stream = 0;  ///< the entrypoint's stream
  std::string request;       ///< its request on that stream

  friend bool operator==(const ExportOwner&, const ExportOwner&) = default;
};

/// What a decode worker must know to fetch an export.
struct ExportTicket {
  std::uint64_t export_id = 0;
  std::string shm_name;
  std::size_t bytes = 0;
  std::uint32_t checksum = 0;  ///< CRC-32C
};

struct ExportUsage {
  int exports = 0;
  std::size_t bytes = 0;
};

/// The source's copies of handed-over sequences: in shared memory, kept until released or until
/// their time is over, whichever comes first. Any thread. Never grows past its limits.
class ExportTable {
 public:
  /// Export ids carry `incarnation` in their upper half, so that an id of a process before a
  /// restart names nothing here. Regions that an earlier process of this worker left are removed.
  /// kInvalidArgument when one of the ids is not plain ("api/admin/id.h").
  static absl::StatusOr<std::unique_ptr<ExportTable>> open(
      const api::admin::SharedMemoryOwner& self, std::uint32_t incarnation,
      const ExportLimits& limits);

  /// Makes a region of that size, lets `fill` write it, and keeps it until now + time_to_live.
  /// kResourceExhausted when the limits or the host leave no room now, kInvalidArgument when the
  /// export could never fit.
  absl::StatusOr<ExportTicket> add(const ExportOwner& owner, std::size_t bytes,
                                   const std::function<absl::Status(std::span<std::byte>)>& fill,
                                   TimePoint now);

  /// The bytes; they stay valid while the pointer is held, released or not. kNotFound when the id
  /// names nothing (any more).
  absl::StatusOr<std::shared_ptr<const SharedRegion>> find(std::uint64_t export_id) const;

  /// Drops one export. False when there is none.
  bool release(std::uint64_t export_id);
  /// Drops what was made for a request; for any request of a stream. Returns how many.
  int release_owner(const ExportOwner& owner);
  int release_stream(std::uint64_t stream);
  /// Drops what is past its time.
  int expire(TimePoint now);

  ExportUsage usage() const;

 private:
  struct Entry {
    ExportOwner owner;
    TimePoint deadline;
    std::shared_ptr<const SharedRegion> region;
  };

  ExportTable(std::string name_prefix, std::uint32_t incarnation, const ExportLimits& limits);
  int release_if(const std::function<bool(const Entry&)>& is_dropped);
  void give_back(std::size_t bytes);

  const std::string name_prefix_;
  const std::uint64_t id_base_;
  const ExportLimits limits_;

  mutable std::mutex mutex_;
  std::map<std::uint64_t, Entry> entries_;  // guarded by mutex_
  std::uint32_t next_ = 1;                  // guarded by mutex_
  ExportUsage usage_;                       // guarded by mutex_; counts exports being filled too
};

}  // namespace millrace::dataplane::transfer
