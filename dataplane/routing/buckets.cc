#include "dataplane/routing/buckets.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>

#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::dataplane::routing {
namespace {

/// "16K", or "500" where it is not whole.
std::string length_name(std::int64_t tokens) {
  return tokens % 1024 == 0 ? str_cat(tokens >> 10, "K") : str_cat(tokens);
}

}  // namespace

absl::Status validate(const BucketEdges& edges) {
  std::int64_t before = 0;
  for (const std::int64_t edge : edges.lower) {
    if (edge <= before) {
      return absl::InvalidArgumentError(
          str_cat("bucket edges must be from 1 token on, each above the one before; ", edge,
                  " does not follow ", before));
    }
    before = edge;
  }
  return absl::OkStatus();
}

absl::StatusOr<BucketEdges> parse_bucket_edges(std::string_view text) {
  BucketEdges edges;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  bool is_list = true;
  for (std::int64_t& edge : edges.lower) {
    if (&edge != edges.lower.data()) is_list = is_list && at != end && *at++ == ',';
    const auto [next, error] = std::from_chars(at, end, edge);
    is_list = is_list && error == std::errc();
    at = next;
  }
  if (!is_list || at != end) {
    return absl::InvalidArgumentError(
        str_cat("bucket edges are \"", text, "\"; they must be ", edges.lower.size(),
                " numbers of tokens with commas between them, like 16384,65536,262144"));
  }
  RETURN_IF_ERROR(validate(edges));
  return edges;
}

BucketEdges bucket_edges(std::span<const std::uint64_t> published) {
  BucketEdges edges;
  if (published.empty()) return edges;
  edges.lower.fill(std::numeric_limits<std::int64_t>::max());
  const std::size_t known = std::min(published.size(), edges.lower.size());
  for (std::size_t i = 0; i < known; ++i) edges.lower[i] = static_cast<std::int64_t>(published[i]);
  return edges;
}

int bucket_of(std::int64_t input_tokens, const BucketEdges& edges) {
  return static_cast<int>(std::upper_bound(edges.lower.begin(), edges.lower.end(), input_tokens) -
                          edges.lower.begin());
}

std::string bucket_name(int bucket, const BucketEdges& edges) {
  const auto edge = [&](int index) {
    return length_name(edges.lower[static_cast<std::size_t>(index)]);
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
