#include "controller/core/balancer.h"

#include <gtest/gtest.h>

#include "common/str_cat.h"

namespace millrace::controller::core {
namespace {

using namespace std::chrono_literals;
using api::admin::EntrypointReport;
using api::admin::kNoBucket;
using api::admin::RoutingView;
using api::admin::ViewWorker;
using api::admin::WorkerCost;
using api::admin::WorkerRole;
using api::admin::WorkerState;
using buckets::Demand;
using buckets::SplitOutcome;
using dataplane::cost::CostModel;

constexpr TimePoint kStart = TimePoint(1h);

/// A cluster around the balancer: workers "prefill-0" ..., and a view as the controller makes it.
class Cluster {
 public:
  explicit Cluster(int prefill, const BalancerOptions& options = {}, const RoutingView& stored = {})
      : balancer(options, stored) {
    for (int index = 0; index < prefill; ++index) add(str_cat("prefill-", index));
    balancer.start(kStart);
    publish();
  }

  void add(std::string worker_id, WorkerState state = WorkerState::kReady) {
    ViewWorker worker;
    worker.worker_id = std::move(worker_id);
    worker.state = state;
    worker.incarnation = 1;
    Placement placement;
    placement.worker_id = worker.worker_id;
    placements.push_back(placement);
    workers.push_back(std::move(worker));
  }

  void publish() {
    view.workers = workers;
    balancer.complete(placements, view);
  }

  /// Reports demand that came since the last report.
  void demand(const Demand& more, std::vector<WorkerCost> costs = {}) {
    for (std::size_t b = 0; b < more.size(); ++b) total_[b] += more[b];
    const EntrypointReport report{
        .incarnation = 1, .sequence = ++sequence_, .demand_ns = total_, .costs = std::move(costs)};
    EXPECT_TRUE(balancer.report("entrypoint-0", report, view, now).ok());
    publish();
  }

  BalanceRound end_round() {
    now = balancer.next_round();
    EXPECT_FALSE(balancer.end_due_round(view, now - 1ms).has_value());
    std::optional<BalanceRound> round = balancer.end_due_round(view, now);
    EXPECT_TRUE(round.has_value());
    publish();
    return round.value_or(BalanceRound{});
  }

  std::vector<int> bucket_of() const {
    std::vector<int> result;
    for (const ViewWorker& worker : view.workers) result.push_back(worker.bucket);
    return result;
  }

  Balancer balancer;
  std::vector<ViewWorker> workers;
  std::vector<Placement> placements;
  RoutingView view;
  TimePoint now = kStart;

 private:
  Demand total_ = Demand(4, 0);
  std::uint64_t sequence_ = 0;
};

TEST(Balancer, ReadyWorkersHaveABucketAtOnce) {
  Cluster cluster(2);
  cluster.add("prefill-2", WorkerState::kStarting);
  cluster.publish();
  EXPECT_EQ(cluster.bucket_of(), (std::vector<int>{0, 1, kNoBucket}));
  cluster.workers[2].state = WorkerState::kReady;
  cluster.publish();
  EXPECT_EQ(cluster.bucket_of(), (std::vector<int>{0, 1, 2}));
}

TEST(Balancer, DecodeWorkersHaveNone) {
  Cluster cluster(0);
  cluster.add("decode-0");
  cluster.workers[0].role = WorkerRole::kDecode;
  cluster.publish();
  EXPECT_EQ(cluster.bucket_of(), (std::vector<int>{kNoBucket}));
  cluster.demand({5, 0, 0, 0}, {{"decode-0", 1, {.linear = 7}}});
  EXPECT_EQ(cluster.end_round().outcome, SplitOutcome::kSettled);
  EXPECT_EQ(cluster.balancer.prefill_cost(), std::nullopt);
}

TEST(Balancer, TheFirstDemandWaitsForAShortRoundOnly) {
  Cluster cluster(2);
  EXPECT_EQ(cluster.balancer.next_round(), kStart + 10s);
  cluster.now = kStart + 2s;
  cluster.demand({0, 0, 0, 0});
  EXPECT_EQ(cluster.balancer.next_round(), kStart + 10s);
  cluster.demand({9, 0, 0, 9});
  EXPECT_EQ(cluster.balancer.next_round(), kStart + 3s);
  const BalanceRound round = cluster.end_round();
  EXPECT_EQ(round.outcome, SplitOutcome::kMoved);
  ASSERT_EQ(round.moves.size(), 1U);
  EXPECT_EQ(round.moves[0], (buckets::BucketMove{"prefill-1", 1, 3}));
  EXPECT_EQ(round.instances, (std::vector<int>{1, 0, 0, 1}));
  EXPECT_EQ(cluster.bucket_of(), (std::vector<int>{0, 3}));
  EXPECT_EQ(cluster.balancer.last_demand(), (Demand{9, 0, 0, 9}));
  cluster.demand({1, 0, 0, 0});
  EXPECT_EQ(cluster.balancer.next_round(), kStart + 13s);
}

TEST(Balancer, FollowsDemandThatTwoRoundsAgreeOnWithinTheLimit) {
  Cluster cluster(8, {.max_moves = 1});
  const Demand demand = {60, 20, 20, 0};
  cluster.demand(demand);
  EXPECT_EQ(cluster.end_round().outcome, SplitOutcome::kUnconfirmed);
  cluster.demand(demand);
  const BalanceRound round = cluster.end_round();
  EXPECT_EQ(round.moves.size(), 1U);
  EXPECT_EQ(round.instances, (std::vector<int>{3, 2, 2, 1}));
}

TEST(Balancer, SilenceChangesNothing) {
  Cluster cluster(4);
  const std::vector<int> before = cluster.bucket_of();
  EXPECT_EQ(cluster.end_round().outcome, SplitOutcome::kNoTelemetry);
  cluster.demand({0, 0, 0, 0});
  EXPECT_EQ(cluster.end_round().outcome, SplitOutcome::kNoTraffic);
  EXPECT_EQ(cluster.bucket_of(), before);
}

TEST(Balancer, AWorkerKeepsItsBucketWhileItIsAwayButNotBeyondItsPlacement) {
  Cluster cluster(2);
  cluster.demand({9, 0, 0, 9});
  cluster.end_round();
  ASSERT_EQ(cluster.bucket_of(), (std::vector<int>{0, 3}));
  const ViewWorker away = cluster.workers.back();
  cluster.workers.pop_back();
  cluster.publish();
  cluster.workers.push_back(away);
  cluster.workers.back().incarnation = 2;
  cluster.workers.back().state = WorkerState::kStarting;
  cluster.publish();
  EXPECT_EQ(cluster.bucket_of(), (std::vector<int>{0, 3}));

  const Placement placement = cluster.placements.back();
  cluster.workers.pop_back();
  cluster.placements.pop_back();
  cluster.publish();
  cluster.placements.push_back(placement);
  cluster.workers.push_back(away);
  cluster.workers.back().state = WorkerState::kStarting;
  cluster.publish();
  EXPECT_EQ(cluster.bucket_of(), (std::vector<int>{0, kNoBucket})) << "the name is another's now";
}

TEST(Balancer, ARestartedControllerTakesBucketsAndCostFromTheView) {
  Cluster first(2);
  first.demand({9, 0, 0, 9}, {{"prefill-0", 1, {.linear = 7}}});
  first.end_round();
  first.view.workers[0].bucket = 15;  // of a version that has more of them
  Cluster second(2, {}, first.view);
  EXPECT_EQ(second.bucket_of(), (std::vector<int>{0, 3}));
  EXPECT_EQ(second.view.prefill_cost, first.view.prefill_cost);
  second.demand({9, 0, 0, 0});
  EXPECT_EQ(second.balancer.next_round(), kStart + 10s) << "there is a split already";
}

TEST(Balancer, PublishesEdgesThatAreNotTheDefault) {
  EXPECT_TRUE(Cluster(2).view.bucket_edges.empty());
  BalancerOptions options;
  options.edges.lower = {256, 512, 1024};
  ASSERT_TRUE(validate(options).ok());
  Cluster cluster(2, options);
  EXPECT_EQ(cluster.view.bucket_edges, (std::vector<std::uint64_t>{256, 512, 1024}));
  EXPECT_TRUE(Cluster(2, {}, cluster.view).view.bucket_edges.empty()) << "the new flags count";
}

TEST(Balancer, PublishesTheFirstCostAtOnceAndOthersWhenTheyDiffer) {
  Cluster cluster(3);
  const auto cost = [](double linear_ns) { return CostModel{.linear = linear_ns}; };
  cluster.demand({0, 0, 0, 0}, {{"prefill-0", 1, cost(100)}});
  ASSERT_TRUE(cluster.view.prefill_cost.has_value());
  EXPECT_EQ(*cluster.view.prefill_cost, (api::admin::PublishedCost{1, cost(100)}));
  cluster.demand({0, 0, 0, 0}, {{"prefill-0", 1, cost(104)}});
  cluster.end_round();
  EXPECT_EQ(cluster.view.prefill_cost->version, 1U) << "that is 4 % more";
  cluster.demand({0, 0, 0, 0}, {{"prefill-1", 1, cost(150)}, {"prefill-2", 1, cost(300)}});
  EXPECT_EQ(cluster.view.prefill_cost->version, 1U) << "not in the middle of a round";
  cluster.end_round();
  EXPECT_EQ(*cluster.view.prefill_cost, (api::admin::PublishedCost{2, cost(150)}));
}

TEST(Balancer, CostsOfOtherRunsAndOfWorkersThatAreGoneDoNotCount) {
  Cluster cluster(2);
  cluster.demand({0, 0, 0, 0}, {{"prefill-0", 2, {.linear = 9}}, {"other", 1, {.linear = 9}}});
  EXPECT_EQ(cluster.view.prefill_cost, std::nullopt);
  cluster.demand({0, 0, 0, 0},
                 {{"prefill-0", 1, {.linear = 100}}, {"prefill-1", 1, {.linear = 500}}});
  EXPECT_EQ(cluster.view.prefill_cost->cost.linear, 100);
  cluster.workers[0].incarnation = 2;
  cluster.publish();
  cluster.end_round();
  EXPECT_EQ(cluster.view.prefill_cost->cost.linear, 500);
  cluster.workers.clear();
  cluster.publish();
  cluster.end_round();
  EXPECT_EQ(cluster.view.prefill_cost->version, 2U) << "the last known one stays";
}

TEST(Balancer, RefusesWhatItCannotCount) {
  Cluster cluster(1);
  const EntrypointReport report{.incarnation = 1, .sequence = 1, .demand_ns = {1}, .costs = {}};
  EXPECT_EQ(cluster.balancer.report("e", report, cluster.view, kStart).message(),
            "\"demand_ns\" is of 1 buckets; there are 4");
  EXPECT_EQ(validate({.round = 0ms}).message(), "round is 0 ms; it must be at least 1");
  EXPECT_FALSE(validate({.max_moves = 0}).ok());
  EXPECT_TRUE(validate({}).ok());
}

}  // namespace
}  // namespace millrace::controller::core
