#include "dataplane/routing/prefill_queue.h"

#include <utility>

#include "common/check.h"
#include "common/str_cat.h"

namespace millrace::dataplane::routing {

absl::Status PrefillQueue::push(int bucket, const WaitingPrefill& waiting) {
  CHECK(bucket >= 0 && bucket < kBucketCount);
  if (place_of_.size() >= max_waiting_) {
    return absl::ResourceExhaustedError(
        str_cat(max_waiting_, " requests wait for a prefill instance already"));
  }
  const Place place{waiting.since, waiting.request};
  const bool is_new = place_of_.try_emplace(waiting.request, bucket, place).second;
  CHECK(is_new, "a request waits in one place");
  Bucket& queue = buckets_[static_cast<std::size_t>(bucket)];
  queue.emplace_hint(queue.end(), place, waiting);
  quota_ns_[static_cast<std::size_t>(bucket)] += waiting.quota_ns;
  return absl::OkStatus();
}

WaitingPrefill PrefillQueue::take(int bucket, Bucket::iterator place) {
  WaitingPrefill taken = place->second;
  place_of_.erase(taken.request);
  buckets_[static_cast<std::size_t>(bucket)].erase(place);
  quota_ns_[static_cast<std::size_t>(bucket)] -= taken.quota_ns;
  return taken;
}

bool PrefillQueue::remove(RequestNumber request) {
  const auto found = place_of_.find(request);
  if (found == place_of_.end()) return false;
  const auto [bucket, place] = found->second;
  take(bucket, buckets_[static_cast<std::size_t>(bucket)].find(place));
  return true;
}

const WaitingPrefill* PrefillQueue::head(int bucket) const {
  const Bucket& queue = bucket_at(bucket);
  return queue.empty() ? nullptr : &queue.begin()->second;
}

std::optional<WaitingPrefill> PrefillQueue::grant(int bucket) {
  Bucket& queue = buckets_[static_cast<std::size_t>(bucket)];
  if (queue.empty()) return std::nullopt;
  return take(bucket, queue.begin());
}

}  // namespace millrace::dataplane::routing
