#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/time_point.h"
#include "dataplane/routing/decode_rank.h"

/// The policies of other gateways, to compare ours with: the entrypoint pushes a request to a rank
/// the moment it arrives, by what it knows of the ranks then. (Ours is not among them: instances
/// pull, prefill_claim.h.)
namespace millrace::dataplane::routing {

enum class Policy {
  kMillrace,  ///< ours: buckets, pull, rank by queued compute, variable chunks; decode_rank.h
  kRoundRobin,
  kLeastRequests,
  kLeastTokens,    ///< tokens still to run; decode: tokens of KV
  kPowerOfTwo,     ///< two ranks at random, the one with fewer tokens
  kMovingBuckets,  ///< a range of prompt lengths for each instance, of equal load
  kOverlapCredit,  ///< fewest tokens of compute and KV, less a credit for what is cached there
};
inline constexpr std::array<std::string_view, 7> kPolicyNames = {
    "millrace",     "round_robin",    "least_requests", "least_tokens",
    "power_of_two", "moving_buckets", "overlap_credit"};

std::string_view to_string(Policy policy);

/// kInvalidArgument lists the names that there are.
absl::StatusOr<Policy> parse_policy(std::string_view name);

/// A prefill rank as an entrypoint knows it: its last load report and what was charged since.
struct PushRank {
  std::int64_t requests = 0;       ///< without their first token yet
  std::int64_t tokens = 0;         ///< of those, that are still to run
  std::int64_t prompt_tokens = 0;  ///< of those, whole prompts less their overlap credit
  bool is_accepting = true;
};

struct PushRequest {
  std::int64_t input_tokens = 0;
  std::int64_t cached_tokens = 0;          ///< of those, whose KV is stored somewhere
  std::optional<std::size_t> holder = {};  ///< the rank in whose host memory that KV is, if any
};

struct PushSettings {
  int ranks_per_instance = 1;  ///< ranks i·n … (i+1)·n − 1 are an instance

  // Moving buckets, as smg's `bucket` policy has them (defaults are its own).
  std::chrono::nanoseconds bucket_window = std::chrono::seconds(5);
  std::chrono::nanoseconds bucket_period = std::chrono::seconds(5);
  std::int64_t bucket_initial_span = 4096;  ///< tokens that the first split divides evenly
  double bucket_change = 2.0;  ///< boundaries move only when loads differ by more than this
  std::int64_t imbalance_requests = 32;
  double imbalance_ratio = 1.0001;

  // Overlap credit, as Dynamo's router has it: the share of a cached token that need not be paid.
  double host_credit = 0.75;     ///< in host memory of the rank
  double storage_credit = 0.25;  ///< stored: the same for every rank
};

/// Tokens that an overlap-credit router charges for a request to a rank.
std::int64_t credited_tokens(const PushRequest& request, std::size_t rank,
                             const PushSettings& settings);

/// One entrypoint's chooser of prefill and decode ranks. Pure: equal calls from equal seeds give
/// equal answers. One thread. Remembers its turn, its random state and, for moving buckets, the
/// prompt lengths of the window (64 Ki at most).
class PushRouter {
 public:
  /// `policy` is not kMillrace.
  PushRouter(Policy policy, const PushSettings& settings, std::uint64_t seed);

  /// The rank for a request's prefill; nullopt when none accepts. Equal scores go to the
  /// next rank from a random one on, so that routers with the same reports do not flock.
  std::optional<std::size_t> pick_prefill(const PushRequest& request,
                                          std::span<const PushRank> ranks, TimePoint now);

  /// The rank for its decode, by the same rule: in turn, by requests (also moving buckets), by
  /// KV (also overlap credit, whose prefill part is the same everywhere), or the better of two.
  /// nullopt when none has room for its tokens.
  std::optional<std::size_t> pick_decode(std::int64_t request_tokens,
                                         std::span<const DecodeRank> ranks);

 private:
  struct Seen {
    TimePoint at;
    std::int64_t tokens = 0;
  };

  template <typename Ranks, typename Usable>
  std::optional<std::size_t> next_in_turn(const Ranks& ranks, std::size_t& turn, Usable usable);
  template <typename Ranks, typename Usable>
  std::optional<std::size_t> better_of_two(const Ranks& ranks, Usable usable);
  std::optional<std::size_t> pick_by_length(const PushRequest& request,
                                            std::span<const PushRank> ranks, TimePoint now);
  void split_evenly(std::size_t buckets);
  void move_boundaries(std::size_t buckets);

  Policy policy_;
  PushSettings settings_;
  std::mt19937_64 random_;
  std::size_t prefill_turn_ = 0;
  std::size_t decode_turn_ = 0;
  std::deque<Seen> seen_;
  std::vector<std::int64_t> upper_;  // of each bucket but the last, ascending, exclusive
  std::optional<TimePoint> next_move_;
};

}  // namespace millrace::dataplane::routing
