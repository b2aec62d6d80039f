#include "dataplane/routing/push_policy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "common/check.h"
#include "common/str_cat.h"

namespace millrace::dataplane::routing {
namespace {

constexpr std::size_t kMaxSeen = std::size_t{64} << 10;

/// The usable rank with the least score; equal ones: the next from `first` on, round the end.
template <typename Ranks, typename Usable, typename Score>
std::optional<std::size_t> least(const Ranks& ranks, std::size_t first, Usable usable,
                                 Score score) {
  std::optional<std::size_t> best;
  const auto consider = [&](std::size_t i) {
    if (usable(ranks[i]) && (!best || score(i) < score(*best))) best = i;
  };
  const std::size_t begin = ranks.empty() ? 0 : first % ranks.size();
  for (std::size_t i = begin; i < ranks.size(); ++i) consider(i);
  for (std::size_t i = 0; i < begin; ++i) consider(i);
  return best;
}

bool is_accepting(const PushRank& rank) { return rank.is_accepting; }

/// Requests outstanding at each instance; −1 where no rank accepts.
std::vector<std::int64_t> instance_loads(std::span<const PushRank> ranks,
                                         std::size_t per_instance) {
  std::vector<std::int64_t> loads((ranks.size() + per_instance - 1) / per_instance, -1);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (!ranks[i].is_accepting) continue;
    std::int64_t& load = loads[i / per_instance];
    load = std::max<std::int64_t>(load, 0) + ranks[i].requests;
  }
  return loads;
}

std::optional<std::size_t> least_loaded_instance(std::span<const std::int64_t> loads) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    if (loads[i] >= 0 && (!best || loads[i] < loads[*best])) best = i;
  }
  return best;
}

}  // namespace

std::string_view to_string(Policy policy) { return kPolicyNames[static_cast<std::size_t>(policy)]; }

absl::StatusOr<Policy> parse_policy(std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < kPolicyNames.size(); ++i) {
    if (kPolicyNames[i] == name) return static_cast<Policy>(i);
    known.append(i == 0 ? "" : ", ").append(kPolicyNames[i]);
  }
  return absl::InvalidArgumentError(
      str_cat("policy \"", name, "\" is not known; there are ", known));
}

std::int64_t credited_tokens(const PushRequest& request, std::size_t rank,
                             const PushSettings& settings) {
  const double credit = request.holder == rank ? settings.host_credit : settings.storage_credit;
  return request.input_tokens - std::llround(credit * static_cast<double>(request.cached_tokens));
}

PushRouter::PushRouter(Policy policy, const PushSettings& settings, std::uint64_t seed)
    : policy_(policy), settings_(settings), random_(seed) {
  CHECK(policy != Policy::kMillrace, "prefill instances pull; nobody pushes");
  CHECK(settings.ranks_per_instance > 0);
}

template <typename Ranks, typename Usable>
std::optional<std::size_t> PushRouter::next_in_turn(const Ranks& ranks, std::size_t& turn,
                                                    Usable usable) {
  for (std::size_t tried = 0; tried < ranks.size(); ++tried) {
    const std::size_t i = turn++ % ranks.size();
    if (usable(ranks[i])) return i;
  }
  return std::nullopt;
}

template <typename Ranks, typename Usable>
std::optional<std::size_t> PushRouter::better_of_two(const Ranks& ranks, Usable usable) {
  std::vector<std::size_t> usable_ranks;
  usable_ranks.reserve(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (usable(ranks[i])) usable_ranks.push_back(i);
  }
  if (usable_ranks.empty()) return std::nullopt;
  const std::size_t first = random_() % usable_ranks.size();
  if (usable_ranks.size() == 1) return usable_ranks[0];
  const std::size_t step = 1 + random_() % (usable_ranks.size() - 1);  // never the same one twice
  const std::size_t a = usable_ranks[first];
  const std::size_t b = usable_ranks[(first + step) % usable_ranks.size()];
  const auto load = [&](std::size_t i) {
    if constexpr (requires { ranks[i].kv_tokens; }) {
      return ranks[i].kv_tokens;
    } else {
      return ranks[i].tokens;
    }
  };
  return load(b) < load(a) ? b : a;
}

void PushRouter::split_evenly(std::size_t buckets) {
  upper_.resize(buckets - 1);
  for (std::size_t i = 0; i + 1 < buckets; ++i) {
    upper_[i] = settings_.bucket_initial_span * static_cast<std::int64_t>(i + 1) /
                static_cast<std::int64_t>(buckets);
  }
}

/// Cuts the lengths of the window so that each bucket has the same sum of them, if the buckets as
/// they are do not.
void PushRouter::move_boundaries(std::size_t buckets) {
  std::vector<std::int64_t> lengths;
  lengths.reserve(seen_.size());
  std::vector<std::int64_t> sums(buckets, 0);
  std::int64_t total = 0;
  for (const Seen& seen : seen_) {
    lengths.push_back(seen.tokens);
    const auto above = std::upper_bound(upper_.begin(), upper_.end(), seen.tokens);
    sums[static_cast<std::size_t>(above - upper_.begin())] += seen.tokens;
    total += seen.tokens;
  }
  const auto [fewest, most] = std::minmax_element(sums.begin(), sums.end());
  if (static_cast<double>(*most) <= settings_.bucket_change * static_cast<double>(*fewest)) return;
  std::sort(lengths.begin(), lengths.end());
  std::int64_t below = 0;
  std::size_t cut = 0;
  for (const std::int64_t tokens : lengths) {
    while (cut + 1 < buckets && below >= total / static_cast<std::int64_t>(buckets) *
                                             static_cast<std::int64_t>(cut + 1)) {
      upper_[cut++] = tokens;
    }
    below += tokens;
  }
  while (cut + 1 < buckets) upper_[cut++] = lengths.empty() ? 0 : lengths.back() + 1;
}

std::optional<std::size_t> PushRouter::pick_by_length(const PushRequest& request,
                                                      std::span<const PushRank> ranks,
                                                      TimePoint now) {
  const auto per_instance = static_cast<std::size_t>(settings_.ranks_per_instance);
  const std::vector<std::int64_t> loads = instance_loads(ranks, per_instance);
  const std::optional<std::size_t> idlest = least_loaded_instance(loads);
  if (!idlest) return std::nullopt;
  if (upper_.size() + 1 != loads.size()) split_evenly(loads.size());
  seen_.push_back({now, request.input_tokens});
  while (now - seen_.front().at > settings_.bucket_window || seen_.size() > kMaxSeen) {
    seen_.pop_front();
  }
  if (!next_move_) next_move_ = now + settings_.bucket_period;
  if (now >= *next_move_) {
    move_boundaries(loads.size());
    next_move_ = now + settings_.bucket_period;
  }
  const std::int64_t most = *std::max_element(loads.begin(), loads.end());
  const std::int64_t fewest = loads[*idlest];
  const bool is_imbalanced =
      most - fewest > settings_.imbalance_requests &&
      static_cast<double>(most) > settings_.imbalance_ratio * static_cast<double>(fewest);
  const auto above = std::upper_bound(upper_.begin(), upper_.end(), request.input_tokens);
  auto instance = static_cast<std::size_t>(above - upper_.begin());
  if (is_imbalanced || loads[instance] < 0) instance = *idlest;
  const std::size_t first = instance * per_instance;
  const auto members = ranks.subspan(first, std::min(per_instance, ranks.size() - first));
  const auto member =
      least(members, random_(), is_accepting, [&](std::size_t i) { return members[i].requests; });
  return first + *member;
}

std::optional<std::size_t> PushRouter::pick_prefill(const PushRequest& request,
                                                    std::span<const PushRank> ranks,
                                                    TimePoint now) {
  const std::size_t first = random_();
  switch (policy_) {
    case Policy::kRoundRobin:
      return next_in_turn(ranks, prefill_turn_, is_accepting);
    case Policy::kLeastRequests:
      return least(ranks, first, is_accepting, [&](std::size_t i) { return ranks[i].requests; });
    case Policy::kLeastTokens:
      return least(ranks, first, is_accepting, [&](std::size_t i) { return ranks[i].tokens; });
    case Policy::kPowerOfTwo:
      return better_of_two(ranks, is_accepting);
    case Policy::kMovingBuckets:
      return pick_by_length(request, ranks, now);
    case Policy::kOverlapCredit:
      return least(ranks, first, is_accepting, [&](std::size_t i) {
        return ranks[i].prompt_tokens + credited_tokens(request, i, settings_);
      });
    case Policy::kMillrace:
      break;
  }
  return std::nullopt;
}

std::optional<std::size_t> PushRouter::pick_decode(std::int64_t request_tokens,
                                                   std::span<const DecodeRank> ranks) {
  const auto has_room = [&](const DecodeRank& rank) {
    return rank.is_accepting && rank.free_kv_tokens >= request_tokens;
  };
  const std::size_t first = random_();
  switch (policy_) {
    case Policy::kRoundRobin:
      return next_in_turn(ranks, decode_turn_, has_room);
    case Policy::kLeastRequests:
    case Policy::kMovingBuckets:
      return least(ranks, first, has_room, [&](std::size_t i) { return ranks[i].requests; });
    case Policy::kLeastTokens:
    case Policy::kOverlapCredit:
      return least(ranks, first, has_room, [&](std::size_t i) { return ranks[i].kv_tokens; });
    case Policy::kPowerOfTwo:
      return better_of_two(ranks, has_room);
    case Policy::kMillrace:
      break;
  }
  return std::nullopt;
}

}  // namespace millrace::dataplane::routing
