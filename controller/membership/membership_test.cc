#include "controller/membership/membership.h"

#include <gtest/gtest.h>

#include "common/str_cat.h"

namespace millrace::controller::membership {
namespace {

using namespace std::chrono_literals;
using api::admin::Heartbeat;
using api::admin::NodeJoin;
using api::admin::ProcessReport;

constexpr TimePoint kStart = TimePoint(1h);

NodeJoin join_of(std::string node_id, std::string session_id) {
  return {.protocol_version = 1,
          .node_id = std::move(node_id),
          .host_id = "host",
          .session_id = std::move(session_id),
          .address = "127.0.0.1:1",
          .epoch = 0};
}

Heartbeat heartbeat_of(std::string session_id, std::vector<std::string> workers = {}) {
  Heartbeat heartbeat;
  heartbeat.session_id = std::move(session_id);
  for (std::string& worker_id : workers) {
    ProcessReport report;
    report.worker_id = std::move(worker_id);
    heartbeat.processes.push_back(std::move(report));
  }
  return heartbeat;
}

TEST(Membership, ANodeLivesFromItsJoinToTheTimeoutAfterItsLastHeartbeat) {
  Membership membership(3s);
  EXPECT_EQ(membership.next_expiry(), std::nullopt);
  ASSERT_TRUE(membership.join(join_of("n0", "a"), kStart).ok());
  EXPECT_EQ(membership.next_expiry(), kStart + 3s);
  ASSERT_TRUE(membership.heartbeat("n0", heartbeat_of("a"), kStart + 2s).ok());
  EXPECT_EQ(membership.next_expiry(), kStart + 5s);
  EXPECT_TRUE(membership.expire(kStart + 5s - 1ns).empty());
  EXPECT_EQ(membership.expire(kStart + 5s), std::vector<std::string>{"n0"});
  EXPECT_FALSE(membership.nodes().at("n0").is_alive);
  EXPECT_TRUE(membership.expire(kStart + 9s).empty()) << "dead once";
  EXPECT_EQ(membership.next_expiry(), std::nullopt);
}

TEST(Membership, ADeadNodeReturnsWithItsNextHeartbeat) {
  Membership membership(3s);
  ASSERT_TRUE(membership.join(join_of("n0", "a"), kStart).ok());
  ASSERT_TRUE(membership.heartbeat("n0", heartbeat_of("a"), kStart).ok());
  membership.expire(kStart + 3s);
  EXPECT_TRUE(*membership.heartbeat("n0", heartbeat_of("a"), kStart + 4s));
  EXPECT_TRUE(membership.nodes().at("n0").is_alive);
}

TEST(Membership, ASecondAgentOfALiveNodeIsRefusedAndOfADeadOneTaken) {
  Membership membership(3s);
  ASSERT_TRUE(membership.join(join_of("n0", "a"), kStart).ok());
  ASSERT_TRUE(membership.heartbeat("n0", heartbeat_of("a", {"decode-0"}), kStart).ok());
  EXPECT_EQ(membership.join(join_of("n0", "b"), kStart + 1s).code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(membership.join(join_of("n0", "a"), kStart + 1s).ok()) << "the same one may";
  EXPECT_EQ(membership.nodes().at("n0").processes.size(), 1u);
  membership.expire(kStart + 4s);
  ASSERT_TRUE(membership.join(join_of("n0", "b"), kStart + 4s).ok());
  EXPECT_TRUE(membership.nodes().at("n0").processes.empty());
  EXPECT_FALSE(membership.nodes().at("n0").has_reported);
  EXPECT_EQ(membership.heartbeat("n0", heartbeat_of("a"), kStart + 5s).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(Membership, AnUnknownNodeMustJoinFirst) {
  Membership membership(3s);
  EXPECT_EQ(membership.heartbeat("n0", heartbeat_of("a"), kStart).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(Membership, AHeartbeatTellsWhetherAnythingChanged) {
  Membership membership(3s);
  ASSERT_TRUE(membership.join(join_of("n0", "a"), kStart).ok());
  EXPECT_TRUE(*membership.heartbeat("n0", heartbeat_of("a"), kStart)) << "the first";
  EXPECT_FALSE(*membership.heartbeat("n0", heartbeat_of("a"), kStart));
  EXPECT_TRUE(*membership.heartbeat("n0", heartbeat_of("a", {"w-1", "w-0"}), kStart));
  EXPECT_FALSE(*membership.heartbeat("n0", heartbeat_of("a", {"w-0", "w-1"}), kStart))
      << "the order means nothing";
  Heartbeat applied = heartbeat_of("a", {"w-0", "w-1"});
  applied.revision = 4;
  EXPECT_TRUE(*membership.heartbeat("n0", applied, kStart));
  applied.is_leaving = true;
  EXPECT_TRUE(*membership.heartbeat("n0", applied, kStart));
  EXPECT_FALSE(membership.nodes().at("n0").is_alive);
}

TEST(Membership, AProcessListedTwiceIsRefusedByName) {
  Membership membership(3s);
  ASSERT_TRUE(membership.join(join_of("n0", "a"), kStart).ok());
  const absl::Status status =
      membership.heartbeat("n0", heartbeat_of("a", {"w-0", "w-1", "w-0"}), kStart).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("w-0"), absl::string_view::npos);
}

TEST(Membership, NodesAreBounded) {
  Membership membership(3s);
  for (std::size_t index = 0; index < Membership::kMaxNodes; ++index) {
    ASSERT_TRUE(membership.join(join_of(str_cat("n", index), "a"), kStart).ok());
  }
  EXPECT_EQ(membership.join(join_of("one-more", "a"), kStart).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(membership.join(join_of("n0", "a"), kStart).ok()) << "known ones may return";
}

}  // namespace
}  // namespace millrace::controller::membership
