#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "common/time_point.h"
#include "dataplane/routing/buckets.h"

namespace millrace::dataplane::routing {

/// What an entrypoint offers of one bucket, as a prefill instance knows it.
struct Advertisement {
  TimePoint oldest_since;     ///< its longest-waiting request, by the instance's clock
  std::int64_t quota_ns = 0;  ///< predicted compute of that request
  std::int64_t waiting = 0;   ///< requests of the bucket there; 0 = nothing is offered
};

/// How much an instance takes on.
struct ClaimLimits {
  /// Predicted compute queued on a rank beyond which it wants no more: two steps, so that a rank
  /// never waits for a request and hardly a request for a rank that another instance has free.
  std::int64_t quota_per_rank_ns = 600'000'000;

  /// Requests waiting at an instance beyond which it wants no more, however short they are.
  std::int64_t max_requests = std::numeric_limits<std::int64_t>::max();

  /// How much longer another bucket's request must have waited than those it serves itself. Less
  /// than a step: more makes all wait longer where one bucket has more than its instances can do.
  std::chrono::nanoseconds head_start = std::chrono::milliseconds(250);

  /// An entrypoint that has not answered a claim for so long is left aside until it does.
  std::chrono::nanoseconds answer_time = std::chrono::milliseconds(100);
};

/// The rank with the least queued compute; equal ones: the lower index. `queued_ns` is not empty.
std::size_t pick_rank(std::span<const std::int64_t> queued_ns);

/// Whether an instance claims another request: a rank is idle, or has less queued than its limit.
/// What the request costs does not matter, so that one of any size is served; one claim at a time
/// overshoots the limit by one request at most.
bool wants_more(std::span<const std::int64_t> queued_ns, const ClaimLimits& limits);

/// The entrypoint to claim from: of those that offer something in a bucket that is served here, the
/// one whose request has waited longest. Equal ones: the lower bucket, then the lower entrypoint.
/// `offers[e][b]` is entrypoint e's bucket b; `serves` says which buckets this instance serves.
struct ClaimTarget {
  std::size_t entrypoint = 0;
  int bucket = 0;

  friend bool operator==(const ClaimTarget&, const ClaimTarget&) = default;
};
using Offers = std::array<Advertisement, kBucketCount>;
std::optional<ClaimTarget> choose_claim(std::span<const Offers> offers,
                                        const std::array<bool, kBucketCount>& serves);

/// The buckets an instance claims from: those it serves, and others that need help: one whose
/// request has waited longer than every one of its own by the limits' head start, or any while it
/// has an idle rank and its own buckets offer nothing. So a split that lags behind the demand, or
/// cannot follow it because there are few instances, neither wastes compute nor starves a bucket.
std::array<bool, kBucketCount> claimable_buckets(std::span<const Offers> offers,
                                                 const std::array<bool, kBucketCount>& serves,
                                                 std::span<const std::int64_t> queued_ns,
                                                 TimePoint now, const ClaimLimits& limits);

/// The buckets whose requests an instance of `bucket` serves, given how many instances each bucket
/// has: its own, and those without one that spill to it.
std::array<bool, kBucketCount> served_buckets(int bucket,
                                              std::span<const int, kBucketCount> instances);

}  // namespace millrace::dataplane::routing
