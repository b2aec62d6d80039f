#include "dataplane/routing/prefill_claim.h"

#include <algorithm>

namespace millrace::dataplane::routing {

std::size_t pick_rank(std::span<const std::int64_t> queued_ns) {
  return static_cast<std::size_t>(std::min_element(queued_ns.begin(), queued_ns.end()) -
                                  queued_ns.begin());
}

bool wants_more(std::span<const std::int64_t> queued_ns, const ClaimLimits& limits) {
  if (queued_ns.empty()) return false;
  const std::int64_t least = queued_ns[pick_rank(queued_ns)];
  return least <= 0 || least < limits.quota_per_rank_ns;
}

std::optional<ClaimTarget> choose_claim(std::span<const Offers> offers,
                                        const std::array<bool, kBucketCount>& serves) {
  std::optional<ClaimTarget> best;
  TimePoint oldest = TimePoint::max();
  for (int bucket = 0; bucket < kBucketCount; ++bucket) {
    const auto b = static_cast<std::size_t>(bucket);
    if (!serves[b]) continue;
    for (std::size_t entrypoint = 0; entrypoint < offers.size(); ++entrypoint) {
      const Advertisement& offer = offers[entrypoint][b];
      if (offer.waiting <= 0 || (best && offer.oldest_since >= oldest)) continue;
      best = {entrypoint, bucket};
      oldest = offer.oldest_since;
    }
  }
  return best;
}

std::array<bool, kBucketCount> claimable_buckets(std::span<const Offers> offers,
                                                 const std::array<bool, kBucketCount>& serves,
                                                 std::span<const std::int64_t> queued_ns,
                                                 TimePoint now, const ClaimLimits& limits) {
  std::array<TimePoint, kBucketCount> oldest;
  oldest.fill(TimePoint::max());
  TimePoint own = TimePoint::max();
  for (const Offers& offer : offers) {
    for (std::size_t b = 0; b < offer.size(); ++b) {
      if (offer[b].waiting <= 0) continue;
      oldest[b] = std::min(oldest[b], offer[b].oldest_since);
      if (serves[b]) own = std::min(own, offer[b].oldest_since);
    }
  }
  const bool is_free =
      own == TimePoint::max() && !queued_ns.empty() && queued_ns[pick_rank(queued_ns)] <= 0;
  std::array<bool, kBucketCount> claimable = serves;
  for (std::size_t b = 0; b < claimable.size(); ++b) {
    if (oldest[b] == TimePoint::max()) continue;
    claimable[b] = serves[b] || is_free || oldest[b] + limits.head_start <= std::min(own, now);
  }
  return claimable;
}

std::array<bool, kBucketCount> served_buckets(int bucket,
                                              std::span<const int, kBucketCount> instances) {
  std::array<bool, kBucketCount> serves{};
  for (int b = 0; b < kBucketCount; ++b) {
    serves[static_cast<std::size_t>(b)] = serving_bucket(b, instances) == bucket;
  }
  return serves;
}

}  // namespace millrace::dataplane::routing
