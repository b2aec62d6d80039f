#include "controller/kv_map/storage_operator.h"

#include <gtest/gtest.h>

#include "common/str_cat.h"
#include "common/types.h"
#include "storage/map/map_plan.h"

namespace millrace::controller::kv_map {
namespace {

using api::admin::DesiredStorage;
using api::admin::StorageReport;
using api::admin::StorageReportReply;
using std::chrono::milliseconds;
using std::chrono::seconds;
using storage::MemberState;

constexpr milliseconds kTimeout{3000};

class StorageOperatorTest : public ::testing::Test {
 protected:
  StorageOperatorTest() : operator_(options(), std::nullopt) { operator_.start(now_); }

  static StorageOperatorOptions options() {
    StorageOperatorOptions options;
    options.node_timeout = kTimeout;
    options.new_cluster_id = "c1";
    options.first_request = 100;
    return options;
  }

  static DesiredStorage desired(int nodes, int targets, int spares = 0) {
    DesiredStorage storage;
    storage.nodes = nodes;
    storage.targets_per_node = targets;
    storage.target_bytes = 1 << 20;
    storage.block_bytes = 4096;
    storage.data_shards = 2;
    storage.parity_shards = 1;
    storage.spares = spares;
    return storage;
  }

  static StorageReport report_of(int node, int targets) {
    StorageReport report;
    report.protocol_version = kProtocolVersion;
    report.cluster_id = "c1";
    report.address = str_cat("host", node, ":1");
    for (int target = 0; target < targets; ++target) {
      report.targets.push_back({});
      report.targets.back().target_id = str_cat("s", node, ".", target);
    }
    return report;
  }

  absl::StatusOr<StorageReportReply> report(int node, int targets = 1) {
    return operator_.report(str_cat("s", node), report_of(node, targets), now_);
  }

  MemberState state_of(std::string_view target) {
    const auto place = *operator_.map()->place_of(target);
    return operator_.map()->groups[place.group_id].members[place.shard_index].state;
  }

  /// All others go on reporting while this one is silent for so long.
  void silence(int node, milliseconds duration, int nodes) {
    for (milliseconds passed{0}; passed < duration; passed += milliseconds(500)) {
      now_ += milliseconds(500);
      for (int other = 0; other < nodes; ++other) {
        if (other == node) continue;
        ASSERT_TRUE(report(other).ok());
      }
      if (operator_.next_timer() && *operator_.next_timer() <= now_) operator_.on_timer(now_);
    }
  }

  TimePoint now_{};
  StorageOperator operator_;
};

TEST_F(StorageOperatorTest, WithoutStorageWantedReportsAreRefused) {
  EXPECT_EQ(report(0).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(operator_.scrub().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(StorageOperatorTest, GroupsAreFormedWhenAllWantedNodesAreThere) {
  operator_.set_desired(desired(3, 1), now_);
  ASSERT_TRUE(operator_.map().has_value());
  EXPECT_EQ(operator_.map()->cluster_id, "c1");
  ASSERT_TRUE(report(0, 3).ok());
  EXPECT_TRUE(operator_.map()->groups.empty());  // its three targets would do, but not alone
  ASSERT_TRUE(report(1).ok());
  const StorageReportReply reply = *report(2);
  EXPECT_EQ(operator_.map()->groups.size(), 1U);
  EXPECT_EQ(reply.map_epoch, operator_.map()->epoch);
  EXPECT_EQ(operator_.map()->place_of("s1.0")->group_id, 0U);
}

TEST_F(StorageOperatorTest, NodesOfOthersAreRefusedWithBothNamed) {
  operator_.set_desired(desired(3, 1), now_);
  StorageReport foreign = report_of(0, 1);
  foreign.cluster_id = "c9";
  absl::Status status = operator_.report("s0", foreign, now_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(message_of(status).find("c9"), std::string_view::npos);
  EXPECT_NE(message_of(status).find("c1"), std::string_view::npos);
  StorageReport old = report_of(0, 1);
  old.protocol_version = 77;
  status = operator_.report("s0", old, now_).status();
  EXPECT_NE(message_of(status).find("77"), std::string_view::npos);
  ASSERT_TRUE(report(0).ok());
  EXPECT_EQ(operator_.report("s1", report_of(0, 1), now_).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(StorageOperatorTest, ASilentNodeIsDownAndRebuildsWhenItReturns) {
  operator_.set_desired(desired(3, 1), now_);
  for (int node = 0; node < 3; ++node) ASSERT_TRUE(report(node).ok());
  silence(1, kTimeout + milliseconds(500), 3);
  EXPECT_EQ(state_of("s1.0"), MemberState::kDown);
  EXPECT_EQ(state_of("s0.0"), MemberState::kUp);
  ASSERT_TRUE(report(1).ok());
  EXPECT_EQ(state_of("s1.0"), MemberState::kRebuilding);

  // What it found under an older map does not count.
  StorageReport rebuilt = report_of(1, 1);
  rebuilt.targets[0].rebuilt_epoch = operator_.map()->epoch - 1;
  ASSERT_TRUE(operator_.report("s1", rebuilt, now_).ok());
  EXPECT_EQ(state_of("s1.0"), MemberState::kRebuilding);
  rebuilt.targets[0].rebuilt_epoch = operator_.map()->epoch;
  ASSERT_TRUE(operator_.report("s1", rebuilt, now_).ok());
  EXPECT_EQ(state_of("s1.0"), MemberState::kUp);
}

TEST_F(StorageOperatorTest, AMemberThatIsLongDownIsReplacedByASpare) {
  operator_.set_desired(desired(4, 1, 1), now_);
  for (int node = 0; node < 4; ++node) ASSERT_TRUE(report(node).ok());
  ASSERT_EQ(operator_.map()->groups.size(), 1U);
  ASSERT_FALSE(operator_.map()->place_of("s3.0").has_value());
  silence(1, kReplaceAfterTimeouts * kTimeout - kTimeout, 4);
  EXPECT_EQ(state_of("s1.0"), MemberState::kDown);
  silence(1, 3 * kTimeout, 4);
  EXPECT_FALSE(operator_.map()->place_of("s1.0").has_value());
  EXPECT_EQ(state_of("s3.0"), MemberState::kRebuilding);
}

TEST_F(StorageOperatorTest, ATargetIsReplacedOnRequest) {
  operator_.set_desired(desired(4, 1, 1), now_);
  for (int node = 0; node < 4; ++node) ASSERT_TRUE(report(node).ok());
  EXPECT_EQ(operator_.replace({"nothing", ""}).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(operator_.replace({"s0.0", ""}).ok());
  EXPECT_EQ(state_of("s3.0"), MemberState::kRebuilding);
}

TEST_F(StorageOperatorTest, WishesAreNumberedAndReachTheNodes) {
  operator_.set_desired(desired(3, 1), now_);
  EXPECT_EQ(report(0)->scrub_request, 0U);
  const std::uint64_t scrub = operator_.scrub()->request;
  const std::uint64_t evict = operator_.evict({0.25})->request;
  EXPECT_EQ(scrub, 100U);
  EXPECT_EQ(evict, 101U);
  const StorageReportReply reply = *report(0);
  EXPECT_EQ(reply.scrub_request, scrub);
  EXPECT_EQ(reply.evict_request, evict);
  EXPECT_EQ(reply.evict_to_fraction, 0.25);
  StorageReport done = report_of(0, 1);
  done.evict_request = evict;
  ASSERT_TRUE(operator_.report("s0", done, now_).ok());
  EXPECT_EQ(operator_.status(now_).nodes[0].evict_request, evict);
}

TEST_F(StorageOperatorTest, WhatBlocksDependOnIsFixedOnceThereAreGroups) {
  operator_.set_desired(desired(3, 1), now_);
  DesiredStorage other = desired(3, 1);
  other.block_bytes = 8192;
  EXPECT_TRUE(operator_.check(other).ok());
  for (int node = 0; node < 3; ++node) ASSERT_TRUE(report(node).ok());
  const absl::Status status = operator_.check(other);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(message_of(status).find("4096"), std::string_view::npos);
  EXPECT_NE(message_of(status).find("8192"), std::string_view::npos);
}

TEST_F(StorageOperatorTest, ARestartTakesNobodyDownBeforeATimeout) {
  operator_.set_desired(desired(3, 1), now_);
  for (int node = 0; node < 3; ++node) ASSERT_TRUE(report(node).ok());
  const auto map = operator_.map();
  StorageOperator next(options(), map);
  next.start(now_);
  next.set_desired(desired(3, 1), now_);
  EXPECT_EQ(next.map(), map);
  ASSERT_TRUE(next.report("s0", report_of(0, 1), now_).ok());
  EXPECT_EQ(next.map(), map);
  next.on_timer(now_ + kTimeout);
  EXPECT_NE(next.map(), map);
}

TEST_F(StorageOperatorTest, StatusShowsWhereEachTargetStands) {
  operator_.set_desired(desired(4, 1, 1), now_);
  for (int node = 0; node < 4; ++node) ASSERT_TRUE(report(node).ok());
  const api::admin::StorageStatus status = operator_.status(now_ + milliseconds(70));
  ASSERT_EQ(status.nodes.size(), 4U);
  EXPECT_EQ(status.nodes[0].targets[0].member_state, "up");
  EXPECT_EQ(status.nodes[0].targets[0].group_id, 0);
  EXPECT_EQ(status.nodes[3].targets[0].member_state, "spare");
  EXPECT_EQ(status.nodes[3].report_age, milliseconds(70));
}

}  // namespace
}  // namespace millrace::controller::kv_map
