#include "controller/state/store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/sqlite/sqlite.h"
#include "common/str_cat.h"

namespace millrace::controller::state {
namespace {

using api::admin::ClusterEvent;
using common::sqlite::Database;
using core::Placement;
using core::PlacementPhase;
using core::StoredState;

/// A folder that goes away with the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = ::testing::TempDir() + "store_test_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

StoredState sample_state(std::uint64_t version) {
  StoredState state;
  state.version = version;
  state.epoch = 3;
  state.revision = 17;
  state.next_event_id = version + 1;
  state.retired_incarnation = 9;
  state.desired.emplace();
  state.desired->prefill = 1;
  state.desired->decode = static_cast<int>(version % 100);
  state.desired->model_dir = "/models/nano";
  state.desired->model_id = "nano";
  state.placements.push_back(
      {"prefill-0", api::admin::ProcessRole::kPrefill, 0, "n0", PlacementPhase::kActive, 4, 16});
  state.placements.push_back(
      {"decode-2", api::admin::ProcessRole::kDecode, 2, "n1", PlacementPhase::kReleasing, 5, 17});
  state.placements.push_back(
      {"decode-10", api::admin::ProcessRole::kDecode, 10, "n1", PlacementPhase::kActive, 0, 3});
  state.view.version = 21 + version;
  state.view.epoch = 3;
  state.view.model_id = "nano";
  state.view.artifact_digest_hex = "aabb";
  state.view.workers.push_back({"prefill-0", "prefill-0", "n0", "h0",
                                api::admin::WorkerRole::kPrefill, api::admin::WorkerState::kReady,
                                4, "127.0.0.1:1"});
  storage::StorageMap map;
  map.cluster_id = "c1";
  map.epoch = 4 + version;
  map.data_shards = 1;
  map.parity_shards = 1;
  map.block_bytes = 1000;
  map.nodes = {{"storage-0", "127.0.0.1:3"}};
  map.targets = {{"storage-0.0", "storage-0"}, {"storage-0.1", "storage-0"}};
  map.groups = {{0,
                 {{"storage-0.0", storage::MemberState::kUp},
                  {"storage-0.1", storage::MemberState::kRebuilding}}}};
  state.storage_map = std::move(map);
  return state;
}

ClusterEvent sample_event(std::uint64_t id) {
  return {id, 1700000000000 + static_cast<std::int64_t>(id), "node_joined", str_cat("n", id),
          "with \"quotes\" and \xc3\xbc"};
}

void expect_equal(const StoredState& a, const StoredState& b) {
  EXPECT_EQ(a.version, b.version);
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.revision, b.revision);
  EXPECT_EQ(a.next_event_id, b.next_event_id);
  EXPECT_EQ(a.retired_incarnation, b.retired_incarnation);
  EXPECT_EQ(a.desired, b.desired);
  EXPECT_EQ(a.placements, b.placements);
  EXPECT_EQ(to_json(a.view), to_json(b.view));
  EXPECT_EQ(a.storage_map, b.storage_map);
}

std::unique_ptr<Store> open_store(const std::string& folder) {
  absl::StatusOr<std::unique_ptr<Store>> store = Store::open(folder);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? std::move(*store) : nullptr;
}

TEST(Store, ANewFolderHoldsAnEmptyState) {
  TemporaryFolder folder;
  auto store = open_store(folder.path());
  expect_equal(*store->load(), StoredState{});
  EXPECT_TRUE(store->events_after(0)->events.empty());
  EXPECT_EQ(store->events_after(0)->oldest_id, 0u);
}

TEST(Store, WhatWasCommittedIsLoadedByTheNext) {
  TemporaryFolder folder;
  const ClusterEvent event = sample_event(1);
  {
    auto store = open_store(folder.path());
    ASSERT_TRUE(store->commit(0, sample_state(1), {&event, 1}).ok());
    ASSERT_TRUE(store->commit(1, sample_state(2), {}).ok());
  }
  auto store = open_store(folder.path());
  expect_equal(*store->load(), sample_state(2));
  EXPECT_EQ(store->events_after(0)->events, std::vector<ClusterEvent>{event});
}

TEST(Store, ADecisionOnAnOldVersionIsAbortedAndLeavesNothing) {
  TemporaryFolder folder;
  auto store = open_store(folder.path());
  ASSERT_TRUE(store->commit(0, sample_state(1), {}).ok());
  const ClusterEvent event = sample_event(1);
  EXPECT_EQ(store->commit(0, sample_state(2), {&event, 1}).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(store->commit(2, sample_state(3), {&event, 1}).code(), absl::StatusCode::kAborted);
  expect_equal(*store->load(), sample_state(1));
  EXPECT_TRUE(store->events_after(0)->events.empty());
  EXPECT_TRUE(store->commit(1, sample_state(2), {&event, 1}).ok());
}

TEST(Store, AFailureInTheMiddleLeavesTheOldState) {
  TemporaryFolder folder;
  auto store = open_store(folder.path());
  ASSERT_TRUE(store->commit(0, sample_state(1), {}).ok());
  StoredState broken = sample_state(2);
  broken.placements.push_back(broken.placements[0]);  // breaks the primary key, after other writes
  EXPECT_FALSE(store->commit(1, broken, {}).ok());
  expect_equal(*store->load(), sample_state(1));
  EXPECT_TRUE(store->commit(1, sample_state(2), {}).ok());
}

TEST(Store, KeepsTheNewestEventsOnly) {
  TemporaryFolder folder;
  auto store = open_store(folder.path());
  std::uint64_t version = 0;
  std::uint64_t next_id = 1;
  while (next_id <= Store::kMaxEvents + 50) {
    constexpr int kEvents = 70;
    std::vector<ClusterEvent> events;
    events.reserve(kEvents);
    for (int count = 0; count < kEvents; ++count) events.push_back(sample_event(next_id++));
    ASSERT_TRUE(store->commit(version, sample_state(version + 1), events).ok());
    ++version;
  }
  const std::uint64_t newest = next_id - 1;
  absl::StatusOr<api::admin::EventList> list = store->events_after(0);
  EXPECT_EQ(list->events.size(), Store::kMaxEvents);
  EXPECT_EQ(list->oldest_id, newest - Store::kMaxEvents + 1);
  EXPECT_EQ(list->events.front().id, list->oldest_id);
  EXPECT_EQ(list->events.back(), sample_event(newest));
  EXPECT_EQ(store->events_after(newest - 2)->events.size(), 2u);
  EXPECT_TRUE(store->events_after(newest)->events.empty());
}

TEST(Store, ASecondControllerIsRefusedInAClearSentence) {
  TemporaryFolder folder;
  auto store = open_store(folder.path());
  const absl::Status status = Store::open(folder.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(status.message()),
            str_cat("another controller is running on ", folder.path(),
                    "; stop it first, or choose another --data-dir"));
  ASSERT_TRUE(store->commit(0, sample_state(1), {}).ok()) << "the first goes on";
  store.reset();
  EXPECT_TRUE(Store::open(folder.path()).ok());
}

/// Runs `body` in a child process; its exit code is 0 when the body returned true.
template <typename Body>
pid_t fork_child(const Body& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body() ? 0 : 1);
  return pid;
}

TEST(Store, ASecondProcessIsRefused) {
  TemporaryFolder folder;
  auto store = open_store(folder.path());
  const pid_t pid = fork_child([&] {
    return Store::open(folder.path()).status().code() == absl::StatusCode::kFailedPrecondition;
  });
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

TEST(Store, AKilledControllerLosesNothingThatItWasToldIsWritten) {
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    TemporaryFolder folder;
    int pipe_fds[2];
    ASSERT_EQ(pipe(pipe_fds), 0);
    const pid_t pid = fork_child([&] {
      auto store = Store::open(folder.path());
      if (!store.ok()) return false;
      for (std::uint64_t version = 0;; ++version) {
        const ClusterEvent event = sample_event(version + 1);
        if (!(*store)->commit(version, sample_state(version + 1), {&event, 1}).ok()) return false;
        const std::uint64_t written = version + 1;
        if (write(pipe_fds[1], &written, sizeof(written)) != sizeof(written)) return false;
      }
    });
    // Let it commit a few times, then kill it at some moment in between.
    std::uint64_t acknowledged = 0;
    while (acknowledged < 3 + static_cast<std::uint64_t>(round)) {
      ASSERT_EQ(read(pipe_fds[0], &acknowledged, sizeof(acknowledged)),
                static_cast<ssize_t>(sizeof(acknowledged)));
    }
    usleep(static_cast<useconds_t>(137 * round));
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    close(pipe_fds[1]);
    std::uint64_t last = 0;
    while (read(pipe_fds[0], &last, sizeof(last)) == sizeof(last)) acknowledged = last;
    close(pipe_fds[0]);

    auto store = open_store(folder.path());
    ASSERT_NE(store, nullptr);
    absl::StatusOr<StoredState> state = store->load();
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_GE(state->version, acknowledged);
    EXPECT_LE(state->version, acknowledged + 1);
    expect_equal(*state, sample_state(state->version));
    EXPECT_EQ(store->events_after(0)->events.size(), state->version);
  }
}

TEST(Store, AFileThatIsNoDatabaseIsNamed) {
  TemporaryFolder folder;
  std::ofstream(folder.path() + "/controller.sqlite") << std::string(4096, 'x');
  const absl::Status status = Store::open(folder.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_NE(std::string(status.message()).find("controller.sqlite"), std::string::npos) << status;
}

// As a program of before there was storage wrote it.
TEST(Store, AnOlderSchemaIsTakenOver) {
  TemporaryFolder folder;
  StoredState state = sample_state(1);
  state.storage_map.reset();
  ASSERT_TRUE(open_store(folder.path())->commit(0, state, {}).ok());
  {
    absl::StatusOr<Database> database = Database::open(folder.path() + "/controller.sqlite");
    ASSERT_TRUE(database.ok());
    ASSERT_TRUE(database->execute("ALTER TABLE state DROP COLUMN storage_map").ok());
    ASSERT_TRUE(database->execute("PRAGMA user_version = 1").ok());
  }
  const std::unique_ptr<Store> store = open_store(folder.path());
  const absl::StatusOr<StoredState> loaded = store->load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  expect_equal(*loaded, state);
}

TEST(Store, ANewerSchemaIsRefused) {
  TemporaryFolder folder;
  open_store(folder.path()).reset();
  {
    absl::StatusOr<Database> database = Database::open(folder.path() + "/controller.sqlite");
    ASSERT_TRUE(database.ok());
    ASSERT_TRUE(database->execute("PRAGMA user_version = 3").ok());
  }
  const absl::Status status = Store::open(folder.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(std::string(status.message()).find("schema version 3"), std::string::npos) << status;
}

TEST(Store, AMissingFolderIsAnErrorThatNamesIt) {
  const absl::Status status = Store::open("/no/such/folder").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_NE(std::string(status.message()).find("/no/such/folder"), std::string::npos);
}

}  // namespace
}  // namespace millrace::controller::state
