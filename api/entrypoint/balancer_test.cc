#include "api/entrypoint/balancer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace millrace::api::entrypoint {
namespace {

using admin::WorkerRole;
using dataplane::routing::Policy;
using std::chrono::milliseconds;
using ::testing::ElementsAre;

TimePoint at(int ms) { return TimePoint() + milliseconds(ms); }

WorkerState prefill_worker(std::int64_t queued_ns = 0) {
  return {.role = WorkerRole::kPrefill,
          .is_accepting = true,
          .wants_more = true,
          .load = {.quota_ns = queued_ns},
          .kv_blocks_total = 1000};
}

WorkerState decode_worker(std::int64_t requests, std::int64_t kv_tokens) {
  return {.role = WorkerRole::kDecode,
          .is_accepting = true,
          .load = {.requests = requests, .kv_tokens = kv_tokens, .kv_blocks = kv_tokens / 128},
          .kv_blocks_total = 1000};
}

PrefillNeed prompt(std::uint64_t request, std::int64_t tokens, int since_ms = 0) {
  return {.request = request,
          .tokens = tokens,
          .prompt_tokens = tokens,
          .kv_blocks = tokens / 128,
          .since = at(since_ms)};
}

admin::RoutingView split(const std::vector<std::pair<std::string, int>>& buckets) {
  admin::RoutingView view;
  view.version = 7;
  for (const auto& [id, bucket] : buckets) {
    admin::ViewWorker worker;
    worker.worker_id = id;
    worker.state = admin::WorkerState::kReady;
    worker.bucket = bucket;
    view.workers.push_back(worker);
  }
  return view;
}

std::vector<std::string> listeners(const std::vector<Balancer::News>& news) {
  std::vector<std::string> ids;
  ids.reserve(news.size());
  for (const Balancer::News& item : news) ids.push_back(item.worker_id);
  return ids;
}

TEST(Balancer, OffersByBucketAndGrantsTheOldest) {
  Balancer balancer({});
  balancer.set_worker("p0", prefill_worker());
  ASSERT_TRUE(balancer.add(prompt(1, 100, 20)).ok());
  ASSERT_TRUE(balancer.add(prompt(2, 100, 10)).ok());
  ASSERT_TRUE(balancer.add(prompt(3, 70'000, 0)).ok());
  const auto news = balancer.take_news(at(30));
  ASSERT_THAT(listeners(news), ElementsAre("p0"));
  EXPECT_EQ(news[0].offers[0].waiting, 2);
  EXPECT_EQ(news[0].offers[0].oldest_since, at(10));
  EXPECT_EQ(news[0].offers[2].waiting, 1);
  EXPECT_THAT(news[0].serves, ElementsAre(true, true, true, true)) << "no split is known";
  EXPECT_EQ(balancer.grant("p0", 0), 2U);
  EXPECT_EQ(balancer.grant("p0", 0), 1U);
  EXPECT_EQ(balancer.grant("p0", 0), std::nullopt);
  EXPECT_EQ(balancer.grant("p0", 99), std::nullopt);
  EXPECT_EQ(balancer.grant("p0", -1), std::nullopt);
  EXPECT_EQ(balancer.grant("nobody", 2), std::nullopt);
  balancer.remove(3);
  EXPECT_EQ(balancer.grant("p0", 2), std::nullopt);
  // The default costs 0.1 ms a row; demand counts in its bucket.
  EXPECT_THAT(balancer.demand_ns(), ElementsAre(20'000'000U, 0U, 7'000'000'000U, 0U));
}

TEST(Balancer, TakesBucketsAndCostsFromTheView) {
  Balancer balancer({});
  for (const char* id : {"p0", "p1", "p2", "p3", "p4"}) balancer.set_worker(id, prefill_worker());
  admin::RoutingView view = split({{"p0", 0}, {"p1", 2}, {"p2", admin::kNoBucket}});
  view.prefill_cost = admin::PublishedCost{1, {.linear = 10, .fixed = 5}};
  balancer.apply_view(view);
  EXPECT_EQ(balancer.view_version(), 7U);
  EXPECT_EQ(balancer.quota_ns({.rows = 3, .cached = 100}), 35);
  EXPECT_THAT(balancer.news_for("p0").serves, ElementsAre(true, false, false, false));
  EXPECT_THAT(balancer.news_for("p1").serves, ElementsAre(false, true, true, true));
  EXPECT_THAT(balancer.news_for("p2").serves, ElementsAre(false, false, false, false));
  PrefillNeed again = prompt(1, 100);
  again.cached = 60;
  again.is_new = false;
  ASSERT_TRUE(balancer.add(again).ok());
  EXPECT_EQ(balancer.demand_ns()[0], 0U) << "it was counted when it came";
  EXPECT_EQ(balancer.news_for("p0").offers[0].quota_ns, 405);
  // Those that serve it, and others as helpers.
  EXPECT_EQ(listeners(balancer.take_news(at(0))).size(), 4U - 1U) << "p0 was told just now";
}

TEST(Balancer, CountsWhatPassesTheDecoderLayers) {
  Balancer balancer({});
  balancer.set_worker("p0", prefill_worker());
  admin::RoutingView view = split({{"p0", 0}});
  view.prefill_cost = admin::PublishedCost{1, {.linear = 10, .tail = 1000}};
  balancer.apply_view(view);
  PrefillNeed resumed = prompt(1, 350);
  resumed.prompt_tokens = 300;  // 50 tokens were delivered before a worker was lost
  resumed.cached = 100;
  ASSERT_TRUE(balancer.add(resumed).ok());
  EXPECT_EQ(balancer.news_for("p0").offers[0].quota_ns, 10 * 250 + 1000 * (350 - (300 - 128)));
}

TEST(Balancer, TakesEdgesFromTheViewAndLeavesThoseThatWaitWhereTheyAre) {
  Balancer balancer({});
  balancer.set_worker("p0", prefill_worker());
  ASSERT_TRUE(balancer.add(prompt(1, 600)).ok());
  admin::RoutingView view = split({{"p0", 0}});
  view.bucket_edges = {256, 512, 1024};
  balancer.apply_view(view);
  ASSERT_TRUE(balancer.add(prompt(2, 600)).ok());
  EXPECT_EQ(balancer.grant("p0", 0), 1U);
  EXPECT_EQ(balancer.grant("p0", 2), 2U);
  EXPECT_THAT(balancer.demand_ns(), ElementsAre(60'000'000U, 0U, 60'000'000U, 0U));
  balancer.apply_view(split({{"p0", 0}}));
  ASSERT_TRUE(balancer.add(prompt(3, 600)).ok());
  EXPECT_EQ(balancer.grant("p0", 0), 3U) << "the default edges again";
}

TEST(Balancer, TellsOnlyWhomItConcerns) {
  Balancer balancer({});
  WorkerState busy = prefill_worker();
  busy.wants_more = false;
  balancer.set_worker("p0", busy);
  balancer.set_worker("p1", prefill_worker());
  ASSERT_TRUE(balancer.add(prompt(1, 100)).ok());
  EXPECT_THAT(listeners(balancer.take_news(at(0))), ElementsAre("p1"));
  EXPECT_TRUE(balancer.take_news(at(1)).empty());
  balancer.forget_news("p1");
  EXPECT_THAT(listeners(balancer.take_news(at(2))), ElementsAre("p1"));
  WorkerState gone = prefill_worker();
  gone.is_accepting = false;
  balancer.set_worker("p1", gone);
  EXPECT_EQ(balancer.grant("p1", 0), std::nullopt);
}

TEST(Balancer, FindsWhatNoPoolCouldHold) {
  Balancer balancer({});
  ASSERT_TRUE(balancer.add({.request = 1, .tokens = 10, .kv_blocks = 1001}).ok());
  EXPECT_EQ(balancer.hopeless(), std::nullopt) << "nobody is there yet";
  balancer.set_worker("p0", prefill_worker());
  EXPECT_EQ(balancer.hopeless(), 1U);
  EXPECT_TRUE(balancer.could_hold(WorkerRole::kPrefill, 1000));
  EXPECT_FALSE(balancer.could_hold(WorkerRole::kPrefill, 1001));
  EXPECT_FALSE(balancer.could_hold(WorkerRole::kDecode, 1));
}

TEST(Balancer, RefusesMoreThanItsBound) {
  Balancer balancer({.max_waiting = 2});
  ASSERT_TRUE(balancer.add(prompt(1, 1)).ok());
  ASSERT_TRUE(balancer.add(prompt(2, 1)).ok());
  EXPECT_EQ(balancer.add(prompt(3, 1)).code(), absl::StatusCode::kResourceExhausted);
  balancer.remove(1);
  EXPECT_TRUE(balancer.add(prompt(3, 1)).ok());
}

TEST(Balancer, ChoosesDecodeWorkersByCountAndLength) {
  Balancer balancer({});
  EXPECT_EQ(balancer.choose_decode({10, 1, 10}), std::nullopt);
  balancer.set_worker("d0", decode_worker(4, 20'000));
  balancer.set_worker("d1", decode_worker(6, 2'000));
  EXPECT_EQ(balancer.choose_decode({10, 1, 60'000}), "d0") << "short: where few run";
  EXPECT_EQ(balancer.choose_decode({30'000, 300, 30'000}), "d1") << "long: where KV is short";
  // What waits there comes first: no room.
  WorkerState queued = decode_worker(4, 20'000);
  queued.has_queue = true;
  balancer.set_worker("d0", queued);
  EXPECT_EQ(balancer.choose_decode({10, 1, 60'000}), "d1");
  // No room anywhere: it waits where the rule says.
  WorkerState full = decode_worker(6, 2'000);
  full.load.kv_blocks = 1000;
  balancer.set_worker("d1", full);
  EXPECT_EQ(balancer.choose_decode({10, 1, 60'000}), "d1") << "d0 is above the mark";
  EXPECT_EQ(balancer.choose_decode({10, 1001, 60'000}), std::nullopt);
  full.is_accepting = false;
  balancer.set_worker("d1", full);
  queued.is_accepting = false;
  balancer.set_worker("d0", queued);
  EXPECT_EQ(balancer.choose_decode({10, 1, 10}), std::nullopt);
}

// Without any report in between, charges alone spread a burst.
TEST(Balancer, ChargesSpreadABurstEvenly) {
  for (const Policy policy : {Policy::kMillrace, Policy::kLeastRequests, Policy::kRoundRobin}) {
    Balancer balancer({.policy = policy, .seed = 3});
    std::map<std::string, WorkerState> workers;
    for (const char* id : {"d0", "d1", "d2"}) {
      balancer.set_worker(id, workers[id] = decode_worker(0, 0));
    }
    for (int i = 0; i < 60; ++i) {
      const auto id = balancer.choose_decode({1, 1, 1});
      ASSERT_TRUE(id.has_value());
      ++workers[*id].load.requests;
      ++workers[*id].load.kv_tokens;
      balancer.set_worker(*id, workers[*id]);
    }
    for (const auto& [id, worker] : workers) EXPECT_EQ(worker.load.requests, 20) << id;
  }
}

TEST(Balancer, PoliciesThatPushSendEachRequestAtOnceInOrder) {
  Balancer balancer({.policy = Policy::kLeastRequests, .seed = 1});
  ASSERT_TRUE(balancer.add(prompt(1, 70'000, 5)).ok());
  ASSERT_TRUE(balancer.add(prompt(2, 10, 10)).ok());
  EXPECT_FALSE(balancer.next_push(at(20)).has_value()) << "nobody is there";
  WorkerState busy = prefill_worker();
  busy.load.requests = 1;
  balancer.set_worker("p0", busy);
  balancer.set_worker("p1", prefill_worker());
  EXPECT_TRUE(balancer.take_news(at(20)).empty()) << "nothing is offered";
  const auto first = balancer.next_push(at(20));
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->request, 1U);
  EXPECT_EQ(first->worker_id, "p1");
  busy.load.requests = 2;
  balancer.set_worker("p1", busy);
  EXPECT_EQ(balancer.next_push(at(21))->worker_id, "p0");
  EXPECT_FALSE(balancer.next_push(at(22)).has_value());
  // One whose pool is too small is left out.
  WorkerState small = prefill_worker();
  small.kv_blocks_total = 6;
  balancer.set_worker("p2", small);
  ASSERT_TRUE(balancer.add(prompt(3, 896)).ok());
  EXPECT_NE(balancer.next_push(at(23))->worker_id, "p2");
  ASSERT_TRUE(balancer.add(prompt(4, 768)).ok());
  EXPECT_EQ(balancer.next_push(at(24))->worker_id, "p2") << "it has the fewest";
}

}  // namespace
}  // namespace millrace::api::entrypoint
