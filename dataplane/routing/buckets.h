#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace millrace::dataplane::routing {

/// Prefill requests are kept apart by their input length, so that short prompts never queue behind
/// long ones: <16K, 16K–64K, 64K–256K, ≥256K tokens (K = 1,024; the lower edge belongs to the
/// bucket), if the controller was given no other edges.
inline constexpr int kBucketCount = 4;

struct BucketEdges {
  std::array<std::int64_t, kBucketCount - 1> lower = {16 << 10, 64 << 10, 256 << 10};

  friend bool operator==(const BucketEdges&, const BucketEdges&) = default;
};

/// kInvalidArgument: edges must be from 1 token on, each above the one before.
absl::Status validate(const BucketEdges& edges);

/// "16384,65536,262144". kInvalidArgument names the text and what is allowed.
absl::StatusOr<BucketEdges> parse_bucket_edges(std::string_view text);

/// The edges that a routing view names: none are the default ones. A version with another number of
/// buckets may have published it: those beyond ours are one with our last, those it lacks are
/// longer than any input.
BucketEdges bucket_edges(std::span<const std::uint64_t> published);

/// The bucket of a request by its whole input length, cached tokens included.
int bucket_of(std::int64_t input_tokens, const BucketEdges& edges = {});

/// The range of input lengths of a bucket, for people: "<16K", "16K-64K", "64K-256K", ">=256K"; in
/// tokens where they are not whole K: "<500", "500-2K".
std::string bucket_name(int bucket, const BucketEdges& edges = {});

/// Which bucket's instances serve the requests of `bucket`, given how many instances each one has:
/// its own, else the next larger that has one, else the next smaller; nullopt when none has.
std::optional<int> serving_bucket(int bucket, std::span<const int, kBucketCount> instances);

}  // namespace millrace::dataplane::routing
