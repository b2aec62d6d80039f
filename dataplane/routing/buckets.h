#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace millrace::dataplane::routing {

/// Prefill requests are kept apart by their input length, so that short prompts never queue behind
/// long ones: <16K, 16K–64K, 64K–256K, ≥256K tokens (K = 1,024; the lower edge belongs to the
/// bucket).
inline constexpr int kBucketCount = 4;

struct BucketEdges {
  std::array<std::int64_t, kBucketCount - 1> lower = {16 << 10, 64 << 10, 256 << 10};
};

/// The bucket of a request by its whole input length, cached tokens included.
int bucket_of(std::int64_t input_tokens, const BucketEdges& edges = {});

/// The range of input lengths of a bucket, for people: "<16K", "16K-64K", "64K-256K", ">=256K".
std::string bucket_name(int bucket, const BucketEdges& edges = {});

/// Which bucket's instances serve the requests of `bucket`, given how many instances each one has:
/// its own, else the next larger that has one, else the next smaller; nullopt when none has.
std::optional<int> serving_bucket(int bucket, std::span<const int, kBucketCount> instances);

}  // namespace millrace::dataplane::routing
