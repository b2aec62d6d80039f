#include <gtest/gtest.h>

#include <map>

#include "common/str_cat.h"
#include "common/types.h"
#include "controller/core/controller.h"

namespace millrace::controller::core {
namespace {

using namespace std::chrono_literals;
using api::admin::DesiredState;
using api::admin::HeartbeatReply;

constexpr TimePoint kStart = TimePoint(1h);
const ControllerOptions kOptions{
    .heartbeat_interval = 500ms, .node_timeout = 3000ms, .new_storage_cluster_id = "c1"};

api::admin::StorageReport storage_report(std::string_view node) {
  api::admin::StorageReport report;
  report.protocol_version = kProtocolVersion;
  report.address = str_cat(node, ":1");
  report.targets.resize(1);
  report.targets[0].target_id = str_cat(node, ".0");
  return report;
}

DesiredState desire_storage(int nodes) {
  DesiredState desired;
  desired.model_dir = "/models/nano";
  desired.model_id = "nano";
  desired.storage.nodes = nodes;
  desired.storage.targets_per_node = 1;
  desired.storage.target_bytes = 1 << 20;
  desired.storage.block_bytes = 4096;
  desired.storage.data_shards = 1;
  desired.storage.parity_shards = 1;
  return desired;
}

TEST(ControllerStorage, TheStorageMapIsCommittedBeforeItIsAnsweredAndOutlivesARestart) {
  Controller controller(kOptions, {});
  controller.start(kStart);
  controller.on_event(SetDesiredEvent{desire_storage(2)}, kStart);
  controller.on_event(StorageReportEvent{"storage-0", storage_report("storage-0")}, kStart);
  const Decision decision =
      controller.on_event(StorageReportEvent{"storage-1", storage_report("storage-1")}, kStart);
  const auto& reply = std::get<api::admin::StorageReportReply>(decision.reply);
  ASSERT_TRUE(decision.state.has_value());
  ASSERT_TRUE(decision.state->storage_map.has_value());
  EXPECT_EQ(decision.state->storage_map->epoch, reply.map_epoch);
  EXPECT_EQ(decision.state->storage_map->groups.size(), 1U);

  // An equal report changes nothing, and so commits nothing.
  const Decision same =
      controller.on_event(StorageReportEvent{"storage-1", storage_report("storage-1")}, kStart);
  EXPECT_FALSE(same.state.has_value());

  Controller next(kOptions, controller.state());
  next.start(kStart + 1s);
  EXPECT_EQ(next.state().storage_map, controller.state().storage_map);
  // A silent node is noticed by the timer that the controller itself asks for.
  ASSERT_TRUE(next.next_timer().has_value());
  next.on_event(StorageReportEvent{"storage-0", storage_report("storage-0")}, kStart + 4s);
  next.on_event(TimerEvent{}, kStart + 4s);
  const auto& members = next.state().storage_map->groups[0].members;
  EXPECT_EQ(members[next.state().storage_map->place_of("storage-0.0")->shard_index].state,
            storage::MemberState::kUp);
  EXPECT_EQ(members[next.state().storage_map->place_of("storage-1.0")->shard_index].state,
            storage::MemberState::kDown);
}

TEST(ControllerStorage, EnginesAreToldOfTheStoreAndTheirFetcherKnowsNoModel) {
  Controller controller(kOptions, {});
  controller.start(kStart);
  DesiredState desired = desire_storage(1);
  desired.decode = 1;
  desired.storage.fetch_bytes = 32 << 20;
  desired.storage.window_bytes = 1 << 16;
  desired.storage.window_pool_bytes = 1 << 24;
  controller.on_event(SetDesiredEvent{desired}, kStart);
  controller.on_event(
      JoinEvent{{kProtocolVersion, "n0", "n0", "session", "127.0.0.1:1", /*epoch=*/0}}, kStart);
  const auto specs = [&](TimePoint now) {
    std::map<std::string, api::admin::ProcessSpec> found;
    HeartbeatEvent heartbeat{"n0", {}};
    heartbeat.heartbeat.session_id = "session";
    const Decision decision = controller.on_event(heartbeat, now);
    for (const auto& process : *std::get<HeartbeatReply>(decision.reply).assignment) {
      found[process.spec.worker_id] = process.spec;
    }
    return found;
  };
  auto assigned = specs(kStart);
  ASSERT_TRUE(assigned.contains("decode-0") && assigned.contains("kvfetch-0"));
  EXPECT_TRUE(assigned.at("decode-0").uses_kv_store);
  EXPECT_EQ(assigned.at("kvfetch-0").fetch_bytes, 32 << 20);
  EXPECT_EQ(assigned.at("kvfetch-0").window_bytes, 1 << 16);
  EXPECT_EQ(assigned.at("kvfetch-0").window_pool_bytes, 1 << 24);
  EXPECT_EQ(assigned.at("kvfetch-0").model_dir, "");
  EXPECT_TRUE(controller.state().view.workers.empty()) << "it is no engine";

  desired.storage.nodes = 0;
  controller.on_event(SetDesiredEvent{desired}, kStart + 10s);
  assigned = specs(kStart + 10s);
  EXPECT_FALSE(assigned.at("decode-0").uses_kv_store);
  EXPECT_FALSE(assigned.contains("kvfetch-0"));
}

TEST(ControllerStorage, ABlockSizeThatNoLongerFitsIsRefusedAndNothingChanges) {
  Controller controller(kOptions, {});
  controller.start(kStart);
  controller.on_event(SetDesiredEvent{desire_storage(1)}, kStart);
  api::admin::StorageReport report = storage_report("storage-0");
  report.targets.push_back({});
  report.targets[1].target_id = "storage-0.1";
  controller.on_event(StorageReportEvent{"storage-0", report}, kStart);
  ASSERT_EQ(controller.state().storage_map->groups.size(), 1U);
  DesiredState other = desire_storage(1);
  other.storage.block_bytes = 8192;
  const Decision decision = controller.on_event(SetDesiredEvent{other}, kStart);
  EXPECT_EQ(std::get<absl::Status>(decision.reply).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(controller.state().desired, desire_storage(1));
}

}  // namespace
}  // namespace millrace::controller::core
