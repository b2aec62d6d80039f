#include "controller/core/balancer.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/check.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "controller/cost/cost_choice.h"
#include "dataplane/routing/buckets.h"

namespace millrace::controller::core {
namespace {

using api::admin::kNoBucket;
using api::admin::RoutingView;
using api::admin::ViewWorker;
using api::admin::WorkerRole;
using api::admin::WorkerState;
using dataplane::cost::CostModel;
using dataplane::routing::kBucketCount;

static_assert(kNoBucket == buckets::kNoBucket);
static_assert(kBucketCount <= api::admin::kMaxBuckets);

bool serves_prefill(const ViewWorker& worker) {
  return worker.role == WorkerRole::kPrefill && worker.state == WorkerState::kReady;
}

/// The prefill worker of that name and incarnation, if the view (ordered by name) shows it.
bool is_shown(const RoutingView& view, const api::admin::WorkerCost& cost) {
  const auto worker = std::lower_bound(
      view.workers.begin(), view.workers.end(), cost.worker_id,
      [](const ViewWorker& a, const std::string& worker_id) { return a.worker_id < worker_id; });
  return worker != view.workers.end() && worker->worker_id == cost.worker_id &&
         worker->role == WorkerRole::kPrefill && worker->incarnation == cost.incarnation;
}

buckets::SplitSettings split_settings(const BalancerOptions& options) {
  return {.bucket_count = kBucketCount,
          .max_moves = options.max_moves,
          .min_share_change = options.min_share_change};
}

std::vector<std::uint64_t> published_edges(const dataplane::routing::BucketEdges& edges) {
  if (edges == dataplane::routing::BucketEdges{}) return {};
  return {edges.lower.begin(), edges.lower.end()};
}

}  // namespace

absl::Status validate(const BalancerOptions& options) {
  if (options.round < std::chrono::milliseconds(1)) {
    return absl::InvalidArgumentError(
        str_cat("round is ", options.round.count(), " ms; it must be at least 1"));
  }
  RETURN_IF_ERROR(dataplane::routing::validate(options.edges));
  const std::int64_t longest = options.edges.lower.back();
  if (static_cast<std::uint64_t>(longest) > api::admin::kMaxBucketEdge) {
    return absl::InvalidArgumentError(str_cat("the last bucket edge is ", longest,
                                              "; it must be at most ", api::admin::kMaxBucketEdge));
  }
  return buckets::validate(split_settings(options));
}

Balancer::Balancer(const BalancerOptions& options, const RoutingView& stored)
    : round_(options.round),
      settings_(split_settings(options)),
      published_edges_(published_edges(options.edges)),
      published_(stored.prefill_cost),
      book_(kBucketCount),
      last_demand_(kBucketCount, 0) {
  for (const ViewWorker& worker : stored.workers) {
    if (worker.bucket == kNoBucket || worker.bucket >= kBucketCount) continue;
    bucket_of_[worker.worker_id] = worker.bucket;
    is_split_chosen_ = true;
  }
}

void Balancer::start(TimePoint now) { round_end_ = now + round_; }

absl::Status Balancer::report(std::string_view entrypoint_id,
                              const api::admin::EntrypointReport& report, const RoutingView& view,
                              TimePoint now) {
  RETURN_IF_ERROR(book_.add(entrypoint_id, report));
  for (const api::admin::WorkerCost& cost : report.costs) {
    if (is_shown(view, cost)) measured_[cost.worker_id] = {cost.incarnation, cost.cost};
  }
  if (!published_) choose_cost(view);
  if (!is_split_chosen_ && book_.has_traffic()) {
    round_end_ = std::min(round_end_, now + kFirstRound);
  }
  return absl::OkStatus();
}

buckets::SplitInput Balancer::split_input(const RoutingView& view) const {
  buckets::SplitInput input{{}, std::nullopt, known_demand_};
  for (const ViewWorker& worker : view.workers) {
    if (!serves_prefill(worker)) continue;
    const auto bucket = bucket_of_.find(worker.worker_id);
    input.instances.push_back(
        {worker.worker_id, bucket == bucket_of_.end() ? kNoBucket : bucket->second});
  }
  return input;
}

std::optional<BalanceRound> Balancer::end_due_round(const RoutingView& view, TimePoint now) {
  if (now < round_end_) return std::nullopt;
  round_end_ = now + round_;
  buckets::SplitInput input = split_input(view);
  is_split_chosen_ = is_split_chosen_ || book_.has_traffic();
  input.demand = book_.end_round();
  last_demand_ = input.demand.value_or(buckets::Demand(kBucketCount, 0));
  if (input.demand) known_demand_ = input.demand;

  // Names in a view are unique, the settings are valid, and so are buckets and demand.
  absl::StatusOr<buckets::Split> split = buckets::split_instances(settings_, input);
  CHECK(split.ok());
  BalanceRound round;
  round.outcome = split->outcome;
  round.moves = std::move(split->moves);
  round.instances.assign(kBucketCount, 0);
  for (std::size_t index = 0; index < input.instances.size(); ++index) {
    const int bucket = split->bucket_of[index];
    bucket_of_[input.instances[index].id] = bucket;
    ++round.instances[static_cast<std::size_t>(bucket)];
  }
  choose_cost(view);
  return round;
}

void Balancer::choose_cost(const RoutingView& view) {
  std::map<std::string, Measured, std::less<>> current;
  std::vector<CostModel> costs;
  for (const ViewWorker& worker : view.workers) {
    const auto measured = measured_.find(worker.worker_id);
    if (measured == measured_.end() || measured->second.incarnation != worker.incarnation) continue;
    costs.push_back(measured->second.cost);
    current.insert(*measured);
  }
  measured_ = std::move(current);
  const std::optional<std::size_t> typical = cost::typical_cost(costs);
  if (!typical) return;
  const CostModel& next = costs[*typical];
  if (published_ && !cost::is_worth_publishing(published_->cost, next)) return;
  published_ = {published_ ? published_->version + 1 : 1, next};
}

void Balancer::complete(const std::vector<Placement>& placements, RoutingView& view) {
  std::set<std::string_view> placed;
  for (const Placement& placement : placements) placed.insert(placement.worker_id);
  std::erase_if(bucket_of_, [&](const auto& entry) { return !placed.contains(entry.first); });

  buckets::SplitInput input = split_input(view);
  const absl::StatusOr<std::vector<int>> bucket_of = buckets::place_new_instances(settings_, input);
  CHECK(bucket_of.ok());
  for (std::size_t index = 0; index < input.instances.size(); ++index) {
    bucket_of_[input.instances[index].id] = (*bucket_of)[index];
  }
  for (ViewWorker& worker : view.workers) {
    const auto bucket = bucket_of_.find(worker.worker_id);
    worker.bucket = bucket == bucket_of_.end() ? kNoBucket : bucket->second;
  }
  view.prefill_cost = published_;
  view.bucket_edges = published_edges_;
}

}  // namespace millrace::controller::core
