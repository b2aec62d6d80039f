#include "controller/core/reconcile.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/str_cat.h"

namespace millrace::controller::core {
namespace {

using api::admin::DesiredState;
using api::admin::ProcessReport;
using api::admin::ProcessRole;
using membership::NodeRecord;

using Nodes = std::map<std::string, NodeRecord, std::less<>>;

/// A node that follows assignment `revision` of epoch 1 and runs these processes.
NodeRecord node(std::string node_id, std::vector<std::string> workers, std::uint64_t revision = 0) {
  NodeRecord record;
  record.node_id = std::move(node_id);
  record.is_alive = true;
  record.has_reported = true;
  record.applied_epoch = 1;
  record.applied_revision = revision;
  for (std::string& worker_id : workers) {
    ProcessReport report;
    report.role = worker_id.starts_with("decode")    ? ProcessRole::kDecode
                  : worker_id.starts_with("prefill") ? ProcessRole::kPrefill
                  : worker_id.starts_with("storage") ? ProcessRole::kStorage
                  : worker_id.starts_with("kvfetch") ? ProcessRole::kKvFetch
                                                     : ProcessRole::kEntrypoint;
    report.worker_id = std::move(worker_id);
    report.incarnation = 5;
    record.processes.push_back(std::move(report));
  }
  return record;
}

Nodes nodes_of(const std::vector<NodeRecord>& records) {
  Nodes nodes;
  for (const NodeRecord& record : records) nodes[record.node_id] = record;
  return nodes;
}

std::optional<DesiredState> desire(int prefill, int decode, int entrypoint = 0) {
  DesiredState desired;
  desired.prefill = prefill;
  desired.decode = decode;
  desired.entrypoint = entrypoint;
  return desired;
}

/// Runs reconcile(), and once more to see that it is content.
Reconciled settle(Reconciled current, const std::optional<DesiredState>& desired,
                  const Nodes& nodes, bool is_window_open = false,
                  std::set<std::string, std::less<>> lost_nodes = {}) {
  const ReconcileInputs inputs{.desired = desired,
                               .nodes = nodes,
                               .epoch = 1,
                               .next_revision = 10,
                               .is_window_open = is_window_open,
                               .lost_nodes = std::move(lost_nodes)};
  std::vector<Note> notes;
  Reconciled once = reconcile(std::move(current), inputs, notes);
  notes.clear();
  const Reconciled twice = reconcile(once, inputs, notes);
  EXPECT_EQ(once.placements, twice.placements) << "a second pass must change nothing";
  EXPECT_TRUE(notes.empty());
  return once;
}

/// "prefill-0@n0 decode-1@n1(releasing)"
std::string summary(const Reconciled& state) {
  std::string text;
  for (const Placement& placement : state.placements) {
    text += str_cat(text.empty() ? "" : " ", placement.worker_id, "@", placement.node_id,
                    placement.phase == PlacementPhase::kReleasing ? "(releasing)" : "");
  }
  return text;
}

TEST(Reconcile, PlacesWhatIsDesiredSpreadByRoleThenByLoadThenByName) {
  const Nodes nodes = nodes_of({node("n0", {}), node("n1", {})});
  EXPECT_EQ(summary(settle({}, desire(2, 3, 1), nodes)),
            "prefill-0@n0 prefill-1@n1 decode-0@n0 decode-1@n1 decode-2@n0 entrypoint-0@n1");
}

TEST(Reconcile, PlacesOneEntrypointOnANode) {
  const Nodes nodes = nodes_of({node("n0", {}), node("n1", {})});
  EXPECT_EQ(summary(settle({}, desire(0, 0, 3), nodes)), "entrypoint-0@n0 entrypoint-1@n1");
}

TEST(Reconcile, PlacesNothingWithoutALiveNode) {
  EXPECT_EQ(summary(settle({}, desire(1, 1), {})), "");
  Nodes dead = nodes_of({node("n0", {})});
  dead.at("n0").is_alive = false;
  EXPECT_EQ(summary(settle({}, desire(1, 1), dead)), "");
}

TEST(Reconcile, ReleasesTheHighestIndexAndForgetsItWhenTheNodeHasHeardAndRunsItNoMore) {
  const Nodes running = nodes_of({node("n0", {"decode-0", "decode-1"})});
  Reconciled state = settle({}, desire(0, 2), running);
  state = settle(state, desire(0, 1), running);
  EXPECT_EQ(summary(state), "decode-0@n0 decode-1@n0(releasing)");
  // The node has not heard of revision 10 yet: absence from its report proves nothing.
  EXPECT_EQ(summary(settle(state, desire(0, 1), nodes_of({node("n0", {"decode-0"}, 9)}))),
            "decode-0@n0 decode-1@n0(releasing)");
  EXPECT_EQ(
      summary(settle(state, desire(0, 1), nodes_of({node("n0", {"decode-0", "decode-1"}, 10)}))),
      "decode-0@n0 decode-1@n0(releasing)");
  EXPECT_EQ(summary(settle(state, desire(0, 1), nodes_of({node("n0", {"decode-0"}, 10)}))),
            "decode-0@n0");
}

TEST(Reconcile, AHeardRevisionOfAnotherEpochProvesNothing) {
  const Nodes running = nodes_of({node("n0", {"decode-0"})});
  Reconciled state = settle(settle({}, desire(0, 1), running), desire(0, 0), running);
  Nodes heard = nodes_of({node("n0", {}, 99)});
  heard.at("n0").applied_epoch = 0;
  EXPECT_EQ(summary(settle(state, desire(0, 0), heard)), "decode-0@n0(releasing)");
}

TEST(Reconcile, ANodeThatLeftRunsNothing) {
  const Nodes running = nodes_of({node("n0", {"decode-0"})});
  Reconciled state = settle(settle({}, desire(0, 1), running), desire(0, 0), running);
  Nodes left = nodes_of({node("n0", {})});
  left.at("n0").is_alive = false;
  EXPECT_EQ(summary(settle(state, desire(0, 0), left)), "decode-0@n0(releasing)")
      << "dead is not left";
  left.at("n0").has_left = true;
  EXPECT_EQ(summary(settle(state, desire(0, 0), left)), "");
}

TEST(Reconcile, RevivesAReleasedWorkerBeforeItPlacesAnother) {
  const Nodes running = nodes_of({node("n0", {"decode-0", "decode-1"})});
  Reconciled state = settle({}, desire(0, 2), running);
  state = settle(state, desire(0, 1), running);
  EXPECT_EQ(summary(settle(state, desire(0, 2), running)), "decode-0@n0 decode-1@n0");
}

TEST(Reconcile, TakesNothingAwayWhileTheWindowIsOpen) {
  const Nodes nodes = nodes_of({node("n0", {"decode-0", "decode-1"})});
  const Reconciled state = settle({}, desire(0, 2), nodes);
  EXPECT_EQ(summary(settle(state, desire(0, 0), nodes, true)), "decode-0@n0 decode-1@n0");
  EXPECT_EQ(summary(settle(state, desire(0, 0), nodes, false)),
            "decode-0@n0(releasing) decode-1@n0(releasing)");
}

TEST(Reconcile, TakesOverWhatRunsUnknownWhileTheWindowIsOpenOrNothingWasDesired) {
  const Nodes nodes = nodes_of({node("n0", {"decode-1", "prefill-0"})});
  EXPECT_EQ(summary(settle({}, desire(1, 1), nodes, true)), "prefill-0@n0 decode-1@n0");
  EXPECT_EQ(summary(settle({}, std::nullopt, nodes, false)), "prefill-0@n0 decode-1@n0");
  // Later, what nobody placed is not taken over: its agent will be told to stop it.
  EXPECT_EQ(summary(settle({}, desire(1, 0), nodes_of({node("n0", {"decode-1"})}), false)),
            "prefill-0@n0");
}

TEST(Reconcile, ANameThatIsNotARoleAndAnIndexIsNotTakenOver) {
  Nodes nodes = nodes_of({node("n0", {"decode-1"})});
  nodes.at("n0").processes[0].role = ProcessRole::kPrefill;
  EXPECT_EQ(summary(settle({}, std::nullopt, nodes, true)), "");
  for (const char* id : {"decode-", "decode-01", "decode-1x", "decode--1", "decode-1234567"}) {
    EXPECT_EQ(parse_worker_index(id, ProcessRole::kDecode), std::nullopt) << id;
  }
  EXPECT_EQ(parse_worker_index("decode-0", ProcessRole::kDecode), 0);
  EXPECT_EQ(parse_worker_index("decode-120", ProcessRole::kDecode), 120);
}

TEST(Reconcile, ReplacesTheWorkersOfALostNodeUnderNewNamesIfAnotherIsAlive) {
  const Nodes both = nodes_of({node("n0", {}), node("n1", {})});
  const Reconciled state = settle({}, desire(0, 2), both);
  ASSERT_EQ(summary(state), "decode-0@n0 decode-1@n1");
  Nodes one = both;
  one.at("n1").is_alive = false;
  EXPECT_EQ(summary(settle(state, desire(0, 2), one)), "decode-0@n0 decode-1@n1")
      << "dead, but not lost yet";
  const Reconciled replaced = settle(state, desire(0, 2), one, false, {"n1"});
  // decode-1 may still run there, cut off: its name stays taken.
  EXPECT_EQ(summary(replaced), "decode-0@n0 decode-1@n1(releasing) decode-2@n0");
  // The node returns, still running it, and then stops it.
  const Nodes back = nodes_of({node("n0", {"decode-0", "decode-2"}, 10), node("n1", {"decode-1"})});
  EXPECT_EQ(summary(settle(replaced, desire(0, 2), back)), summary(replaced));
  const Nodes stopped = nodes_of({node("n0", {"decode-0", "decode-2"}, 10), node("n1", {}, 10)});
  EXPECT_EQ(summary(settle(replaced, desire(0, 2), stopped)), "decode-0@n0 decode-2@n0");
  // With no other node there is nothing to gain.
  Nodes none = both;
  none.at("n0").is_alive = false;
  none.at("n1").is_alive = false;
  EXPECT_EQ(summary(settle(state, desire(0, 2), none, false, {"n0", "n1"})), summary(state));
}

TEST(Reconcile, StorageStaysOnItsMachineAndOneMachineHasOneOfIt) {
  std::optional<DesiredState> desired = desire(0, 0);
  desired->storage.nodes = 3;
  const Nodes nodes = nodes_of({node("n0", {}), node("n1", {})});
  const Reconciled placed = settle({}, desired, nodes);
  EXPECT_EQ(summary(placed), "storage-0@n0 storage-1@n1");
  const Reconciled lost = settle(placed, desired, nodes, false, {"n0"});
  EXPECT_EQ(summary(lost), "storage-0@n0 storage-1@n1");
}

TEST(Reconcile, EveryNodeWithAnEngineHasOneFetcherWhileTheClusterStoresKv) {
  std::optional<DesiredState> desired = desire(1, 1, 1);
  desired->storage.nodes = 1;
  const Nodes nodes = nodes_of({node("n0", {}), node("n1", {}), node("n2", {}), node("n3", {})});
  const Reconciled placed = settle({}, desired, nodes);
  EXPECT_EQ(summary(placed),
            "prefill-0@n0 decode-0@n1 entrypoint-0@n2 storage-0@n3 kvfetch-0@n0 kvfetch-1@n1");
  EXPECT_EQ(wanted_count(*desired, placed.placements, ProcessRole::kKvFetch), 2);
  // Fewer engines, fewer fetchers; but not while agents are still awaited.
  desired->decode = 0;
  EXPECT_EQ(summary(settle(placed, desired, nodes, true)), summary(placed));
  const Reconciled fewer = settle(placed, desired, nodes);
  EXPECT_EQ(summary(fewer),
            "prefill-0@n0 decode-0@n1(releasing) entrypoint-0@n2 storage-0@n3 kvfetch-0@n0 "
            "kvfetch-1@n1(releasing)");
  // The node gets back the one that it had.
  desired->decode = 1;
  EXPECT_EQ(summary(settle(fewer, desired, nodes)), summary(placed));
  desired->storage.nodes = 0;
  EXPECT_EQ(summary(settle(placed, desired, nodes)),
            "prefill-0@n0 decode-0@n1 entrypoint-0@n2 storage-0@n3(releasing) "
            "kvfetch-0@n0(releasing) kvfetch-1@n1(releasing)");
}

TEST(Reconcile, AFetcherFollowsTheEngineOfALostNode) {
  std::optional<DesiredState> desired = desire(1, 0);
  desired->storage.nodes = 1;
  Nodes nodes = nodes_of({node("n0", {}), node("n1", {})});
  const Reconciled placed = settle({}, desired, nodes);
  EXPECT_EQ(summary(placed), "prefill-0@n0 storage-0@n1 kvfetch-0@n0");
  nodes.at("n0").is_alive = false;
  EXPECT_EQ(summary(settle(placed, desired, nodes, false, {"n0"})),
            "prefill-0@n0(releasing) prefill-1@n1 storage-0@n1 kvfetch-0@n0(releasing) "
            "kvfetch-1@n1");
}

TEST(Reconcile, IncarnationsGrowOverRemovalsOfTheSameName) {
  const Nodes running = nodes_of({node("n0", {"decode-0"}, 10)});
  Reconciled state = settle({}, desire(0, 1), running);
  EXPECT_EQ(state.placements[0].incarnation, 5u) << "as its node reports";
  state = settle(state, desire(0, 0), running);
  state = settle(state, desire(0, 0), nodes_of({node("n0", {}, 10)}));
  ASSERT_EQ(summary(state), "");
  state = settle(state, desire(0, 1), nodes_of({node("n0", {}, 10)}));
  ASSERT_EQ(summary(state), "decode-0@n0");
  EXPECT_EQ(state.placements[0].incarnation, 5u);
}

}  // namespace
}  // namespace millrace::controller::core
