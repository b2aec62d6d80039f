#include "dataplane/scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace millrace::dataplane::scheduler {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kStart{};
constexpr TimePoint kNever = TimePoint::max();

NewRequest prefill(RequestId id, int rows, TimePoint deadline = kNever) {
  return {.id = id,
          .work = Work::kPrefill,
          .rows = rows,
          .capacity_tokens = rows,
          .deadline = deadline};
}

NewRequest decode(RequestId id, int capacity, TimePoint deadline = kNever) {
  return {.id = id, .work = Work::kDecode, .capacity_tokens = capacity, .deadline = deadline};
}

Scheduler make(const SchedulerLimits& limits) { return *Scheduler::create(limits); }

TEST(Scheduler, RefusesLimitsThatCannotWork) {
  EXPECT_EQ(Scheduler::create({.kv_blocks = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Scheduler::create({.max_step_rows = 4, .max_sequences = 5}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Scheduler, CutsPrefillsToFillStepsInOrderOfArrival) {
  Scheduler scheduler = make({.max_step_rows = 100, .max_sequences = 8, .kv_blocks = 100});
  for (const auto& [id, rows] : {std::pair{1, 130}, {2, 20}, {3, 90}}) {
    ASSERT_TRUE(scheduler.enqueue(prefill(static_cast<RequestId>(id), rows)).ok());
  }
  EXPECT_EQ(scheduler.begin_turn(kStart).admitted, (std::vector<RequestId>{1, 2, 3}));
  EXPECT_EQ(scheduler.load().waiting_tokens, 240);

  auto step = scheduler.plan_step();
  ASSERT_EQ(step.size(), 1u);
  EXPECT_EQ(step[0].id, 1u);
  EXPECT_EQ(step[0].row_count, 100);
  EXPECT_FALSE(step[0].is_last);
  scheduler.step_done(step);

  step = scheduler.plan_step();
  ASSERT_EQ(step.size(), 3u);
  EXPECT_EQ(step[0].id, 1u);
  EXPECT_EQ(step[0].first_row, 100);
  EXPECT_EQ(step[0].row_count, 30);
  EXPECT_TRUE(step[0].is_last);
  EXPECT_EQ(step[1].id, 2u);
  EXPECT_EQ(step[1].row_count, 20);
  EXPECT_TRUE(step[1].is_last);
  EXPECT_EQ(step[2].id, 3u);
  EXPECT_EQ(step[2].row_count, 50);
  EXPECT_FALSE(step[2].is_last);
  scheduler.step_done(step);
  EXPECT_EQ(scheduler.load().waiting_tokens, 40);

  // Finished prefills are on hold: they keep blocks, take no rows.
  EXPECT_EQ(scheduler.load().kv_blocks_used, 2 + 1 + 1);
  EXPECT_TRUE(scheduler.remove(1));
  EXPECT_EQ(scheduler.load().kv_blocks_used, 2);
  EXPECT_EQ(scheduler.plan_step().size(), 1u);
}

TEST(Scheduler, EveryDecodingRequestRunsInEveryStepAndBeforePrefills) {
  Scheduler scheduler = make({.max_step_rows = 4, .max_sequences = 4, .kv_blocks = 100});
  ASSERT_TRUE(scheduler.enqueue(prefill(1, 10)).ok());
  ASSERT_TRUE(scheduler.enqueue(decode(2, 10)).ok());
  ASSERT_TRUE(scheduler.enqueue(decode(3, 10)).ok());
  scheduler.begin_turn(kStart);
  EXPECT_EQ(scheduler.plan_step().size(), 1u);  // 2 and 3 have not arrived yet
  scheduler.start_decoding(3);
  scheduler.start_decoding(2);
  for (int i = 0; i < 3; ++i) {
    const auto step = scheduler.plan_step();
    ASSERT_EQ(step.size(), 3u);
    EXPECT_EQ(step[0].id, 2u);
    EXPECT_EQ(step[1].id, 3u);
    EXPECT_EQ(step[2].row_count, 2);
    scheduler.step_done(step);
  }
}

TEST(Scheduler, NobodyOvertakesARequestThatWaitsForBlocks) {
  Scheduler scheduler = make({.kv_blocks = 10});
  ASSERT_TRUE(scheduler.enqueue(decode(1, 6 * kBlockTokens)).ok());
  ASSERT_TRUE(scheduler.enqueue(decode(2, 5 * kBlockTokens)).ok());
  ASSERT_TRUE(scheduler.enqueue(decode(3, 1)).ok());
  EXPECT_EQ(scheduler.begin_turn(kStart).admitted, (std::vector<RequestId>{1}));
  EXPECT_TRUE(scheduler.remove(1));
  EXPECT_EQ(scheduler.begin_turn(kStart).admitted, (std::vector<RequestId>{2, 3}));
}

TEST(Scheduler, OthersPassARequestWhoseStoredKvIsOnItsWay) {
  Scheduler scheduler = make({.max_step_rows = 100, .kv_blocks = 10});
  NewRequest slow = prefill(1, 300);
  slow.awaits_kv = true;
  ASSERT_TRUE(scheduler.enqueue(slow).ok());
  ASSERT_TRUE(scheduler.enqueue(prefill(2, 60)).ok());
  EXPECT_EQ(scheduler.begin_turn(kStart).admitted, (std::vector<RequestId>{2}));
  EXPECT_EQ(scheduler.load().waiting_tokens, 360);

  scheduler.begin_at(1, 256);
  EXPECT_EQ(scheduler.load().waiting_tokens, 104) << "256 of its rows need not run";
  EXPECT_EQ(scheduler.begin_turn(kStart).admitted, (std::vector<RequestId>{1}));
  const std::vector<StepSlice> slices = scheduler.plan_step();
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[0].id, 1u + 1u);
  EXPECT_EQ(slices[1].first_row, 256);
  EXPECT_EQ(slices[1].row_count, 40);
  scheduler.step_done(slices);
  EXPECT_EQ(scheduler.load().waiting_tokens, 4);

  // What it had been given was not whole: everything runs.
  scheduler.restart(1);
  EXPECT_EQ(scheduler.load().waiting_tokens, 300);
  EXPECT_EQ(scheduler.plan_step().front().first_row, 0);
  EXPECT_TRUE(scheduler.remove(1));
  EXPECT_EQ(scheduler.load().waiting_tokens, 0);
}

TEST(Scheduler, ARequestThatAwaitsKvLeavesTheQueueWithAllOfItsRows) {
  Scheduler scheduler = make({.kv_blocks = 10});
  for (const bool has_arrived : {false, true}) {
    NewRequest request = prefill(has_arrived ? 2 : 1, 300);
    request.awaits_kv = true;
    ASSERT_TRUE(scheduler.enqueue(request).ok());
    if (has_arrived) scheduler.begin_at(request.id, 128);
    EXPECT_EQ(scheduler.load().waiting_tokens, has_arrived ? 172 : 300);
    EXPECT_TRUE(scheduler.remove(request.id));
    EXPECT_EQ(scheduler.load().waiting_tokens, 0);
    EXPECT_TRUE(scheduler.is_empty());
  }
}

TEST(Scheduler, AFullQueueRefusesAndAnImpossibleRequestIsNamed) {
  Scheduler scheduler = make({.kv_blocks = 10, .max_waiting = 2, .max_waiting_tokens = 1000});
  EXPECT_EQ(scheduler.enqueue(decode(1, 11 * kBlockTokens)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(scheduler.enqueue(prefill(2, 0)).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(scheduler.enqueue(prefill(3, 900)).ok());
  EXPECT_EQ(scheduler.enqueue(prefill(4, 200)).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(scheduler.enqueue(prefill(5, 100)).ok());
  EXPECT_EQ(scheduler.enqueue(decode(6, 1)).code(), absl::StatusCode::kResourceExhausted);
  scheduler.begin_turn(kStart);
  EXPECT_TRUE(scheduler.enqueue(decode(6, 1)).ok());
}

TEST(Scheduler, DeadlinesEndWaitingAndRunningRequests) {
  Scheduler scheduler = make({.kv_blocks = 1});
  ASSERT_TRUE(scheduler.enqueue(decode(1, 1, kStart + 2s)).ok());
  ASSERT_TRUE(scheduler.enqueue(decode(2, 1, kStart + 1s)).ok());
  ASSERT_TRUE(scheduler.enqueue(decode(3, 1, kStart + 9s)).ok());
  EXPECT_EQ(scheduler.begin_turn(kStart).admitted, (std::vector<RequestId>{1}));
  EXPECT_EQ(scheduler.begin_turn(kStart + 1s).expired, (std::vector<RequestId>{2}));
  const Turn turn = scheduler.begin_turn(kStart + 2s);
  EXPECT_EQ(turn.expired, (std::vector<RequestId>{1}));
  EXPECT_EQ(turn.admitted, (std::vector<RequestId>{3}));
}

// Random traffic against the promises of the header; a model keeps what must hold.
TEST(Scheduler, KeepsItsPromisesUnderRandomTraffic) {
  for (unsigned seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    SchedulerLimits limits{.max_step_rows = 8 + below(64),
                           .max_sequences = 1 + below(8),
                           .kv_blocks = 4 + below(20),
                           .max_waiting = 1 + below(20)};
    Scheduler scheduler = make(limits);
    struct Model {
      NewRequest request;
      bool is_admitted = false;
      bool is_decoding = false;
      int rows_done = 0;
    };
    std::map<RequestId, Model> live;
    std::vector<RequestId> arrival_order;
    std::vector<RequestId> admission_order;
    TimePoint now = kStart;
    RequestId next_id = 1;
    for (int turn_index = 0; turn_index < 300; ++turn_index) {
      for (int i = below(4); i > 0; --i) {
        const RequestId id = next_id++;
        const TimePoint deadline =
            below(3) == 0 ? now + std::chrono::seconds(1 + below(40)) : kNever;
        const NewRequest request = below(2) == 0 ? prefill(id, 1 + below(300), deadline)
                                                 : decode(id, 1 + below(500), deadline);
        if (scheduler.enqueue(request).ok()) {
          live[id].request = request;
          arrival_order.push_back(id);
        }
      }
      if (!live.empty() && below(4) == 0) {  // a cancel
        const RequestId victim =
            std::next(live.begin(), below(static_cast<int>(live.size())))->first;
        ASSERT_TRUE(scheduler.remove(victim));
        ASSERT_FALSE(scheduler.remove(victim));
        live.erase(victim);
      }
      now += std::chrono::seconds(below(3));
      const Turn turn = scheduler.begin_turn(now);
      for (const RequestId id : turn.expired) {
        ASSERT_LE(live.at(id).request.deadline, now) << "seed " << seed;
        live.erase(id);
      }
      for (const auto& [id, model] : live) ASSERT_GT(model.request.deadline, now);
      for (const RequestId id : turn.admitted) {
        ASSERT_FALSE(live.at(id).is_admitted);
        live.at(id).is_admitted = true;
        admission_order.push_back(id);
        if (live.at(id).request.work == Work::kDecode && below(4) != 0) {
          scheduler.start_decoding(id);
          live.at(id).is_decoding = true;
        }
      }
      int blocks = 0;
      int running = 0;
      for (const auto& [id, model] : live) {
        if (!model.is_admitted) continue;
        ++running;
        blocks += blocks_for(model.request.capacity_tokens);
      }
      ASSERT_LE(blocks, limits.kv_blocks);
      ASSERT_LE(running, limits.max_sequences);
      ASSERT_EQ(scheduler.load().kv_blocks_used, blocks);
      ASSERT_EQ(scheduler.load().running, running);
      ASSERT_EQ(scheduler.load().waiting, static_cast<int>(live.size()) - running);

      const auto slices = scheduler.plan_step();
      int rows = 0;
      std::set<RequestId> named;
      for (const StepSlice& slice : slices) {
        Model& model = live.at(slice.id);
        ASSERT_TRUE(named.insert(slice.id).second);
        ASSERT_GE(slice.row_count, 1);
        rows += slice.row_count;
        if (slice.work == Work::kPrefill) {
          ASSERT_EQ(slice.first_row, model.rows_done);
          model.rows_done += slice.row_count;
          ASSERT_EQ(slice.is_last, model.rows_done == model.request.rows);
        }
      }
      ASSERT_LE(rows, limits.max_step_rows);
      bool has_prefill_left = false;
      for (const auto& [id, model] : live) {
        if (model.is_decoding) {
          ASSERT_TRUE(named.contains(id)) << "seed " << seed;
        }
        has_prefill_left |= model.is_admitted && model.request.work == Work::kPrefill &&
                            model.rows_done < model.request.rows;
      }
      // A step is full before a prefill row is left out.
      if (has_prefill_left) {
        ASSERT_EQ(rows, limits.max_step_rows);
      }
      scheduler.step_done(slices);
      for (const StepSlice& slice : slices) {
        if (slice.is_last && below(3) == 0) {
          ASSERT_TRUE(scheduler.remove(slice.id));
          live.erase(slice.id);
        }
      }
    }
    // First in, first out, over the whole run: those admitted were so in order of arrival.
    std::vector<RequestId> admitted_arrivals;
    const std::set<RequestId> admitted(admission_order.begin(), admission_order.end());
    for (const RequestId id : arrival_order) {
      if (admitted.contains(id)) admitted_arrivals.push_back(id);
    }
    ASSERT_EQ(admission_order, admitted_arrivals);
    for (const auto& [id, model] : live) ASSERT_TRUE(scheduler.remove(id));
    ASSERT_TRUE(scheduler.is_empty());
    ASSERT_EQ(scheduler.load().kv_blocks_used, 0);
    ASSERT_EQ(scheduler.load().waiting_tokens, 0);
  }
}

TEST(Scheduler, CutsPrefillsWhereThePredictedComputeOfAStepIsUsedUp) {
  Scheduler scheduler = *Scheduler::create(
      {.max_step_rows = 512, .max_sequences = 8, .kv_blocks = 100, .step_budget_ns = 1000});
  ASSERT_TRUE(
      scheduler
          .enqueue({.id = 1, .rows = 900, .capacity_tokens = 900, .deadline = TimePoint::max()})
          .ok());
  ASSERT_TRUE(
      scheduler.enqueue({.id = 2, .rows = 50, .capacity_tokens = 50, .deadline = TimePoint::max()})
          .ok());
  scheduler.begin_turn(TimePoint());
  ASSERT_EQ(scheduler.plan_step().size(), 1U);
  EXPECT_EQ(scheduler.plan_step()[0].row_count, 128) << "before it is measured, 0.1 ms a row";
  // q rows behind c cost 5 q + q c / 100: 200 rows at first, then 142 behind 200.
  scheduler.set_cost({.cross = 0.01, .linear = 5});
  std::vector<StepSlice> step = scheduler.plan_step();
  ASSERT_EQ(step.size(), 1U);
  EXPECT_EQ(step[0].row_count, 200);
  scheduler.step_done(step);
  step = scheduler.plan_step();
  ASSERT_EQ(step.size(), 1U);
  EXPECT_EQ(step[0].first_row, 200);
  EXPECT_EQ(step[0].row_count, 142);
  // A budget that fits no row still gives every step some.
  scheduler.set_cost({.linear = 5000});
  step = scheduler.plan_step();
  ASSERT_EQ(step.size(), 1U);
  EXPECT_EQ(step[0].row_count, 128);
}

TEST(Scheduler, TellsTheComputeThatIsQueued) {
  Scheduler scheduler = *Scheduler::create({.max_step_rows = 100, .max_sequences = 1});
  scheduler.set_cost({.cross = 0.5, .linear = 3, .fixed = 10});
  const auto later = TimePoint::max();
  ASSERT_TRUE(
      scheduler.enqueue({.id = 1, .rows = 150, .capacity_tokens = 150, .deadline = later}).ok());
  EXPECT_EQ(scheduler.load().queued_ns, 460);
  // 40 rows behind 160 whose KV is probably stored.
  ASSERT_TRUE(scheduler
                  .enqueue({.id = 2,
                            .rows = 200,
                            .capacity_tokens = 200,
                            .deadline = later,
                            .awaits_kv = true,
                            .expected_hit = 160})
                  .ok());
  EXPECT_EQ(scheduler.load().queued_ns, 460 + 40 * 3 + 40 * 160 / 2 + 10);
  // Only 100 could be had.
  scheduler.begin_at(2, 100);
  EXPECT_EQ(scheduler.load().queued_ns, 460 + 100 * 3 + 100 * 100 / 2 + 10);
  scheduler.remove(2);
  scheduler.begin_turn(TimePoint());
  scheduler.step_done(scheduler.plan_step());
  EXPECT_EQ(scheduler.load().queued_ns, 50 * 3 + 50 * 100 / 2 + 10);
  scheduler.step_done(scheduler.plan_step());
  EXPECT_EQ(scheduler.load().queued_ns, 0) << "on hold: nothing is left to run";
}

TEST(Scheduler, AShareOfTheStepKeepsALongPrefillFromTakingAllOfIt) {
  Scheduler scheduler = *Scheduler::create({.max_step_rows = 512,
                                            .max_sequences = 8,
                                            .kv_blocks = 100,
                                            .step_budget_ns = 1000,
                                            .share_cap = 0.5});
  scheduler.set_cost({.linear = 5});
  ASSERT_TRUE(
      scheduler
          .enqueue({.id = 1, .rows = 900, .capacity_tokens = 900, .deadline = TimePoint::max()})
          .ok());
  ASSERT_TRUE(
      scheduler.enqueue({.id = 2, .rows = 60, .capacity_tokens = 60, .deadline = TimePoint::max()})
          .ok());
  scheduler.begin_turn(TimePoint());
  const std::vector<StepSlice> step = scheduler.plan_step();
  ASSERT_EQ(step.size(), 2U);
  EXPECT_EQ(step[1].row_count, 60);
  EXPECT_TRUE(step[1].is_last);
  EXPECT_EQ(step[0].row_count, 140) << "its half, and what the other one leaves";
  EXPECT_EQ(Scheduler::create({.share_cap = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::dataplane::scheduler
