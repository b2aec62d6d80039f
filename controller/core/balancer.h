#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "api/admin/entrypoint_report.h"
#include "api/admin/view.h"
#include "common/time_point.h"
#include "controller/buckets/buckets.h"
#include "controller/buckets/demand.h"
#include "controller/core/stored_state.h"
#include "dataplane/cost/cost_model.h"
#include "dataplane/routing/buckets.h"

namespace millrace::controller::core {

struct BalancerOptions {
  std::chrono::milliseconds round{10'000};     ///< how often buckets are split anew
  int max_moves = 2;                           ///< controller/buckets/buckets.h
  double min_share_change = 0.05;              ///< likewise
  dataplane::routing::BucketEdges edges = {};  ///< of the input lengths that buckets stand for
};

/// kInvalidArgument names the setting: a round of at least 1 ms, at least one move, a change from 0
/// to 1, ascending edges.
absl::Status validate(const BalancerOptions& options);

/// The length of the first round in which demand is seen: nobody chose the split until then.
inline constexpr std::chrono::milliseconds kFirstRound{1000};

/// What came of a round.
struct BalanceRound {
  buckets::SplitOutcome outcome = buckets::SplitOutcome::kSettled;
  std::vector<buckets::BucketMove> moves;
  std::vector<int> instances;  ///< of each bucket, now
};

/// Decides which prefill worker serves which input lengths, and by which cost model entrypoints
/// count, from what entrypoints report.
///
/// A worker keeps its bucket by its name while it has a placement, over restarts of its process,
/// and over restarts of the controller as far as the stored view shows it. A ready one that has
/// none gets one at once. Every round the buckets are split anew over the ready workers. The first
/// cost that a worker reports is published at once, others at the end of rounds.
///
/// Pure; one thread at a time.
class Balancer {
 public:
  /// `stored` is the view as last published. The options must be valid.
  Balancer(const BalancerOptions& options, const api::admin::RoutingView& stored);

  /// Begins the first round.
  void start(TimePoint now);

  /// Takes what an entrypoint says. `view` is the published one: costs of workers that it does not
  /// show with their incarnations are left aside. kInvalidArgument names the value.
  absl::Status report(std::string_view entrypoint_id, const api::admin::EntrypointReport& report,
                      const api::admin::RoutingView& view, TimePoint now);

  TimePoint next_round() const { return round_end_; }

  /// Ends the round and begins the next when it is time; else nullopt. complete() shows the result.
  std::optional<BalanceRound> end_due_round(const api::admin::RoutingView& view, TimePoint now);

  /// Fills in what is decided here: the buckets of prefill workers, their edges and the cost.
  /// Forgets workers that have no placement.
  void complete(const std::vector<Placement>& placements, api::admin::RoutingView& view);

  const std::optional<api::admin::PublishedCost>& prefill_cost() const { return published_; }
  /// What arrived in the last round, in nanoseconds by bucket; all 0 when nobody reported.
  const buckets::Demand& last_demand() const { return last_demand_; }

 private:
  struct Measured {
    std::uint64_t incarnation = 0;
    dataplane::cost::CostModel cost;
  };

  buckets::SplitInput split_input(const api::admin::RoutingView& view) const;
  void choose_cost(const api::admin::RoutingView& view);

  const std::chrono::milliseconds round_;
  const buckets::SplitSettings settings_;
  const std::vector<std::uint64_t> published_edges_;  // as in a view: empty for the default ones
  std::map<std::string, int, std::less<>> bucket_of_;
  std::map<std::string, Measured, std::less<>> measured_;  // by worker
  std::optional<api::admin::PublishedCost> published_;
  buckets::DemandBook book_;
  buckets::Demand last_demand_;
  std::optional<buckets::Demand> known_demand_;  // of the last round in which someone reported
  bool is_split_chosen_ = false;                 // by demand, or by a controller before this one
  TimePoint round_end_;
};

}  // namespace millrace::controller::core
