#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>

#include "absl/status/status.h"
#include "common/time_point.h"
#include "dataplane/routing/buckets.h"

namespace millrace::dataplane::routing {

/// A request of one entrypoint, by the number it gave it; never used twice.
using RequestNumber = std::uint64_t;

/// A request that waits for a prefill instance.
struct WaitingPrefill {
  RequestNumber request = 0;
  std::int64_t quota_ns = 0;   ///< predicted compute of the rows that have to run
  TimePoint since;             ///< when it began to wait; kept when it comes back after a failure
  std::int64_t kv_blocks = 0;  ///< that it takes of a worker's pool
  std::int64_t tokens = 0;     ///< of its prompt; `cached` of them need not run
  std::int64_t cached = 0;
};

/// The requests of one entrypoint that no prefill instance has yet: by bucket, first in first out.
/// Pure; one thread. Every operation takes logarithmic time at most.
class PrefillQueue {
 public:
  /// Holds so many requests at most, over all buckets.
  explicit PrefillQueue(std::size_t max_waiting) : max_waiting_(max_waiting) {}

  /// Appends to a bucket; a request that waited before goes back to its place among the others by
  /// `since`. kResourceExhausted names the bound; a request waits in one place only.
  absl::Status push(int bucket, const WaitingPrefill& waiting);

  /// Takes a request out (cancelled, past its deadline); false when it does not wait.
  bool remove(RequestNumber request);

  /// What an entrypoint advertises: the longest-waiting request of a bucket; null when none waits.
  const WaitingPrefill* head(int bucket) const;

  /// Answers a claim: the longest-waiting request of the bucket leaves the queue. nullopt: gone.
  std::optional<WaitingPrefill> grant(int bucket);

  std::size_t size() const { return place_of_.size(); }
  std::size_t size(int bucket) const { return bucket_at(bucket).size(); }
  /// Predicted compute of all that waits in the bucket, ns.
  std::int64_t quota_ns(int bucket) const { return quota_ns_[static_cast<std::size_t>(bucket)]; }

 private:
  using Place = std::pair<TimePoint, RequestNumber>;  // equal times: the lower number first
  using Bucket = std::map<Place, WaitingPrefill>;

  const Bucket& bucket_at(int bucket) const { return buckets_[static_cast<std::size_t>(bucket)]; }
  WaitingPrefill take(int bucket, Bucket::iterator place);

  std::size_t max_waiting_;
  std::array<Bucket, kBucketCount> buckets_;
  std::array<std::int64_t, kBucketCount> quota_ns_{};
  std::unordered_map<RequestNumber, std::pair<int, Place>> place_of_;
};

}  // namespace millrace::dataplane::routing
