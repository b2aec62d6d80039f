#include "dataplane/routing/buckets.h"

#include <algorithm>

#include "common/str_cat.h"

namespace millrace::dataplane::routing {

int bucket_of(std::int64_t input_tokens, const BucketEdges& edges) {
  return static_cast<int>(std::upper_bound(edges.lower.begin(), edges.lower.end(), input_tokens) -
                          edges.lower.begin());
}

std::string bucket_name(int bucket, const BucketEdges& edges) {
  const auto edge = [&](int index) {
    return str_cat(edges.lower[static_cast<std::size_t>(index)] >> 10, "K");
  };
  if (bucket == 0) return str_cat("<", edge(0));
  if (bucket == kBucketCount - 1) return str_cat(">=", edge(bucket - 1));
  return str_cat(edge(bucket - 1), "-", edge(bucket));
}

std::optional<int> serving_bucket(int bucket, std::span<const int, kBucketCount> instances) {
  for (int larger = bucket; larger < kBucketCount; ++larger) {
    if (instances[static_cast<std::size_t>(larger)] > 0) return larger;
  }
  for (int smaller = bucket - 1; smaller >= 0; --smaller) {
    if (instances[static_cast<std::size_t>(smaller)] > 0) return smaller;
  }
  return std::nullopt;
}

}  // namespace millrace::dataplane::routing
