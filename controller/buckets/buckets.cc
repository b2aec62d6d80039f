#include "controller/buckets/buckets.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <set>

#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::controller::buckets {
namespace {

/// Wide enough for nanoseconds of a round times instances.
using Wide = __int128;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

Wide sum_of(std::span<const std::uint64_t> demand) {
  Wide sum = 0;
  for (const std::uint64_t ns : demand) sum += ns;
  return sum;
}

bool has_traffic(const std::optional<Demand>& demand) { return demand && sum_of(*demand) > 0; }

absl::Status validate(const SplitSettings& settings, const SplitInput& input) {
  RETURN_IF_ERROR(buckets::validate(settings));
  for (const std::optional<Demand>* demand : {&input.demand, &input.previous_demand}) {
    if (*demand && (*demand)->size() != at(settings.bucket_count)) {
      return absl::InvalidArgumentError(str_cat("demand is of ", (*demand)->size(),
                                                " buckets; there are ", settings.bucket_count));
    }
  }
  std::set<std::string_view> ids;
  for (const PrefillInstance& instance : input.instances) {
    if (instance.bucket < kNoBucket || instance.bucket >= settings.bucket_count) {
      return absl::InvalidArgumentError(str_cat("instance ", instance.id, " is in bucket ",
                                                instance.bucket, "; there are ",
                                                settings.bucket_count));
    }
    if (!ids.insert(instance.id).second) {
      return absl::InvalidArgumentError(str_cat("instance ", instance.id, " is there twice"));
    }
  }
  return absl::OkStatus();
}

/// One round's decision, in numbers of instances.
class Round {
 public:
  Round(const SplitSettings& settings, const SplitInput& input)
      : settings_(settings), input_(input) {
    split_.bucket_of.reserve(input.instances.size());
    count_.assign(at(settings.bucket_count), 0);
    for (const PrefillInstance& instance : input.instances) {
      split_.bucket_of.push_back(instance.bucket);
      if (instance.bucket != kNoBucket) ++count_[at(instance.bucket)];
    }
  }

  std::vector<int> place() {
    place_new();
    return std::move(split_.bucket_of);
  }

  Split decide() {
    place_new();
    if (!input_.demand) return stay(SplitOutcome::kNoTelemetry);
    if (!has_traffic(input_.demand)) return stay(SplitOutcome::kNoTraffic);
    split_.wanted = apportion(*input_.demand, instances());
    serve_unserved();
    follow_demand();
    return std::move(split_);
  }

 private:
  int instances() const { return static_cast<int>(input_.instances.size()); }
  int moves_left() const { return settings_.max_moves - static_cast<int>(split_.moves.size()); }
  Split stay(SplitOutcome why) {
    split_.outcome = why;
    return std::move(split_);
  }

  void place_new();
  void serve_unserved();
  void follow_demand();
  void move(int from, int to);
  int missing(int bucket) const { return split_.wanted[at(bucket)] - count_[at(bucket)]; }
  /// How many instances the exact share of demand is above what the bucket has.
  double deficit(int bucket) const {
    const auto share = static_cast<double>((*input_.demand)[at(bucket)]) /
                       static_cast<double>(sum_of(*input_.demand));
    return share * instances() - count_[at(bucket)];
  }
  bool is_change_small() const;
  std::vector<int> confirmed() const;

  const SplitSettings& settings_;
  const SplitInput& input_;
  std::vector<int> count_;  // instances of each bucket
  Split split_;
};

void Round::place_new() {
  const std::optional<Demand>& guide =
      has_traffic(input_.demand) ? input_.demand : input_.previous_demand;
  const std::vector<int> goal =
      has_traffic(guide) ? apportion(*guide, instances()) : std::vector<int>(count_.size(), 0);
  for (int& bucket : split_.bucket_of) {
    if (bucket != kNoBucket) continue;
    bucket = 0;
    for (int b = 1; b < settings_.bucket_count; ++b) {
      if (goal[at(b)] - count_[at(b)] > goal[at(bucket)] - count_[at(bucket)]) bucket = b;
    }
    ++count_[at(bucket)];
  }
}

void Round::move(int from, int to) {
  const auto instance = std::find(split_.bucket_of.begin(), split_.bucket_of.end(), from);
  *instance = to;
  const auto index = static_cast<std::size_t>(instance - split_.bucket_of.begin());
  split_.moves.push_back({input_.instances[index].id, from, to});
  --count_[at(from)];
  ++count_[at(to)];
  split_.outcome = SplitOutcome::kMoved;
}

/// A bucket gives its last instance only if nobody wanted it in the round before either.
void Round::serve_unserved() {
  for (int to = 0; to < settings_.bucket_count && moves_left() > 0; ++to) {
    if (count_[at(to)] > 0 || split_.wanted[at(to)] == 0) continue;
    int from = kNoBucket;
    for (int b = 0; b < settings_.bucket_count; ++b) {
      const bool was_wanted = input_.previous_demand && (*input_.previous_demand)[at(b)] > 0;
      if (missing(b) >= 0 || (count_[at(b)] == 1 && was_wanted)) continue;
      if (from == kNoBucket || missing(b) < missing(from)) from = b;
    }
    if (from != kNoBucket) move(from, to);
  }
}

bool Round::is_change_small() const {
  double gains = 0.0;
  double gives = 0.0;
  for (int b = 0; b < settings_.bucket_count; ++b) {
    if (missing(b) > 0) gains = std::max(gains, deficit(b));
    if (missing(b) < 0) gives = std::max(gives, -deficit(b));
  }
  // At 1, moving and staying are equally far from the exact shares.
  return gains + gives <= 1.0 + settings_.min_share_change * instances();
}

/// Instances that each bucket should gain (or, negative, give) in the eyes of both rounds.
std::vector<int> Round::confirmed() const {
  std::vector<int> changes(count_.size(), 0);
  if (!has_traffic(input_.previous_demand)) return changes;
  const std::vector<int> before = apportion(*input_.previous_demand, instances());
  for (int b = 0; b < settings_.bucket_count; ++b) {
    const int now = missing(b);
    const int then = before[at(b)] - count_[at(b)];
    if (now > 0 && then > 0) changes[at(b)] = std::min(now, then);
    if (now < 0 && then < 0) changes[at(b)] = std::max(now, then);
  }
  return changes;
}

void Round::follow_demand() {
  if (count_ == split_.wanted) return;
  std::vector<int> changes = confirmed();
  int possible = 0;
  int given = 0;
  for (const int change : changes) {
    possible += std::max(change, 0);
    given += std::max(-change, 0);
  }
  possible = std::min(possible, given);
  SplitOutcome held_back = SplitOutcome::kSettled;
  if (possible == 0) held_back = SplitOutcome::kUnconfirmed;
  if (is_change_small()) held_back = SplitOutcome::kSmallChange;
  if (held_back != SplitOutcome::kSettled) {
    if (split_.moves.empty()) split_.outcome = held_back;
    return;
  }
  const int moves = std::min(possible, moves_left());
  for (int i = 0; i < moves; ++i) {
    int to = kNoBucket;
    int from = kNoBucket;
    for (int b = 0; b < settings_.bucket_count; ++b) {
      if (changes[at(b)] > 0 && (to == kNoBucket || deficit(b) > deficit(to))) to = b;
      if (changes[at(b)] < 0 && (from == kNoBucket || deficit(b) < deficit(from))) from = b;
    }
    --changes[at(to)];
    ++changes[at(from)];
    move(from, to);
  }
  split_.withheld_moves = possible - moves;
}

}  // namespace

absl::Status validate(const SplitSettings& settings) {
  if (settings.bucket_count < 1) {
    return absl::InvalidArgumentError(
        str_cat("bucket_count is ", settings.bucket_count, "; it must be at least 1"));
  }
  if (settings.max_moves < 1) {
    return absl::InvalidArgumentError(
        str_cat("max_moves is ", settings.max_moves, "; it must be at least 1"));
  }
  if (!(settings.min_share_change >= 0.0 && settings.min_share_change <= 1.0)) {
    return absl::InvalidArgumentError(
        str_cat("min_share_change is ", settings.min_share_change, "; it must be from 0 to 1"));
  }
  return absl::OkStatus();
}

std::string_view to_string(SplitOutcome outcome) {
  switch (outcome) {
    case SplitOutcome::kSettled:
      return "settled";
    case SplitOutcome::kMoved:
      return "moved";
    case SplitOutcome::kNoTelemetry:
      return "no_telemetry";
    case SplitOutcome::kNoTraffic:
      return "no_traffic";
    case SplitOutcome::kSmallChange:
      return "small_change";
    case SplitOutcome::kUnconfirmed:
      return "unconfirmed";
  }
  return "unknown";
}

absl::StatusOr<Split> split_instances(const SplitSettings& settings, const SplitInput& input) {
  RETURN_IF_ERROR(validate(settings, input));
  return Round(settings, input).decide();
}

absl::StatusOr<std::vector<int>> place_new_instances(const SplitSettings& settings,
                                                     const SplitInput& input) {
  RETURN_IF_ERROR(validate(settings, input));
  return Round(settings, input).place();
}

std::vector<int> apportion(std::span<const std::uint64_t> demand, int instance_count) {
  std::vector<int> count(demand.size(), 0);
  const Wide sum = sum_of(demand);
  if (sum == 0) return count;
  std::vector<int> by_demand;
  for (std::size_t b = 0; b < demand.size(); ++b) {
    if (demand[b] > 0) by_demand.push_back(static_cast<int>(b));
  }
  std::stable_sort(by_demand.begin(), by_demand.end(),
                   [&](int a, int b) { return demand[at(a)] > demand[at(b)]; });
  int left = instance_count;
  for (const int b : by_demand) {
    if (left == 0) return count;
    ++count[at(b)];
    --left;
  }
  // Giving the next instance to the largest deficit is the largest remainder, one at a time.
  const auto deficit = [&](int b) {
    return static_cast<Wide>(instance_count) * demand[at(b)] - count[at(b)] * sum;
  };
  for (; left > 0; --left) {
    int most = 0;
    for (int b = 1; b < static_cast<int>(demand.size()); ++b) {
      if (deficit(b) > deficit(most)) most = b;
    }
    ++count[at(most)];
  }
  return count;
}

}  // namespace millrace::controller::buckets
