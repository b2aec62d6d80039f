#include "controller/view/view.h"

#include <gtest/gtest.h>

#include <optional>

namespace millrace::controller::view {
namespace {

using api::admin::ProcessReport;
using api::admin::ProcessState;
using api::admin::RoutingView;
using api::admin::ViewWorker;
using api::admin::WorkerRole;
using api::admin::WorkerState;
using membership::NodeRecord;

using Nodes = std::map<std::string, NodeRecord, std::less<>>;

ProcessReport ready_report(std::string worker_id) {
  ProcessReport report;
  report.worker_id = std::move(worker_id);
  report.state = ProcessState::kReady;
  report.incarnation = 3;
  report.pid = 10;
  report.address = "127.0.0.1:7";
  report.model_id = "nano";
  report.artifact_digest_hex = "aa";
  return report;
}

NodeRecord alive_node(std::string node_id, std::vector<ProcessReport> processes) {
  NodeRecord node;
  node.node_id = std::move(node_id);
  node.host_id = "host-of-" + node.node_id;
  node.is_alive = true;
  node.has_reported = true;
  node.processes = std::move(processes);
  return node;
}

BuiltView build(const Nodes& nodes, std::vector<PlacedWorker> placed,
                const RoutingView& previous = {}, bool keep_unheard = false) {
  return build_view({.epoch = 5,
                     .model_id = "nano",
                     .placed = std::move(placed),
                     .entrypoints = {},
                     .nodes = nodes,
                     .previous = previous,
                     .keep_unheard = keep_unheard});
}

std::optional<ViewWorker> find(const RoutingView& view, const std::string& worker_id) {
  for (const ViewWorker& worker : view.workers) {
    if (worker.worker_id == worker_id) return worker;
  }
  return std::nullopt;
}

TEST(View, ShowsAPlacedWorkerThatItsNodeReports) {
  const Nodes nodes = {{"n0", alive_node("n0", {ready_report("decode-0")})}};
  RoutingView previous;
  previous.version = 41;
  const BuiltView built = build(nodes, {{"decode-0", "n0", WorkerRole::kDecode}}, previous);
  EXPECT_EQ(built.view.version, 41u);
  EXPECT_EQ(built.view.epoch, 5u);
  EXPECT_EQ(built.view.model_id, "nano");
  EXPECT_EQ(built.view.artifact_digest_hex, "aa");
  ASSERT_EQ(built.view.workers.size(), 1u);
  const ViewWorker& worker = built.view.workers[0];
  EXPECT_EQ(worker.worker_id, "decode-0");
  EXPECT_EQ(worker.instance_id, "decode-0");
  EXPECT_EQ(worker.node_id, "n0");
  EXPECT_EQ(worker.host_id, "host-of-n0");
  EXPECT_EQ(worker.role, WorkerRole::kDecode);
  EXPECT_EQ(worker.state, WorkerState::kReady);
  EXPECT_EQ(worker.incarnation, 3u);
  EXPECT_EQ(worker.address, "127.0.0.1:7");
}

TEST(View, EachStateOfAProcessHasItsPlace) {
  const std::pair<ProcessState, std::optional<WorkerState>> cases[] = {
      {ProcessState::kStarting, WorkerState::kStarting},
      {ProcessState::kReady, WorkerState::kReady},
      {ProcessState::kDraining, WorkerState::kDraining},
      {ProcessState::kBackoff, std::nullopt},
      {ProcessState::kFailing, std::nullopt}};
  for (const auto& [state, expected] : cases) {
    ProcessReport report = ready_report("prefill-0");
    report.state = state;
    const Nodes nodes = {{"n0", alive_node("n0", {report})}};
    const auto worker =
        find(build(nodes, {{"prefill-0", "n0", WorkerRole::kPrefill}}).view, "prefill-0");
    EXPECT_EQ(worker.has_value(), expected.has_value()) << process_state_name(state);
    if (worker && expected) {
      EXPECT_EQ(worker->state, *expected);
    }
  }
}

TEST(View, AWorkerBeingRemovedIsDrainingAtOnce) {
  const Nodes nodes = {{"n0", alive_node("n0", {ready_report("decode-0")})}};
  const BuiltView built = build(nodes, {{"decode-0", "n0", WorkerRole::kDecode, true}});
  EXPECT_EQ(find(built.view, "decode-0")->state, WorkerState::kDraining);
}

TEST(View, ListsEntrypointsThatAreReadyWithTheirDirectories) {
  ProcessReport ready = ready_report("entrypoint-0");
  ready.directory_address = "127.0.0.1:8";
  ProcessReport starting = ready_report("entrypoint-1");
  starting.state = ProcessState::kStarting;
  Nodes nodes = {{"n0", alive_node("n0", {ready})}, {"n1", alive_node("n1", {starting})}};
  const std::vector<PlacedEntrypoint> placed = {{"entrypoint-1", "n1"}, {"entrypoint-0", "n0"}};
  RoutingView previous;
  const auto listed = [&](bool keep_unheard) {
    return build_view({.epoch = 5,
                       .model_id = "nano",
                       .placed = {},
                       .entrypoints = placed,
                       .nodes = nodes,
                       .previous = previous,
                       .keep_unheard = keep_unheard})
        .view;
  };
  const RoutingView view = listed(false);
  ASSERT_EQ(view.entrypoints.size(), 1U);
  EXPECT_EQ(view.entrypoints[0], (api::admin::ViewEntrypoint{"entrypoint-0", 3, "127.0.0.1:8"}));
  EXPECT_FALSE(is_same_content(view, previous));
  // A controller that starts anew keeps those whose node it has not heard.
  previous = view;
  nodes.clear();
  EXPECT_EQ(listed(true).entrypoints, view.entrypoints);
  EXPECT_TRUE(listed(false).entrypoints.empty());
  nodes = {{"n0", alive_node("n0", {ready})}};
  nodes.at("n0").is_alive = false;
  EXPECT_TRUE(listed(true).entrypoints.empty());
}

TEST(View, LeavesOutDeadNodesUnplacedWorkersAndReportsFromOtherNodes) {
  Nodes nodes = {{"n0", alive_node("n0", {ready_report("decode-0"), ready_report("decode-9")})},
                 {"n1", alive_node("n1", {ready_report("decode-1")})},
                 {"n2", alive_node("n2", {ready_report("decode-2")})}};
  nodes.at("n1").is_alive = false;
  const BuiltView built = build(nodes, {{"decode-0", "n0", WorkerRole::kDecode},
                                        {"decode-1", "n1", WorkerRole::kDecode},
                                        {"decode-2", "n0", WorkerRole::kDecode}});
  ASSERT_EQ(built.view.workers.size(), 1u);
  EXPECT_EQ(built.view.workers[0].worker_id, "decode-0");
}

TEST(View, IsOrderedByWorkerId) {
  const Nodes nodes = {{"n0", alive_node("n0", {ready_report("decode-10"), ready_report("decode-2"),
                                                ready_report("prefill-0")})}};
  const BuiltView built = build(nodes, {{"prefill-0", "n0", WorkerRole::kPrefill},
                                        {"decode-2", "n0", WorkerRole::kDecode},
                                        {"decode-10", "n0", WorkerRole::kDecode}});
  ASSERT_EQ(built.view.workers.size(), 3u);
  EXPECT_EQ(built.view.workers[0].worker_id, "decode-10");
  EXPECT_EQ(built.view.workers[1].worker_id, "decode-2");
  EXPECT_EQ(built.view.workers[2].worker_id, "prefill-0");
}

TEST(View, AfterAStartUnheardNodesKeepWhatThePreviousViewShowed) {
  RoutingView previous;
  previous.model_id = "nano";
  previous.artifact_digest_hex = "aa";
  previous.workers.push_back({"decode-0", "decode-0", "n0", "h", WorkerRole::kDecode,
                              WorkerState::kReady, 2, "127.0.0.1:1"});
  const std::vector<PlacedWorker> placed = {{"decode-0", "n0", WorkerRole::kDecode}};
  EXPECT_EQ(build({}, placed, previous, true).view.workers.size(), 1u);
  EXPECT_TRUE(build({}, placed, previous, false).view.workers.empty());
  // A node that has joined but not reported is unheard, too.
  Nodes joined = {{"n0", alive_node("n0", {})}};
  joined.at("n0").has_reported = false;
  EXPECT_EQ(build(joined, placed, previous, true).view.workers.size(), 1u);
  // What it reports then counts.
  const Nodes heard = {{"n0", alive_node("n0", {})}};
  EXPECT_TRUE(build(heard, placed, previous, true).view.workers.empty());
  // A worker that was placed elsewhere since is not the one that was shown.
  EXPECT_TRUE(
      build({}, {{"decode-0", "n1", WorkerRole::kDecode}}, previous, true).view.workers.empty());
}

TEST(View, AWorkerOfAnotherModelOrDigestIsLeftOutWithTheReason) {
  ProcessReport other_model = ready_report("decode-1");
  other_model.model_id = "other";
  ProcessReport other_digest = ready_report("decode-2");
  other_digest.artifact_digest_hex = "bb";
  const Nodes nodes = {
      {"n0", alive_node("n0", {ready_report("decode-0"), other_model, other_digest})}};
  const BuiltView built = build(nodes, {{"decode-0", "n0", WorkerRole::kDecode},
                                        {"decode-1", "n0", WorkerRole::kDecode},
                                        {"decode-2", "n0", WorkerRole::kDecode}});
  ASSERT_EQ(built.view.workers.size(), 1u);
  ASSERT_EQ(built.left_out.size(), 2u);
  EXPECT_EQ(built.left_out[0].worker_id, "decode-1");
  EXPECT_NE(built.left_out[0].reason.find("other"), std::string::npos);
  EXPECT_EQ(built.left_out[1].worker_id, "decode-2");
  EXPECT_NE(built.left_out[1].reason.find("bb"), std::string::npos);
}

TEST(View, ThePublishedDigestStandsAsLongAsAWorkerHasIt) {
  ProcessReport first = ready_report("decode-0");
  first.artifact_digest_hex = "bb";
  const Nodes nodes = {{"n0", alive_node("n0", {first, ready_report("decode-1")})}};
  RoutingView previous;
  previous.model_id = "nano";
  previous.artifact_digest_hex = "aa";
  const std::vector<PlacedWorker> placed = {{"decode-0", "n0", WorkerRole::kDecode},
                                            {"decode-1", "n0", WorkerRole::kDecode}};
  EXPECT_EQ(build(nodes, placed, previous).view.artifact_digest_hex, "aa");
  EXPECT_EQ(build(nodes, placed).view.artifact_digest_hex, "bb");
  // With nobody started it stands, too.
  EXPECT_EQ(build({}, placed, previous).view.artifact_digest_hex, "aa");
  const Nodes only_new = {{"n0", alive_node("n0", {first})}};
  EXPECT_EQ(build(only_new, placed, previous).view.artifact_digest_hex, "bb");
}

TEST(View, ContentIsComparedWithoutTheVersion) {
  const Nodes nodes = {{"n0", alive_node("n0", {ready_report("decode-0")})}};
  const RoutingView view = build(nodes, {{"decode-0", "n0", WorkerRole::kDecode}}).view;
  RoutingView other = view;
  other.version += 1;
  EXPECT_TRUE(is_same_content(view, other));
  other.workers[0].incarnation += 1;
  EXPECT_FALSE(is_same_content(view, other));
  other = view;
  other.workers.clear();
  EXPECT_FALSE(is_same_content(view, other));
  other = view;
  other.workers[0].bucket = 0;
  EXPECT_FALSE(is_same_content(view, other));
  other = view;
  other.prefill_cost = api::admin::PublishedCost{1, {.linear = 5}};
  EXPECT_FALSE(is_same_content(view, other));
  other = view;
  other.bucket_edges = {256, 512, 1024};
  EXPECT_FALSE(is_same_content(view, other));
  other = view;
  other.epoch += 1;
  EXPECT_FALSE(is_same_content(view, other));
}

}  // namespace
}  // namespace millrace::controller::view
